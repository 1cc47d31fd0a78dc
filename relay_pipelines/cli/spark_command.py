"""The command `spark`: a Spark Connect server on this machine, which runs until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence

from relay_pipelines.errors import ConfigError
from relay_pipelines.invocation import Invocation
from relay_pipelines.output.formatting import seconds, stdout
from relay_pipelines.spark.connect_server import ConnectServer


def start(invocation: Invocation, conf: Sequence[str]) -> int:
    """Start the server, unless it runs."""
    given = dict(_key_and_value(setting) for setting in conf)
    settings = {**invocation.settings().spark.conf, **given}
    server = _server(invocation)
    started = server.start(settings)
    _print(f"{'started' if started else 'runs already'}: {_described(server)}")
    return 0


def stop(invocation: Invocation) -> int:
    """Stop the server and wait for its end."""
    server = _server(invocation)
    done = server.stop()
    _print(f"{'stopped' if done else 'does not run'}: {server.address}")
    return 0


def status(invocation: Invocation) -> int:
    """Show version, address and age of the server; 1 if it does not answer."""
    _print(_described(_server(invocation)))
    return 0


def _described(server: ConnectServer) -> str:
    """Describe a server that answers.

    Raises:
        RelayError: it does not answer.
    """
    line = f"Spark {server.version()} at {server.address}"
    if not server.is_ours():
        return f"{line}, not started by `relay spark start`"
    return f"{line}, process group {server.pid}, up {seconds(time.time() - server.started)}"


def _server(invocation: Invocation) -> ConnectServer:
    remote = invocation.settings().spark.remote
    if remote is None:
        raise ConfigError(
            "spark.remote is not set, so that no run would use a Spark Connect server",
            remedy="set it to sc://127.0.0.1:15002",
        )
    return ConnectServer(remote)


def _key_and_value(given: str) -> tuple[str, str]:
    key, equals, value = given.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigError(
            f"--conf {key} is not a Spark setting", remedy="write --conf spark.key=value"
        )
    if key == "spark.speculation" and value.strip().lower() == "true":
        raise ConfigError(
            f"--conf {given}: two tasks would copy the same range and fence each other",
            remedy="leave it out",
        )
    return key, value


def _print(line: str) -> None:
    stdout().print(line, soft_wrap=True)

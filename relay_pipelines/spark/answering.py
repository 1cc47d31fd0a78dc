"""Waits for Spark with a limit: py4j and Spark Connect have none. Runs on the driver.

Checks that a Spark master or server accepts connections. Runs on the driver.

Spark itself tries for one minute to reach a master, and for ten to reach a Spark Connect server.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from relay_pipelines.errors import RelayError

ANSWER_SECONDS = 30.0
"""How long a question may be open before Spark counts as hanging: a pause of its JVM is shorter."""
_LOOK_SECONDS = 0.5

Answer = TypeVar("Answer")


def within(limit_seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Ask on a thread of its own, and return the answer.

    The limit is counted in looks, so that a process that was stopped does not blame Spark for it.

    Raises:
        TimeoutError: there is no answer; the thread goes on to wait for it.
        Exception: what `ask` raised.
    """
    answers: list[Answer] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)

    thread = threading.Thread(target=run, name="ask-spark", daemon=True)
    thread.start()
    for _ in range(max(1, round(limit_seconds / _LOOK_SECONDS))):
        thread.join(_LOOK_SECONDS)
        if not thread.is_alive():
            break
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer for {limit_seconds:g} s")
    return answers[0]


_SECONDS = 10.0
PORTS = {"sc": 15_002, "spark": 7_077}


def check(address: str) -> None:
    """Connect to a `spark://` or `sc://` address, or to any of several masters; ignore others.

    Raises:
        RelayError: no server accepts a connection.
    """
    if targets := _targets(address):
        connect_to_any(
            targets,
            f"Spark answers at {without_parameters(address)}",
            "start it, or correct spark.master or spark.remote",
        )


def connect_to_any(targets: Sequence[tuple[str, int]], what: str, remedy: str) -> None:
    """Connect to one of several servers, each `(host, port)`.

    Args:
        what: "Spark answers at ...", of the message.

    Raises:
        RelayError: none accepts a connection.
    """
    errors = []
    for target in targets:
        try:
            socket.create_connection(target, timeout=_SECONDS).close()
        except OSError as error:
            errors.append(error)
        else:
            return
    why = errors[0].strerror or str(errors[0]) or type(errors[0]).__name__
    raise RelayError(f"no {what}: {why}", remedy=remedy)


def without_parameters(address: str) -> str:
    """Return the address alone: a token may follow that of a Spark Connect server."""
    return address.partition("/;")[0].rstrip("/") if address.startswith("sc:") else address


def _targets(address: str) -> list[tuple[str, int]]:
    scheme, _, rest = address.partition("://")
    if scheme not in PORTS:
        return []
    parts = [urlsplit(f"//{host}") for host in rest.partition("/")[0].split(",")]
    return [(part.hostname or "", part.port or PORTS[scheme]) for part in parts]

"""Runs the `relay` command and writes its configuration files."""

import io
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from relay_pipelines.cli import main
from relay_pipelines.model import Cluster

RELAY = Path(sys.executable).parent / "relay"


def ran(*words: str | Path, timeout: float = 300, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program as a process and wait until it exits; `more` as `subprocess.run` has it."""
    own: dict[str, Any] = {"capture_output": True, "text": True} | more
    return subprocess.run(words, check=False, timeout=timeout, **own)


def relay(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ran(RELAY, "--config", config, *arguments, env=environment())


def relay_here(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, without the starts of Python and Spark.

    For what a command says and does. A test that copies also uses the fixture `local_session`, or
    else the command starts a Spark without the trap that later tests set.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["--config", str(config), *arguments])
    said, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(arguments, code, said, errors)


def environment() -> dict[str, str]:
    changed = {"COLUMNS", "LINES", "NO_COLOR", "RELAY_CONFIG", "RELAY_CONFIG_YAML"}
    return {key: value for key, value in os.environ.items() if key not in changed}


def at(cluster: Cluster) -> dict[str, Any]:
    """The section of relay.yaml that describes a cluster."""
    named: dict[str, Any] = {"bootstrap_servers": list(cluster.bootstrap_servers)}
    security = cluster.security
    if security.protocol != "PLAINTEXT":
        named["security"] = {
            key: getattr(security, key) for key in ("protocol", "mechanism", "username", "password")
        }
    return named


def mirror(
    source: Cluster,
    destination: Cluster,
    *allow: str,
    upstream: str = "one",
    topics: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One mirror of relay.yaml with one upstream; `topics` adds to the section of that name."""
    return {
        "source": {"upstreams": [{"name": upstream, **at(source)}]},
        "destination": at(destination),
        "topics": {"allow": list(allow), **(topics or {})},
        **more,
    }


def replace(config: Path, text: str) -> None:
    """Write relay.yaml at once, so that nobody reads half of it."""
    written = config.with_suffix(".new")
    written.write_text(text)
    written.replace(config)


def configured(folder: Path, mirrors: dict[str, Any], **more: Any) -> Path:
    path = folder / f"relay-{uuid.uuid4().hex[:8]}.yaml"
    path.write_text(yaml.safe_dump({"mirrors": mirrors, **more}))
    return path


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only error line on stderr; there must be no traceback."""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0].removeprefix("error: ")

"""`dagster dev` as a process of its own, and its GraphQL: what `relay ui` and the tests drive Dagster by."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import relay_pipelines
from relay_pipelines.errors import RelayError

ROOT = Path(relay_pipelines.__file__).parents[1]
_FILES = ("dagster.yaml", "workspace.yaml")
_START_SECONDS = 90.0
_STOP_SECONDS = 20.0
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "relay_pipelines"}
_START_SENSOR = """mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
  __typename ... on PythonError { message } ... on SensorNotFoundError { message } } }"""
_SENSORS = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
  __typename ... on PythonError { message errorChain { error { message } } } ... on
  RepositoryLocation { repositories { sensors { name } } } } } } } }"""


class Dagster:
    """A Dagster that serves at 127.0.0.1.

    Args:
        url: of its web server.
        process: `dagster dev`; its group is its own.
    """

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.process = process

    def ask(self, query: str, variables: Mapping[str, Any] | None = None) -> Any:
        """Answer a GraphQL query.

        Raises:
            RelayError: Dagster refuses it.
            OSError: nobody answers.
        """
        body = json.dumps({"query": query, "variables": dict(variables or {})}).encode()
        request = urllib.request.Request(  # noqa: S310 - our own
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            answer = json.load(response)
        if answer.get("errors"):
            raise RelayError(f"Dagster refuses: {answer['errors'][0]['message']}")
        return answer["data"]

    def sensors(self) -> list[str]:
        """The sensors' names.

        Raises:
            RelayError: the definitions do not load; the line that says why.
        """
        (entry,) = self.ask(_SENSORS)["workspaceOrError"]["locationEntries"]
        location = entry["locationOrLoadError"]
        if "repositories" not in location:
            causes = [
                str(location["message"]),
                *(one["error"]["message"] for one in location["errorChain"]),
            ]
            raise RelayError(causes[-1].strip())
        return [
            one["name"] for repository in location["repositories"] for one in repository["sensors"]
        ]

    def start_sensor(self, name: str) -> None:
        """Switch a sensor on.

        Raises:
            RelayError: there is none.
        """
        answer = self.ask(_START_SENSOR, {"selector": REPOSITORY | {"sensorName": name}})[
            "startSensor"
        ]
        if "message" in answer:
            raise RelayError(answer["message"])

    def stop(self) -> None:
        """End it with all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_SECONDS)
        # what it has not taken along
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running(
    folder: Path, port: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[Dagster]:
    """Run `dagster dev` in a folder with a relay.yaml; its database, logs and output (dagster.log) stay there.

    Args:
        port: where to serve; a free one if 0.

    Raises:
        RelayError: it does not start.
    """
    for name in _FILES:
        if not (ROOT / name).is_file():
            raise RelayError(f"{name} is not there", remedy="run it from a checkout of the project")
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder)
    port = port or _free_port()
    command = [sys.executable, "-m", "dagster", "dev", "--host", "127.0.0.1", "--port", str(port)]
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in {"DAGSTER_HOME", "RELAY_CATALOG"}
    }
    variables |= {"RELAY_CONFIG": str(folder / "relay.yaml"), **(environment or {})}
    with (folder / "dagster.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    dagster = Dagster(f"http://127.0.0.1:{port}", process)
    try:
        _wait(dagster, folder / "dagster.log")
        yield dagster
    finally:
        dagster.stop()


def _wait(dagster: Dagster, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            dagster.sensors()
        except OSError as error:
            if dagster.process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise RelayError(
                    f"Dagster does not start: {' '.join(last)}", remedy=f"see {log}"
                ) from error
            time.sleep(0.2)
        else:
            return


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])

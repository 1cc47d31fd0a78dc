"""`dagster dev` as a process, and its GraphQL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from relay_pipelines.demo.relay_process import variables_for
from relay_pipelines.errors import RelayError
from relay_pipelines.local_kafka.ports import free_ports

CONFIG_FOLDER = Path(__file__).parent
"""Where the dagster.yaml and workspace.yaml are that the project's own root links to."""

_FILES = ("dagster.yaml", "workspace.yaml")
_START_SECONDS = 90.0
_STOP_SECONDS = 20.0
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "relay_pipelines"}
_START_SENSOR = """mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
  __typename ... on PythonError { message } ... on SensorNotFoundError { message } } }"""
_CODE_SERVERS = """{ workspaceOrError { ... on Workspace { locationEntries {
  displayMetadata { key value } } } } }"""
_SENSORS = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
  __typename ... on PythonError { message errorChain { error { message } } } ... on
  RepositoryLocation { repositories { sensors { name } } } } } } } }"""


class Dagster:
    """A Dagster that serves on 127.0.0.1.

    Args:
        url: of its web server.
        process: `dagster dev`, which has a process group of its own.
        temporary: the folder of its processes' temporary files, for `answers`.
    """

    def __init__(self, url: str, process: subprocess.Popen[bytes], temporary: str = "") -> None:
        self.url = url
        self.process = process
        self._temporary = temporary

    def ask(self, query: str, variables: Mapping[str, Any] | None = None) -> Any:
        """Send a GraphQL query and return its data.

        Raises:
            RelayError: Dagster refuses it.
            OSError: the web server does not answer.
        """
        body = json.dumps({"query": query, "variables": dict(variables or {})}).encode()
        request = urllib.request.Request(  # noqa: S310 - always http
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            answer = json.load(response)
        if answer.get("errors"):
            raise RelayError(f"Dagster refuses: {answer['errors'][0]['message']}")
        return answer["data"]

    def answers(self) -> bool:
        """Whether it serves yet.

        Its code server has its socket in the folder that only this Dagster was given.

        Raises:
            RelayError: another process answers at its address.
        """
        try:
            entries = self.ask(_CODE_SERVERS)["workspaceOrError"]["locationEntries"]
            pairs = [pair for entry in entries for pair in entry["displayMetadata"]]
        except OSError:
            return False
        except (ValueError, LookupError, TypeError):
            pairs = [{"key": "socket", "value": "no answer of a Dagster"}]
        sockets = [pair["value"] for pair in pairs if pair["key"] == "socket"]
        if not all(Path(path).is_relative_to(self._temporary) for path in sockets):
            raise RelayError(
                f"another process answers at {self.url}",
                remedy="stop it, or choose another --port",
            )
        return bool(sockets)

    def sensors(self) -> list[str]:
        """Return the names of the sensors.

        Raises:
            RelayError: the definitions do not load; the message is the first cause.
        """
        (entry,) = self.ask(_SENSORS)["workspaceOrError"]["locationEntries"]
        location = entry["locationOrLoadError"]
        if "repositories" not in location:
            causes = [link["error"]["message"] for link in location["errorChain"]]
            raise RelayError([location["message"], *causes][-1].strip())
        repositories = location["repositories"]
        return [sensor["name"] for repository in repositories for sensor in repository["sensors"]]

    def start_sensor(self, name: str) -> None:
        """Switch a sensor on.

        Raises:
            RelayError: there is none of this name.
        """
        selector = REPOSITORY | {"sensorName": name}
        answer = self.ask(_START_SENSOR, {"selector": selector})["startSensor"]
        if "message" in answer:
            raise RelayError(answer["message"])

    def stop(self) -> None:
        """End it with all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_SECONDS)
        # the processes that it left
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running(
    folder: Path, port: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[Dagster]:
    """Run `dagster dev` in a folder with a relay.yaml; it writes only there.

    Args:
        folder: its dagster.yaml and workspace.yaml are used; the project's are copied if missing.
        port: of the web server; a free one if 0.
        environment: more variables.

    Raises:
        RelayError: it does not start.
    """
    for name in _FILES:
        if not (folder / name).exists():
            shutil.copy(CONFIG_FOLDER / name, folder)
    port = port or free_ports(1)[0]
    command = [sys.executable, "-m", "dagster", "dev", "--host", "127.0.0.1", "--port", str(port)]
    log = folder / "dagster.log"
    # not in the folder, because the path of a socket is short
    with ExitStack() as at_the_end, log.open("ab") as output:
        temporary = at_the_end.enter_context(
            tempfile.TemporaryDirectory(prefix="relay-", ignore_cleanup_errors=True)
        )
        variables = {**variables_for(folder), "TMPDIR": temporary, **(environment or {})}
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        dagster = Dagster(f"http://127.0.0.1:{port}", process, variables["TMPDIR"])
        at_the_end.callback(dagster.stop)
        _wait(dagster, log)
        yield dagster


def _wait(dagster: Dagster, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not dagster.answers():
        if dagster.process.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RelayError(f"Dagster does not start: {' '.join(last)}", remedy=f"see {log}")
        time.sleep(0.2)
    dagster.sensors()  # which says so if the definitions do not load

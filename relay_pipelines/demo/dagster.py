"""`dagster dev` as a process, and its GraphQL.

The command `relay` as a process that can be killed with all its descendants.
"""

from __future__ import annotations

import contextlib
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

from relay_pipelines.demo.spark_cluster import LOOPBACK
from relay_pipelines.errors import RelayError
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.spark.defaults import SMALL_JVM

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


_RELAY = [sys.executable, "-c", "from relay_pipelines.cli import main; raise SystemExit(main())"]
_POLL_SECONDS = 0.02
# they would lead the demo to the user's own clusters, topics and Dagster
_OF_THE_USER = {"DAGSTER_HOME", "RELAY_CATALOG", "RELAY_CONFIG", "RELAY_CONFIG_YAML"}


def variables_for(folder: Path) -> dict[str, str]:
    """Return the environment of a process that uses the relay.yaml of the demo's folder."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_THE_USER}
    return kept | {"RELAY_CONFIG": str(folder / "relay.yaml")}


class RelayProcess:
    """One `relay` process with its Spark; `close` kills what is left of them.

    Args:
        folder: where relay.yaml is, and where the process and Spark put their temporary files.
        arguments: of `relay`.
        log: name of the output file in the folder.
        width: columns of the output.
    """

    def __init__(self, folder: Path, arguments: list[str], log: str, width: int) -> None:
        self.shown = " ".join(["relay", *arguments])
        self._log = folder / log
        temporary = folder / "tmp"
        java_options = os.environ.get("SPARK_SUBMIT_OPTS", "")
        variables = {
            "COLUMNS": str(width),
            # the folder's removal also removes the files of a killed Spark
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
            **LOOPBACK,
            "SPARK_SUBMIT_OPTS": f"{java_options} {SMALL_JVM} -Djava.io.tmpdir={temporary}",
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*_RELAY, *arguments],
                cwd=folder,
                env=variables_for(folder) | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # its descendants are found by the session, and Ctrl-C reaches only the demo
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether the process itself is alive."""
        return self._process.poll() is None

    @property
    def output(self) -> list[str]:
        """The lines that it has written."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()]

    def check(self) -> None:
        """Wait for the process to end.

        Raises:
            RelayError: it failed; the message quotes its error.
        """
        code = self._process.wait()
        if code:
            errors = [line for line in self.output if line.startswith("error")]
            raise RelayError(
                f"`{self.shown}` ended with exit code {code}: {[*errors, 'no error message'][0]}",
                remedy=f"run the demo with --keep and see {self._log.name}",
            )

    def close(self) -> None:
        """Kill the process and all its descendants with SIGKILL."""
        self._process.kill()
        self._process.wait()
        while descendants := [pid for pid in _pids() if _session(pid) == self._process.pid]:
            for pid in descendants:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def _pids() -> list[int]:
    if Path("/proc/self").exists():
        names = [entry.name for entry in Path("/proc").iterdir()]
    else:
        ps = ["ps", "-A", "-o", "pid="]
        names = subprocess.run(ps, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603 - macOS
    return [int(name) for name in names if name.isdigit()]


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None

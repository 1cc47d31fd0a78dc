"""The command `relay` as a process that can be killed with all its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from relay_pipelines.errors import RelayError

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
            "SPARK_SUBMIT_OPTS": f"{java_options} -Djava.io.tmpdir={temporary}",
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

"""The command a user types, `relay`, as a process of its own: started, waited for, killed; nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from relay_pipelines.errors import RelayError

_GONE_SECONDS = 15.0
_POLL_SECONDS = 0.02


class Command:
    """One `relay` process with all its descendants, in a session of its own; its output goes to a file.

    Args:
        folder: where relay.yaml is, and where the process and Spark put their temporary files.
        arguments: behind `relay`.
        log: name of the output file in the folder.
        width: columns of the output.
    """

    def __init__(self, folder: Path, arguments: list[str], log: str, width: int) -> None:
        self.shown = " ".join(["relay", *arguments])
        self.log = folder / log
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "RELAY_CONFIG"}
        environment |= {
            "COLUMNS": str(width),
            # what a killed Spark leaves behind goes with the folder
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
            "SPARK_SUBMIT_OPTS": f"{environment.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={temporary}",
        }
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*_relay(), *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # all its descendants are found by it, and Ctrl-C in the terminal reaches the demo
                # alone
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process, and of its session."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process itself has not ended."""
        return self._process.poll() is None

    @property
    def output(self) -> list[str]:
        """The lines it wrote so far."""
        return [
            line.rstrip()
            for line in self.log.read_text(errors="replace").splitlines()
            if line.strip()
        ]

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        return self._process.wait()

    def check(self) -> None:
        """Wait for its end, and refuse to go on when it failed.

        Raises:
            RelayError: with what it said last.
        """
        code = self.wait()
        if code:
            said = next(
                (line for line in reversed(self.output) if line.startswith("error")),
                "it said nothing",
            )
            raise RelayError(
                f"`{self.shown}` ended with exit code {code}: {said}",
                remedy=f"with --keep its output stays in {self.log.name}",
            )

    def kill(self) -> None:
        """Kill the process alone, with SIGKILL; its Spark is left to notice."""
        self._process.kill()
        self._process.wait()

    def descendants(self) -> list[int]:
        """Ids of the processes of its session that still are."""
        return [pid for pid in _pids() if _session(pid) == self.pid]

    def wait_until_gone(self, seconds: float = _GONE_SECONDS) -> bool:
        """Wait until no process of its session is left; False if some still are."""
        deadline = time.monotonic() + seconds
        while self.descendants():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def end(self) -> None:
        """Kill whatever of it is left."""
        if self._process.poll() is None:
            self.kill()
        while left := self.descendants():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def _relay() -> list[str]:
    script = Path(sys.executable).with_name("relay")
    return (
        [str(script)]
        if script.exists()
        else [sys.executable, "-c", "import relay_pipelines.cli as c; raise SystemExit(c.main())"]
    )


def _pids() -> Iterator[int]:
    if Path("/proc/self").exists():
        names = [entry.name for entry in Path("/proc").iterdir()]
    else:
        names = subprocess.run(
            ["ps", "-A", "-o", "pid="],  # noqa: S607 - wherever the system has it
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    return (int(name) for name in names if name.isdigit())


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None

"""One process on this machine under its guardian: start, stop, kill, pause.

The error in a process's log.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from relay_pipelines import java
from relay_pipelines.local_kafka import guardian
from relay_pipelines.local_kafka.ports import LocalKafkaError, PortTakenError, refuse_taken


class LocalProcess:
    """A server process; `start` after `stop` or `kill` uses the same port and data.

    Args:
        name: of messages.
        port: where it serves on 127.0.0.1.
        command: starts it.
        log: file to which the process appends its output.
        started: what it writes to its log once it serves: at its port, a stranger might answer.
        start_timeout_seconds: how long the start may take.
        environment: more variables.
    """

    def __init__(
        self,
        name: str,
        port: int,
        command: Sequence[str],
        log: Path,
        started: re.Pattern[bytes],
        start_timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.log = log
        self._command = command
        self._started = started
        self._start_timeout_seconds = start_timeout_seconds
        self._environment = dict(environment or {})
        self._guardian: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._log_start = 0

    def __repr__(self) -> str:
        pid = self._pid if self.running else None
        return f"{type(self).__name__}({self.name!r}, port={self.port}, pid={pid})"

    @property
    def pid(self) -> int:
        """The process id of the server while it runs."""
        if not self.running:
            raise LocalKafkaError(f"{self} is not running", remedy="start it first")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._guardian is not None and self._guardian.poll() is None

    def start(self) -> None:
        """Start the process and wait until it serves.

        Raises:
            LocalKafkaError: it ended, or did not serve in time; the message quotes its log.
        """
        self.launch()
        self.wait_until_serving()

    def launch(self) -> None:
        """Start the process without waiting, because servers may wait for each other."""
        if self.running:
            raise LocalKafkaError(f"{self} is already running")
        refuse_taken(self.port, f"stop the process there, and start {self.name} again")
        # the guardian needs only the standard library and starts in a few milliseconds
        watched = [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), *self._command]
        self._release()
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            # in a session of its own, so that Ctrl-C in the terminal reaches only the parent
            self._guardian = subprocess.Popen(  # noqa: S603 - our own guardian
                watched,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                env=os.environ | self._environment,
                # a JVM that crashes leaves its report here
                cwd=self.log.parent,
            )
        pid = self._guardian.stdout.readline() if self._guardian.stdout else b""
        self._pid = int(pid or 0)

    def wait_until_serving(self) -> None:
        """Wait until this process serves."""
        deadline = time.monotonic() + self._start_timeout_seconds
        while not self._serves():
            if self._ended_within(0.05):
                raise self._failure("ended while starting")
            if time.monotonic() > deadline:
                failure = self._failure(f"did not serve within {self._start_timeout_seconds:g} s")
                self.kill()
                raise failure

    def stop(self, timeout_seconds: float = 20.0) -> None:
        """Shut it down cleanly; kill it if that takes too long."""
        self.request_stop()
        if not self._ended_within(timeout_seconds):
            self._order(b"K")
        self._release()

    def request_stop(self) -> None:
        """Send SIGTERM without waiting."""
        self._order(b"C")
        self._order(b"T")

    def kill(self) -> None:
        """Kill it with SIGKILL, paused or not, and wait for its end."""
        self._order(b"K")
        self._release()

    def kill_with_children(self) -> None:
        """Kill it as if its machine had died, with all that it has started."""
        if self._guardian is not None:
            self._guardian.kill()
        self._release()

    def pause(self) -> None:
        """Freeze it with SIGSTOP: its connections stay open, but it answers nothing."""
        self._order(b"S")

    def resume(self) -> None:
        """Resume it."""
        self._order(b"C")

    def _serves(self) -> bool:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return self._started.search(log.read()) is not None

    def _order(self, order: bytes) -> None:
        """Have the guardian send a signal and wait until it has, unless the process has ended."""
        if self._guardian and self._guardian.stdin and self._guardian.stdout:
            with contextlib.suppress(BrokenPipeError):
                self._guardian.stdin.write(order)
                self._guardian.stdout.read(1)

    def _ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._guardian is None or self._guardian.wait(seconds) is not None
        return False

    def _release(self) -> None:
        """Wait for the end of a process that got its signal, and close the pipes."""
        if self._guardian is None:
            return
        if self._guardian.wait() < 0:
            # the guardian itself was killed; what it watched is left in its process group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._guardian.pid, signal.SIGKILL)
        for pipe in (self._guardian.stdin, self._guardian.stdout):
            if pipe:
                pipe.close()
        self._guardian = None

    def _failure(self, what: str) -> LocalKafkaError:
        said = tail(self.log, self._log_start)
        kind = PortTakenError if "Address already in use" in said else LocalKafkaError
        return kind(
            f"{self.name} at 127.0.0.1:{self.port} {what}: {said}",
            remedy=f"its log is {self.log}",
        )


def tail(log: Path, start: int) -> str:
    """Return the last error after byte `start`, else the last line; no line of a stack trace."""
    with log.open("rb") as file:
        file.seek(start)
        said = file.read().decode(errors="replace")
    return java.errors_in(said, 1) or "its log is empty"

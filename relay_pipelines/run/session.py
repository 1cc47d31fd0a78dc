"""The Spark session of a command, or of a program that uses this package.

Ctrl-C and SIGTERM stop a copy between two commits, and everything else at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Spark


class Session:
    """The Spark session, which starts with its first use.

    Args:
        stop_signal: the signals of a command; None in a program, which handles its own.
        purpose: what it is for, such as the mirror; in the name that a cluster shows.
        verbose: whether Spark may print.
    """

    def __init__(
        self,
        spark: Spark,
        stop_signal: StopSignal | None = None,
        *,
        purpose: str = "",
        verbose: bool = False,
    ) -> None:
        self.stop_signal = stop_signal
        self._spark = spark
        self._purpose = purpose
        self._verbose = verbose
        self._session: Any = None

    def stopped(self) -> bool:
        """Whether a signal has asked the command to stop."""
        return self.stop_signal is not None and self.stop_signal()

    def deferring(self) -> AbstractContextManager[object]:
        """Let a command's signal stop what runs in this context at committed checkpoints."""
        return self.stop_signal.deferred() if self.stop_signal else nullcontext()

    def __call__(self) -> Any:
        """Return the session; start it if there is none, or if it no longer answers."""
        from relay_pipelines.spark.session import connect, is_alive

        if self._session is not None and not is_alive(self._session, self._spark.remote):
            self.stop()
        if self._session is None:
            # an interrupted start would leave a JVM that never ends
            with self.stop_signal.shielded() if self.stop_signal else nullcontext():
                self._session = connect(
                    *(self._spark.master, self._spark.remote, self._spark.conf),
                    purpose=self._purpose,
                    verbose=self._verbose,
                )
        return self._session

    def stop(self) -> None:
        """End the session if there is one."""
        if self._session is not None:
            from relay_pipelines.spark.session import end

            end(self._session)
            self._session = None


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Whether the run was asked to stop, and when a signal may interrupt it.

    The first signal within `deferred`, and every signal within `shielded`, is only recorded; any
    other raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._requested = False
        self._deferring = False
        self._shielding = False

    def __call__(self) -> bool:
        """Whether a signal was received."""
        return self._requested

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle the signals, on the main thread only; restore the previous handlers at the end."""
        previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Record the first signal instead of raising; the run polls it and stops where safe."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Raise only before or after the block, for a signal received before or within it.

        Installs the handlers again: a SparkContext that starts on the main thread replaces them.
        """
        if self._requested:
            raise KeyboardInterrupt
        self._shielding = True
        try:
            yield
        finally:
            self._shielding = False
            if threading.current_thread() is threading.main_thread():
                for number in _SIGNALS:
                    signal.signal(number, self._receive)
            # also in place of an error: the signal may have ended what the block has started
            if self._requested:
                raise KeyboardInterrupt

    def _receive(self, _signal: int, _frame: FrameType | None) -> None:
        again, self._requested = self._requested, True
        if not self._shielding and (again or not self._deferring):
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class StoppableClock:
    """A clock for a run that defers signals: it no longer waits once the run is asked to stop."""

    clock: Clock
    stop: Callable[[], bool]

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases."""
        return self.clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self.clock.now_ms()

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            KeyboardInterrupt: the run was asked to stop.
        """
        if self.stop():
            raise KeyboardInterrupt
        self.clock.sleep(seconds)

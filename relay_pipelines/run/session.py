"""The Spark session of a command, or of a program that uses this package."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Spark


class Session:
    """The Spark session, which starts with its first use.

    Args:
        stop_signal: the signals of a command; None in a program, which handles its own.
        verbose: whether Spark may print.
    """

    def __init__(
        self, spark: Spark, stop_signal: StopSignal | None = None, *, verbose: bool = False
    ) -> None:
        self.stop_signal = stop_signal
        self._spark = spark
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
        if self._session is not None:
            from relay_pipelines.spark.session import is_alive

            if not is_alive(self._session, self._spark.remote):
                self.stop()
        if self._session is None:
            from relay_pipelines.spark.session import connect

            # an interrupted start would leave a JVM that never ends
            with self.stop_signal.shielded() if self.stop_signal else nullcontext():
                self._session = connect(
                    self._spark.master, self._spark.remote, self._spark.conf, verbose=self._verbose
                )
        return self._session

    def stop(self) -> None:
        """End the session if there is one."""
        if self._session is not None:
            from relay_pipelines.spark.session import end

            end(self._session)
            self._session = None

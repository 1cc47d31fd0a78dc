"""The Spark session of a command."""

from __future__ import annotations

from typing import Any

from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Spark


class Session:
    """The Spark session, which starts with its first use."""

    def __init__(self, spark: Spark, stop_signal: StopSignal, *, verbose: bool) -> None:
        self.stop_signal = stop_signal
        self._spark = spark
        self._verbose = verbose
        self._session: Any = None

    def __call__(self) -> Any:
        """Return the session; start it if there is none, or if it no longer answers."""
        if self._session is not None:
            from relay_pipelines.spark.session import is_alive

            if not is_alive(self._session, self._spark.remote):
                self.stop()
        if self._session is None:
            from relay_pipelines.spark.session import connect

            # an interrupted start would leave a JVM that never ends
            with self.stop_signal.shielded():
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

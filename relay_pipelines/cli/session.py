"""The Spark session of a command."""

from __future__ import annotations

from typing import Any

from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Spark


class Session:
    """The Spark session, started when first asked for."""

    def __init__(self, spark: Spark, stop: StopSignal, *, verbose: bool) -> None:
        self.asked_to_stop = stop
        self._spark = spark
        self._verbose = verbose
        self._session: Any = None

    def __call__(self) -> Any:
        """Return the session."""
        if self._session is None:
            from relay_pipelines.spark.session import connect

            # cut short, it would leave a JVM behind that never ends
            with self.asked_to_stop.shielded():
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

"""How a Dagster run that copies is stopped: at the next commit."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from relay_pipelines.resources import SparkResource
from relay_pipelines.run.run import never
from relay_pipelines.run.signals import StopSignal


@contextmanager
def stop_signal(
    pyspark: SparkResource,
) -> Iterator[tuple[Callable[[], bool], Callable[[], Any]]]:
    """Defer signals to the next commit; yield what asks for a stop and what starts Spark.

    Python delivers signals to the main thread only; on any other thread a run cannot be stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never, lambda: pyspark.spark_session
        return
    stop = StopSignal()

    def session() -> Any:
        with stop.shielded():
            return pyspark.spark_session

    with stop.heard(), stop.deferred():
        yield stop, session

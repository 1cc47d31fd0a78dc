"""How a Dagster run that copies is stopped at the next commit, and how others see that it lives."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import dagster as dg

from relay_pipelines.lanes import turns
from relay_pipelines.lanes.run_log import logged_start
from relay_pipelines.resources import SparkResource
from relay_pipelines.run.run import never
from relay_pipelines.run.signals import StopSignal

Event = TypeVar("Event")
Stop = Callable[[], bool]
Session = Callable[[], Any]


def stoppable(
    context: dg.OpExecutionContext,
    pyspark: SparkResource,
    body: Callable[[Stop, Session], Iterator[Event]],
) -> Iterator[Event]:
    """Yield the events of an op, and defer signals to the next commit.

    Python delivers signals to the main thread only; on any other thread a run cannot be stopped.

    Args:
        body: gets what asks for a stop, and what starts Spark; yields the events.
    """
    clock = pyspark.kafka.clock
    with turns.heartbeat(context):
        if threading.current_thread() is not threading.main_thread():
            start = logged_start(lambda: pyspark.spark_session, context.log, clock)
            yield from body(never, start)
            return
        stop = StopSignal()

        def session() -> Any:
            with stop.shielded():
                return pyspark.spark_session

        events = body(stop, logged_start(session, context.log, clock))
        with stop.deferred():
            while True:
                # Dagster installs its own handlers whenever it resumes an op
                with stop.heard():
                    try:
                        event = next(events)
                    except StopIteration:
                        return
                yield event

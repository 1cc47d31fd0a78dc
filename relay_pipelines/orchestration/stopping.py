"""How a Dagster run that copies is stopped at the next commit, or fails for good."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from relay_pipelines.orchestration import heartbeat, naming, run_tags
from relay_pipelines.orchestration.run_log import logged_start, without_noise
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.resources import SparkResource
from relay_pipelines.run.run import never
from relay_pipelines.run.session import StopSignal
from relay_pipelines.spark.session import first_line

Event = TypeVar("Event")
Stop = Callable[[], bool]
Session = Callable[[], Any]

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_DATABASE_SECONDS = 3600.0
"""How long a run waits for Dagster's database to say that it has failed; others give it up then."""


def forbid_retries(context: dg.OpExecutionContext) -> None:
    """Keep Dagster, which looks at a tag alone, from retrying the run if it fails."""
    run_tags.add(context.instance, context.run_id, {naming.TAG_MAX_RETRIES: "0"})


def final_failure(context: dg.OpExecutionContext, what: str) -> dg.Failure:
    """Return a failure that another attempt would only repeat, such as an operator's mistake."""
    forbid_retries(context)
    return dg.Failure(what, allow_retries=False)


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
    without_noise(context.log)
    tags = partial(run_tags.add, context.instance, context.run_id)
    with (
        heartbeat.beating(context.run_id, tags, context.log) as heart,
        _database_errors_in_one_line(context, clock),
        _ending_as_reported(context),
    ):
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
                heart.move()
                yield event


@contextmanager
def _ending_as_reported(context: dg.OpExecutionContext) -> Iterator[None]:
    """Let a run that others have given up, or that the operator has ended by force, end as that."""
    yield
    run = context.instance.get_run_by_id(context.run_id)
    if run is None or not run.is_finished:
        return
    if run.status is dg.DagsterRunStatus.FAILURE:
        raise dg.Failure(
            f"this run was given up meanwhile: {heartbeat.GIVEN_UP}; what it committed stays, and"
            " another run goes on",
            allow_retries=False,
        )
    raise dg.DagsterExecutionInterruptedError


@contextmanager
def _database_errors_in_one_line(context: dg.OpExecutionContext, clock: Clock) -> Iterator[None]:
    """Say what happened when Dagster's database is away; its own error has fifty lines.

    The run ends when the database takes writes again: only then can Dagster store that it failed.
    A code server that cannot store that a run has died looks after its other runs no more.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SQLAlchemyError):
            cause = cause.__cause__
        if cause is None:
            raise
        why = first_line(getattr(cause, "orig", None) or cause)
        line = (
            f"Dagster's database fails: {why}; start it, or let it take writes: what is committed"
            " stays, and the planner's next run copies the rest"
        )
        _LOG.error(line)
        until = clock.monotonic() + _DATABASE_SECONDS
        while not _takes_writes(context) and clock.monotonic() < until:
            clock.sleep(_LOOK_SECONDS)
        raise dg.Failure(line) from None


def _takes_writes(context: dg.OpExecutionContext) -> bool:
    try:
        heartbeat.beat(context)
    except dg.DagsterRunNotFoundError:  # another process has deleted it
        return True
    except Exception:  # noqa: BLE001 - of any kind of database
        return False
    return True

"""The command `run`: one mirror after the other, one Spark session for all, started when there is something to copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relay_pipelines.cli.context import Invocation, chosen
from relay_pipelines.cli.signals import Stop
from relay_pipelines.console import tables
from relay_pipelines.console.progress import progress
from relay_pipelines.console.words import count, plural, say_error, say_warning, stderr, stdout
from relay_pipelines.copy.clock import SystemClock
from relay_pipelines.driver import planning, survey, topics
from relay_pipelines.driver.planning import RunPlan
from relay_pipelines.driver.result import INTERRUPTED, RunResult
from relay_pipelines.driver.run import Observer
from relay_pipelines.driver.run import run as copy
from relay_pipelines.settings import Mirror, Spark


def run(invocation: Invocation, names: Sequence[str], topic: str | None) -> int:
    """Copy everything that is new and return the gravest exit code."""
    settings = invocation.settings()
    mirrors = chosen(settings, names)
    stop = Stop()
    session = _Session(settings.spark, stop, verbose=invocation.debug)
    with stop.heard():
        try:
            for name, mirror in mirrors.items():
                with invocation.tolerating(name):
                    planned = planning.plan(survey.take(name, mirror, SystemClock(), only_topic=topic), mirror.start)
                    result = _copy(planned, mirror, session, [], stop)
                    _say(planned, result)
                    invocation.worsen(result.exit_code)
                if stop():
                    break
        except KeyboardInterrupt:
            invocation.worsen(INTERRUPTED)
            say_error("interrupted; what is committed stays, run again to go on")
        finally:
            session.stop()
    return invocation.exit_code


def _copy(planned: RunPlan, mirror: Mirror, session: Callable[[], Any], observers: Sequence[Observer], stop: Stop) -> RunResult:
    name = planned.survey.mirror
    for conflict in topics.conflicts(planned.survey):
        say_warning(f"{name}: {conflict}")
    with progress(name, stderr()) as watcher, stop.deferred():
        return copy(planned, mirror, session, [watcher, *observers], SystemClock(), stop=stop)


def _say(planned: RunPlan, result: RunResult) -> None:
    name = result.mirror
    for failure in result.failures:
        say_error(f"{name}: {failure}")
    if result.topics:
        stdout().print(tables.summary(result))
    if result.interrupted:
        total = sum(planned.offsets(window) for window in planned.windows)
        done = sum(totals.offsets for totals in result.topics.values())
        say_error(
            f"{name}: interrupted, stopped at committed checkpoints: {count(done)} of {plural(total, 'record')} are copied;"
            " run again to go on"
        )
    elif not planned.windows and not result.failures:
        stdout().print(f"{name}: nothing new in {plural(len(planned.survey.destinations), 'topic')}")
    elif not result.topics and not result.failures:
        stdout().print(f"{name}: nothing left to copy: another run has copied it")


class _Session:
    """The Spark session, started when first asked for."""

    def __init__(self, spark: Spark, stop: Stop, *, verbose: bool) -> None:
        self._spark = spark
        self._stop = stop
        self._verbose = verbose
        self._session: Any = None

    def __call__(self) -> Any:
        """Return the session."""
        if self._session is None:
            from relay_pipelines.spark.session import connect

            with self._stop.immediate():
                self._session = connect(self._spark.master, self._spark.remote, self._spark.conf, verbose=self._verbose)
                self._stop.listen()
        return self._session

    def stop(self) -> None:
        """End the session if there is one."""
        if self._session is not None:
            from relay_pipelines.spark.session import end

            end(self._session)
            self._session = None

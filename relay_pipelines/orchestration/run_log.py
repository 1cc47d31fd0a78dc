"""Logs the phases of a run to its Dagster log, and its progress every few seconds."""

import logging
import sys
from collections.abc import Callable
from typing import Any

from relay_pipelines.output.formatting import plural, seconds, size, throttled
from relay_pipelines.output.progress import Lines
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan

_EVERY_SECONDS = 5.0


class RunLog(Lines):
    """Logs how long each phase of a window took, and the progress of long ones.

    Args:
        surveyed_seconds: how long the snapshot of both clusters took.
        brief: for windows that follow each other: one line when a window is done.
        held: how many topic-partitions are held back.
    """

    def __init__(
        self, log: logging.Logger, surveyed_seconds: float, *, brief: bool = False, held: int = 0
    ) -> None:
        super().__init__(log.info, _EVERY_SECONDS, announce=not brief)
        self._log = log
        self._brief = brief
        self._held = f"{plural(held, 'topic-partition')} held back; " if held else ""
        self._surveyed_seconds = surveyed_seconds

    def begin(self, plan: RunPlan) -> None:
        """Log what the run will copy."""
        if not self._brief:
            self._log.info("survey of both clusters: %s", seconds(self._surveyed_seconds))
        super().begin(plan)
        for takeover in plan.takeovers:
            log_and_print(self._log, str(takeover), logging.WARNING)
        for superseded in sorted(plan.superseded):
            self._log.warning(
                "%s is superseded: a loss was accepted after this window was planned, and its"
                " offsets mean other records now; later windows copy those",
                superseded,
            )
        if not plan.planned and not plan.superseded:
            self._log.info(
                "nothing left to copy: the checkpoints are at or after the end of the window"
            )
        for loss in plan.held if not self._brief else ():  # a session has said so
            self._log.error("%s", loss)

    def submitted(self, application: str) -> None:
        """Log where Spark shows the job."""
        self._log.info("Spark application %s", application)

    def end(self, result: RunResult) -> None:
        """Log what the run copied."""
        for difference in result.reconfigured:
            self._log.info("%s", difference.done)
        if not self._brief:
            duration = seconds(result.copying_seconds)
            self._log.info("copied %s, in %s%s", _amount(result), duration, _throttled(result))

    def recounted(
        self, window: str, topics: int, rounds: int, result: RunResult, recount_seconds: float
    ) -> None:
        """Log the end of a window.

        Args:
            window: its key.
            topics: how many it has.
            rounds: how many this run has copied.
            result: of all of them.
        """
        if not self._brief:
            self._log.info("recount: %s", seconds(recount_seconds))
            return
        several = f" in {plural(rounds, 'round')}" if rounds > 1 else ""
        log_and_print(
            self._log,
            f"{self._held}window {window}: {_amount(result)} of {plural(topics, 'topic')}"
            f"{several};"
            f" survey {seconds(self._surveyed_seconds)},"
            f" preparation {seconds(result.seconds - result.copying_seconds)},"
            f" copy {seconds(result.copying_seconds)}, recount {seconds(recount_seconds)}"
            f"{_throttled(result)}",
        )


def log_and_print(log: logging.Logger, line: str, level: int = logging.INFO) -> None:
    """Log a line of a session, and write it to stdout, which has no others.

    Between the events of all topics nobody finds it; the run's page shows stdout by itself.
    """
    log.log(level, line)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def without_noise(log: logging.Logger) -> None:
    """Leave out Dagster's line about checks without a result of their own: it is no news."""
    log.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return "did not yield or return expected outputs" not in record.getMessage()


def logged_start(
    session: Callable[[], Any], log: logging.Logger, clock: Clock
) -> Callable[[], Any]:
    """Return a function that returns the Spark session, and logs how long it took to start."""
    known: Any = None

    def start() -> Any:
        nonlocal known
        began = clock.monotonic()
        current = session()
        if current is not known:
            why = "; the one before no longer answers" if known else ""
            log.info("Spark's start: %s%s", seconds(clock.monotonic() - began), why)
        known = current
        return current

    return start


def _throttled(result: RunResult) -> str:
    waits = throttled(result.throttled_seconds)
    return f"; {waits}" if waits else ""


def _amount(result: RunResult) -> str:
    return f"{plural(result.records, 'record')}, {size(result.size_bytes)}"

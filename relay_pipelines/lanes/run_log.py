"""Logs the phases of a run to its Dagster log, and its progress every few seconds."""

import logging
from collections.abc import Callable
from typing import Any

from relay_pipelines.console.formatting import plural, seconds, size
from relay_pipelines.console.progress import Lines
from relay_pipelines.lanes.window_run import WindowReport
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan

_EVERY_SECONDS = 5.0


class RunLog(Lines):
    """Logs how long each phase of a window took, and the progress of long ones.

    Args:
        surveyed_seconds: how long the snapshot of both clusters took.
        brief: for windows that follow each other: one line when a window is done.
    """

    def __init__(
        self, log: logging.Logger, surveyed_seconds: float, *, brief: bool = False
    ) -> None:
        super().__init__(log.info, _EVERY_SECONDS, announce=not brief)
        self._log = log
        self._brief = brief
        self._surveyed_seconds = surveyed_seconds

    def begin(self, plan: RunPlan) -> None:
        """Log what the run will copy."""
        if not self._brief:
            self._log.info("survey of both clusters: %s", seconds(self._surveyed_seconds))
        super().begin(plan)
        for line in plan.takeovers:
            self._log.warning("%s", line)
        for superseded in plan.superseded:
            self._log.warning(
                "%s is superseded: a loss was accepted after this window was planned, and its"
                " offsets mean other records now; later windows copy those",
                superseded,
            )
        if not plan.windows and not plan.superseded:
            self._log.info(
                "nothing left to copy: the checkpoints are at or after the end of the window"
            )
        for loss in plan.data_losses:
            self._log.error("%s", loss)

    def end(self, result: RunResult) -> None:
        """Log what the run copied."""
        for difference in result.reconfigured:
            self._log.info("%s", difference.done)
        if not self._brief:
            self._log.info("copied %s, in %s", _amount(result), seconds(result.copying_seconds))

    def recounted(self, report: WindowReport) -> None:
        """Log the end of a window."""
        if not self._brief:
            self._log.info("recount: %s", seconds(report.recount_seconds))
            return
        result = report.result
        self._log.info(
            "window %s: %s of %s; survey %s, preparation %s, copy %s, recount %s",
            report.frozen.key,
            _amount(result),
            plural(len(report.topics), "topic"),
            seconds(self._surveyed_seconds),
            seconds(result.seconds - result.copying_seconds),
            seconds(result.copying_seconds),
            seconds(report.recount_seconds),
        )


def logged_start(
    session: Callable[[], Any], log: logging.Logger, clock: Clock
) -> Callable[[], Any]:
    """Return a function that returns the Spark session, and logs how long it took to start."""
    known: Any = None

    def start() -> Any:
        nonlocal known
        began = clock.monotonic()
        found = session()
        if found is not known:
            log.info("Spark's start: %s", seconds(clock.monotonic() - began))
        known = found
        return found

    return start


def _amount(result: RunResult) -> str:
    return f"{plural(result.records, 'record')}, {size(result.size_bytes)}"

"""Logs the progress of a run to its Dagster log, one line every few seconds."""

import logging
from collections.abc import Sequence

from relay_pipelines.console.formatting import count, seconds, size
from relay_pipelines.model import LedgerEntry
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan

_EVERY_SECONDS = 5.0
_POLL_SECONDS = 0.5
_TOPICS_SHOWN = 3


class RunLog:
    """Observes a run and logs its progress, at most every five seconds."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._clock = SystemClock()
        self._logged_at = self._clock.monotonic()
        self._started_at: float | None = (
            None  # at the first commit, to leave out the start of Spark
        )
        self._total = self._done = 0

    def begin(self, plan: RunPlan) -> None:
        """Log what the run will copy."""
        self._total = sum(plan.offsets(window) for window in plan.windows)
        shown = ", ".join(window.topic for window in plan.windows[:_TOPICS_SHOWN])
        topics = shown + (" and more" if len(plan.windows) > _TOPICS_SHOWN else "")
        if plan.windows:
            self._log.info(
                "copying %s records of %s from %s",
                count(self._total),
                topics,
                plan.snapshot.node.name,
            )
        else:
            self._log.info(
                "nothing left to copy: the checkpoints are at or after the end of the window"
            )
        for loss in plan.data_losses:
            self._log.error("%s", loss)

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Log the progress of the copy."""
        now = self._clock.monotonic()
        if entries and self._started_at is None:
            self._started_at = now - _POLL_SECONDS
        self._done += sum(len(entry.source) for entry in entries)
        if now - self._logged_at < _EVERY_SECONDS or self._started_at is None:
            return
        self._logged_at = now
        rate = self._done / (now - self._started_at)
        left = (self._total - self._done) / rate
        share = self._done / max(1, self._total)
        self._log.info(
            "%s of %s records (%.0f %%), %s a second, %s left",
            count(self._done),
            count(self._total),
            100 * share,
            count(rate),
            seconds(max(0.0, left)),
        )

    def end(self, result: RunResult) -> None:
        """Log what the run copied."""
        for difference in result.reconfigured:
            self._log.info("%s", difference.done)
        self._log.info(
            "copied %s records, %s, in %s, of which starting Spark and planning took %s",
            count(result.records),
            size(result.size_bytes),
            seconds(result.seconds),
            seconds(result.seconds - result.copying_seconds),
        )

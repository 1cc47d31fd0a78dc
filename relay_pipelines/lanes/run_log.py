"""Logs the progress of a run to its Dagster log, one line every few seconds."""

import logging

from relay_pipelines.console.formatting import count, seconds, size
from relay_pipelines.console.progress import Lines
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan

_EVERY_SECONDS = 5.0


class RunLog(Lines):
    """Observes a run and logs its progress, at most every five seconds."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(log.info, _EVERY_SECONDS)
        self._log = log

    def begin(self, plan: RunPlan) -> None:
        """Log what the run will copy."""
        super().begin(plan)
        if not plan.windows:
            self._log.info(
                "nothing left to copy: the checkpoints are at or after the end of the window"
            )
        for loss in plan.data_losses:
            self._log.error("%s", loss)

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

"""The copy of a Spark task without Spark: the cost of `copy_ranges` itself."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.values import Case, Cost
from benchmarks.workers import run_together
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyJob, CopyRange, Status


@dataclass(frozen=True, slots=True)
class CopyWork:
    """One task."""

    job: CopyJob
    range: CopyRange

    def run(self) -> None:
        """Copy one range."""
        for outcome in copy_ranges(self.job, [self.range]):
            if outcome.status is not Status.DONE:
                raise RelayError(outcome.error)


def works(case: Case) -> list[CopyWork]:
    """One task per topic-partition, of a new mirror, so that there are no checkpoints."""
    job = CopyJob(case.attempt, case.attempt, case.source, case.destination)
    return [CopyWork(job, CopyRange(source, destination)) for source, destination in case.pairs]


class RelayTask:
    """One process per topic-partition."""

    name = "relay, tasks alone"
    guarantee = "exactly once"
    inputs: tuple[str, ...] = ()
    copies = True

    def copy(self, case: Case) -> Cost:
        """Run the tasks in parallel."""
        return run_together(works(case), case.limit_seconds)

    def close(self) -> None:
        """Do nothing: no process remains after a copy."""

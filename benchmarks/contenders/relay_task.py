"""The copy of a Spark task without Spark: the cost of `copy_ranges` itself."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contenders.contract import Contender
from benchmarks.inputs import all_but
from benchmarks.values import TASKS, Case, Cost
from benchmarks.workers import run_together
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyJob, CopyOptions, CopyRange, RecordPolicy, Status
from relay_pipelines.plan.owners import with_owners


@dataclass(frozen=True, slots=True)
class CopyWork:
    """One task."""

    job: CopyJob
    ranges: list[CopyRange]

    def run(self) -> None:
        """Copy the ranges."""
        for outcome in copy_ranges(self.job, self.ranges):
            if outcome.status is not Status.DONE:
                raise RelayError(outcome.error)


def works(
    case: Case, record_policy: RecordPolicy | None = None, options: CopyOptions | None = None
) -> list[CopyWork]:
    """The tasks of a new mirror's first run, without checkpoints.

    Each task gets every second topic-partition, or every second group of those that share a
    transactional id.
    """
    policy = record_policy or RecordPolicy()
    job = CopyJob(
        case.attempt, case.attempt, case.source, case.destination, options or CopyOptions()
    )
    ranges = [
        CopyRange(source, destination, case.input.max_message_bytes, record_policy=policy)
        for source, destination in case.pairs
    ]
    sizes_bytes = {extent.range.topic_partition: extent.size_bytes for extent in case.extents}
    by_owner: dict[str, list[CopyRange]] = {}
    for copy_range in with_owners(job.mirror, "", ranges, sizes_bytes):
        by_owner.setdefault(copy_range.owner, []).append(copy_range)
    groups = list(by_owner.values())
    return [
        CopyWork(job, [copy_range for group in groups[number::TASKS] for copy_range in group])
        for number in range(min(TASKS, len(groups)))
    ]


def groups_of(tasks: list[CopyWork]) -> list[list[CopyRange]]:
    """The ranges of each task, as a Spark job takes them."""
    return [task.ranges for task in tasks]


class RelayTask(Contender):
    """Two processes."""

    name = "relay, tasks alone"
    inputs = all_but()

    def copy(self, case: Case) -> Cost:
        """Run the tasks in parallel."""
        return run_together(works(case), case.limit_seconds)


class RelayRecompressing(RelayTask):
    """Two processes that write another codec than the source has."""

    inputs = ("1k-16k-gzip",)

    def __init__(self, codec: str) -> None:
        self.name = f"{RelayTask.name}, recompress: {codec}"
        self._options = CopyOptions(codec=codec)

    def copy(self, case: Case) -> Cost:
        """Run the tasks in parallel."""
        return run_together(works(case, options=self._options), case.limit_seconds)

"""From a survey to what a run will copy, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relay_pipelines.copy import checkpoint
from relay_pipelines.driver.survey import Survey
from relay_pipelines.driver.topics import limits
from relay_pipelines.errors import DataLossError
from relay_pipelines.model import CopyRange, OffsetRange, TopicPartition, Window
from relay_pipelines.plan.packing import copy_seconds
from relay_pipelines.plan.windows import StartPolicy, plan_windows


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run will copy.

    Args:
        windows: one per topic with something new.
        data_losses: topic-partitions that a guard holds back, and why.
        sizes_bytes: estimated bytes of a range by its source topic-partition, where the source tells its sizes.
    """

    survey: Survey
    windows: Sequence[Window]
    data_losses: Sequence[DataLossError]
    sizes_bytes: Mapping[TopicPartition, int]

    @property
    def ranges(self) -> list[CopyRange]:
        """All ranges, with what a task must know of them."""
        return [self._copy_range(one) for window in self.windows for one in window.ranges]

    def offsets(self, window: Window) -> int:
        """How many source offsets a window covers: its records, where none were compacted away or aborted."""
        return sum(len(one) for one in window.ranges)

    def size_bytes(self, window: Window) -> int | None:
        """The window's estimated size; None if the source does not tell."""
        known = [self.sizes_bytes[one.topic_partition] for one in window.ranges if one.topic_partition in self.sizes_bytes]
        return sum(known) if len(known) == len(window.ranges) else None

    def seconds(self, window: Window) -> float:
        """A rough estimate of the window's copy time in one task."""
        return sum(copy_seconds(one, self.sizes_bytes.get(one.topic_partition)) for one in window.ranges)

    def _copy_range(self, source: OffsetRange) -> CopyRange:
        survey, topic_partition = self.survey, source.topic_partition
        takes = limits(survey, topic_partition.topic)
        home = checkpoint.home(checkpoint.TOPIC, checkpoint.key_of(survey.mirror, topic_partition))
        return CopyRange(
            source=source,
            destination=TopicPartition(survey.destinations[topic_partition.topic], topic_partition.partition),
            max_message_bytes=takes.max_message_bytes,
            timestamp_type=takes.timestamp_type,
            checkpoint=survey.checkpoints.get(topic_partition),
            checkpoint_position=survey.checkpoint_ends.get(home, 0),
        )


def plan(survey: Survey, start: StartPolicy) -> RunPlan:
    """Plan everything up to where the source ended when it was surveyed."""
    planned = plan_windows(survey.positions, start)
    held = {one.topic_partition: one.end_offset - one.low_watermark for one in survey.positions}
    sizes = {
        one.topic_partition: survey.sizes_bytes[one.topic_partition] * len(one) // max(1, held[one.topic_partition])
        for window in planned.windows
        for one in window.ranges
        if one.topic_partition in survey.sizes_bytes
    }
    return RunPlan(survey, planned.windows, planned.data_losses, sizes)

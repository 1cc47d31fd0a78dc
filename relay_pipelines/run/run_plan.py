"""What a run will copy, from a snapshot of both clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from relay_pipelines.errors import RelayError
from relay_pipelines.finding import Finding
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import (
    CopyRange,
    Intervals,
    OffsetRange,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.task_packing import copy_seconds
from relay_pipelines.prepare.topics import limits
from relay_pipelines.snapshot import configs
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run will copy.

    Args:
        planned: the source offsets, one range per topic-partition with something new, sorted.
        held: one per topic-partition that is held back, or that only another upstream has, and
            one per topic that is hidden, or refused.
        sizes_bytes: estimated bytes of a range by its source topic-partition, where known.
        kept: as in `CopyRange`, by source topic-partition.
        frozen: the window that is copied; without a key if everything is, up to the end.
        superseded: its ranges of which nothing is copied any more, because a loss was accepted
            after they were planned.
    """

    snapshot: ClusterSnapshot
    planned: Sequence[OffsetRange]
    held: Sequence[RelayError]
    sizes_bytes: Mapping[TopicPartition, int]
    kept: Mapping[TopicPartition, Intervals] = field(default_factory=dict)
    frozen: FrozenWindow = field(default_factory=lambda: FrozenWindow("", ()))
    superseded: frozenset[OffsetRange] = frozenset()

    @property
    def ranges(self) -> list[CopyRange]:
        """All ranges, with what a task must know about them."""
        return list(map(self._copy_range, self.planned))

    @property
    def by_topic(self) -> dict[str, list[OffsetRange]]:
        """The source offsets of each topic with something new."""
        grouped = groupby(self.planned, key=lambda planned: planned.topic_partition.topic)
        return {topic: list(of_topic) for topic, of_topic in grouped}

    @property
    def offsets(self) -> int:
        """The number of all offsets: of records, unless some were compacted away or aborted."""
        return sum(map(len, self.planned))

    @property
    def takeovers(self) -> list[Finding]:
        """The topics of which this run decides the records in another way than the last."""
        return self.snapshot.takeovers(each.topic_partition for each in self.planned)

    def with_all_configs(self) -> RunPlan:
        """Ask for the configurations also of topics with nothing new, which are compared or shown.

        Raises:
            RelayError: a cluster does not answer.
        """
        return replace(self, snapshot=configs.with_all(self.snapshot))

    def size_bytes(self, ranges: Iterable[OffsetRange]) -> int | None:
        """The estimated size of some; None if the source does not report all sizes."""
        sizes = [self.sizes_bytes.get(each.topic_partition) for each in ranges]
        return None if None in sizes else sum(filter(None, sizes))

    def seconds(self, ranges: Iterable[OffsetRange]) -> float:
        """Estimate how long one task copies some."""
        return sum(
            copy_seconds(each, self.sizes_bytes.get(each.topic_partition)) for each in ranges
        )

    def _copy_range(self, source: OffsetRange) -> CopyRange:
        snapshot, topic_partition = self.snapshot, source.topic_partition
        topic = snapshot.topics[topic_partition.topic]
        known = snapshot.checkpoints.get(topic_partition)
        topic_limits = limits(snapshot, topic_partition.topic)
        home = checkpoint.home(checkpoint.TOPIC, checkpoint.key_of(snapshot.name, topic_partition))
        return CopyRange(
            source=source,
            destination=snapshot.destination_of(topic_partition),
            max_message_bytes=topic_limits.max_message_bytes,
            timestamp_type=topic_limits.timestamp_type,
            checkpoint=known,
            checkpoint_position=snapshot.state.ends.get(home, 0),
            record_policy=topic.policy,
            planned_log=UpstreamIdentity(snapshot.upstream.name, topic.metadata.topic_id, ""),
            same_logs=snapshot.selection.same_logs(topic_partition, known),
            kept=self.kept.get(topic_partition, ()),
            requires_keys=topic_limits.requires_keys,
            passed=topic.passed,
        )


def plan(snapshot: ClusterSnapshot) -> RunPlan:
    """Plan everything up to the end of the source when the snapshot was taken."""
    return _plan(snapshot, snapshot.news, snapshot.held)


def plan_frozen(snapshot: ClusterSnapshot, frozen: FrozenWindow) -> RunPlan:
    """Plan what a frozen window has left: from the next offset to copy to the window's end.

    Topics that are not in the snapshot are left out.
    """
    positions = {position.topic_partition: position for position in snapshot.positions}
    partitions = [each.topic_partition for each in frozen.ranges]
    held = {tp: snapshot.held[tp] for tp in partitions if tp in snapshot.held}
    superseded = frozenset(each for each in frozen.ranges if _is_superseded(snapshot, frozen, each))
    left = [
        replace(planned, start=position.begin)
        for planned in frozen.ranges
        if (position := positions.get(planned.topic_partition))
        and planned.end > position.begin
        and planned.topic_partition not in held
        and planned not in superseded
    ]
    return replace(_plan(snapshot, left, held), frozen=frozen, superseded=superseded)


def _plan(
    snapshot: ClusterSnapshot,
    ranges: Sequence[OffsetRange],
    held: Mapping[TopicPartition, RelayError],
) -> RunPlan:
    average = bytes_per_offset(snapshot)
    sizes = {
        each.topic_partition: int(average[each.topic_partition] * len(each))
        for each in ranges
        if each.topic_partition in average
    }
    return RunPlan(snapshot, ranges, tuple(dict.fromkeys(held.values())), sizes)


def _is_superseded(snapshot: ClusterSnapshot, frozen: FrozenWindow, planned: OffsetRange) -> bool:
    """Whether a loss was accepted since the window was cut: its offsets may be other records."""
    tp = planned.topic_partition
    return tp in snapshot.checkpoints and snapshot.generation_of(tp) != frozen.generation_of(tp)


def bytes_per_offset(snapshot: ClusterSnapshot) -> dict[TopicPartition, float]:
    """The average size of a source offset on disk, where the source reports it."""
    return {
        position.topic_partition: snapshot.configs.sizes_bytes[position.topic_partition]
        / max(1, position.end_offset - position.low_watermark)
        for position in snapshot.positions
        if position.topic_partition in snapshot.configs.sizes_bytes
    }

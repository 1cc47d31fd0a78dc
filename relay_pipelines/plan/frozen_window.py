"""The windows of many topics under one partition key, stored before anything is copied.

Cuts a backlog into windows of a limited number of records and bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import mul

from relay_pipelines.formats import WINDOW
from relay_pipelines.model import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class FrozenWindow:
    """The offsets of one asset partition of a lane.

    Args:
        ranges: one per topic-partition with something new, sorted.
        upstream: the upstream that the offsets belong to.
        planned_at_ms: when it was planned; nothing in these ranges was committed before.
        size_bytes: an estimate; 0 if the source does not report sizes.
        generations: of the checkpoints in which the offsets were planned, where it is not 0.
    """

    key: str
    ranges: tuple[OffsetRange, ...]
    upstream: str = ""
    planned_at_ms: int = 0
    size_bytes: int = 0
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)

    def generation_of(self, tp: TopicPartition) -> int:
        """Return the generation in which the offsets of a topic-partition were planned."""
        return self.generations.get(tp, 0)

    @property
    def topics(self) -> list[str]:
        """The source topics, sorted."""
        return sorted({offset_range.topic_partition.topic for offset_range in self.ranges})

    @property
    def records(self) -> int:
        """The number of offsets: of records, unless some were compacted away or aborted."""
        return sum(map(len, self.ranges))

    def part(self, topics: Collection[str]) -> FrozenWindow | None:
        """The same window of some topics alone; None if it has none of them."""
        ranges = tuple(each for each in self.ranges if each.topic_partition.topic in topics)
        return replace(self, ranges=ranges) if ranges else None

    def joined(self, other: FrozenWindow) -> FrozenWindow:
        """The window with the topics of another one of the same key, which has none of its own."""
        return replace(
            self,
            ranges=tuple(sorted((*self.ranges, *other.ranges))),
            planned_at_ms=min(self.planned_at_ms, other.planned_at_ms),
            generations={**self.generations, **other.generations},
        )

    def copied(self, next_offsets: Mapping[TopicPartition, int]) -> FrozenWindow | None:
        """The part before the next offsets to copy; None if nothing is.

        Args:
            next_offsets: those of another generation are left out, and those that are not known.
        """
        ranges = [
            replace(each, end=min(each.end, next_offsets.get(each.topic_partition, each.end)))
            for each in self.ranges
        ]
        filled = tuple(each for each in ranges if len(each))
        return replace(self, ranges=filled) if filled else None

    def extended(self, later: FrozenWindow) -> FrozenWindow:
        """The window with a later round of its copy: its key and time, and the ends of both."""
        ranges = {each.topic_partition: each for each in self.ranges}
        for new in later.ranges:
            known = ranges.get(new.topic_partition)
            ranges[new.topic_partition] = (
                replace(known, end=max(known.end, new.end)) if known else new
            )
        return replace(
            later,
            key=self.key,
            ranges=tuple(sorted(ranges.values())),
            planned_at_ms=self.planned_at_ms,
            size_bytes=self.size_bytes + later.size_bytes,
            generations={**self.generations, **later.generations},
        )

    def takes(self, later: FrozenWindow, limits: WindowLimits) -> bool:
        """Whether it can be extended by a later round: without a gap, and within the limits.

        There is a gap if another process has copied in between.
        """
        ranges = {each.topic_partition: each for each in self.ranges}
        for new in later.ranges:
            tp = new.topic_partition
            known = ranges.get(tp)
            if known and not (
                new.start == known.end and self.generation_of(tp) == later.generation_of(tp)
            ):
                return False
        both = self.extended(later)
        return both.records <= limits.max_records and both.size_bytes <= limits.max_bytes

    def to_json(self) -> str:
        """Serialize it; `from_json` reads it."""
        topics: dict[str, list[_Planned]] = {}
        for offsets in self.ranges:
            tp = offsets.topic_partition
            row = tp.partition, offsets.start, offsets.end, self.generation_of(tp)
            topics.setdefault(tp.topic, []).append(row)
        plan = _Plan(self.upstream, self.planned_at_ms, self.size_bytes, topics)
        return WINDOW.text(plan)

    @staticmethod
    def from_json(key: str, text: str) -> FrozenWindow:
        """Parse what `to_json` returned.

        Raises:
            UnsupportedError: another version of relay_pipelines wrote it.
        """
        plan = WINDOW.read(_Plan, text, key)
        rows = [
            (OffsetRange(TopicPartition(topic, partition), start, end), generation)
            for topic, ranges_of_topic in plan.topics.items()
            for partition, start, end, generation in ranges_of_topic
        ]
        return FrozenWindow(
            key,
            tuple(planned for planned, _ in rows),
            plan.upstream,
            plan.planned_at_ms,
            plan.size_bytes,
            {planned.topic_partition: generation for planned, generation in rows if generation},
        )


_Planned = tuple[int, int, int, int]
"""A partition, the offsets, and the generation of the checkpoint."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A window as it is stored, by topic."""

    upstream: str
    planned_at_ms: int
    size_bytes: int
    topics: Mapping[str, list[_Planned]]


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """What one window may hold: records, and bytes on the source's disk where known."""

    max_records: int
    max_bytes: int


def cut(
    waiting: Sequence[OffsetRange],
    bytes_per_offset: Mapping[TopicPartition, float],
    limits: WindowLimits,
) -> list[OffsetRange]:
    """Return the next window: the beginning of every range.

    All topic-partitions with more than an equal share get that share, so none starves, and small
    ones are included whole. Each gets at least one offset, even if that breaks a limit.
    """

    def fits(share: int) -> bool:
        counts = [min(len(offset_range), share) for offset_range in waiting]
        sizes = [
            bytes_per_offset.get(offset_range.topic_partition, 0.0) for offset_range in waiting
        ]
        return (
            sum(counts) <= limits.max_records and sum(map(mul, counts, sizes)) <= limits.max_bytes
        )

    low, high = 1, max((len(offset_range) for offset_range in waiting), default=1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return [
        replace(offset_range, end=offset_range.start + min(len(offset_range), low))
        for offset_range in waiting
    ]

"""A backlog is cut into windows that stay below a number of records and of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.plan.positions import Position, data_loss, uncopied


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """What one window may hold: records, and bytes on the source's disk as far as those are known."""

    max_records: int
    max_bytes: int


def backlog(
    positions: Sequence[Position], planned: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """What no window covers yet, one range per topic-partition in order; empty where nothing is new or a guard holds it back.

    Args:
        planned: where the windows cut so far end. A checkpoint beyond counts as well: others copy,
            too.
    """
    guarded = {one.topic_partition: data_loss(one) is not None for one in positions}
    ahead = [_ahead(one, planned.get(one.topic_partition)) for one in positions]
    ranges = uncopied(ahead)
    return [
        OffsetRange(at, one.start, one.start if guarded[at] else max(one.start, one.end))
        for at, one in sorted(ranges.items())
    ]


def cut(
    waiting: Sequence[OffsetRange],
    bytes_per_offset: Mapping[TopicPartition, float],
    limits: WindowLimits,
) -> list[OffsetRange]:
    """Return the beginning of every range: the next window.

    All topic-partitions with more than an equal share get that share; so none starves, and what is
    small is taken whole. At least one offset is taken of each, even if that breaks a limit.
    """

    def fits(share: int) -> bool:
        taken = [
            (min(len(one), share), bytes_per_offset.get(one.topic_partition, 0.0))
            for one in waiting
        ]
        return (
            sum(count for count, _ in taken) <= limits.max_records
            and sum(n * size for n, size in taken) <= limits.max_bytes
        )

    low, high = 1, max((len(one) for one in waiting), default=1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return [replace(one, end=one.start + min(len(one), low)) for one in waiting]


def _ahead(position: Position, planned: int | None) -> Position:
    if planned is None:
        return position
    return replace(position, next_offset=max(planned, position.next_offset or 0))

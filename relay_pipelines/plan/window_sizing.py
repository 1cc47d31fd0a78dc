"""Cuts a backlog into windows of a limited number of records and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul

from relay_pipelines.model import OffsetRange, TopicPartition


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

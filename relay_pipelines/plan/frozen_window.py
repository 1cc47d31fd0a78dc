"""The windows of many topics, frozen together under one key: what an orchestrator writes down before anything is copied."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

from relay_pipelines.errors import UnsupportedError
from relay_pipelines.model import OffsetRange, TopicPartition, Window

_VERSION = 2
_READABLE = (1, _VERSION)  # version 1 has a fourth number per range, which is no longer needed


@dataclass(frozen=True, slots=True)
class FrozenWindow:
    """What one asset partition of a lane stands for.

    Args:
        ranges: one per topic-partition of the lane, sorted; empty where nothing was new, so that
        its end is known.
        node: the source node that the offsets are of.
        planned_at_ms: nothing in these ranges was committed before.
        size_bytes: an estimate; 0 if the source does not tell.
        by_date: whether it was cut for a backfill of given dates, beside the planner's windows.
    """

    key: str
    ranges: tuple[OffsetRange, ...]
    node: str = ""
    planned_at_ms: int = 0
    size_bytes: int = 0
    by_date: bool = False

    @property
    def topics(self) -> list[str]:
        """The source topics, sorted."""
        return sorted({one.topic_partition.topic for one in self.ranges})

    @property
    def records(self) -> int:
        """Offsets covered: records, where none were compacted away or aborted."""
        return sum(len(one) for one in self.ranges)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Where the next window begins."""
        return {one.topic_partition: one.end for one in self.ranges}

    def windows(self, topics: Collection[str]) -> list[Window]:
        """One window for each of these topics that the key covers, idle ones included."""
        grouped = groupby(self.ranges, key=lambda one: one.topic_partition.topic)
        return [Window(topic, tuple(ranges)) for topic, ranges in grouped if topic in topics]

    def to_json(self) -> str:
        """As it is written down."""
        topics: dict[str, list[list[int]]] = {}
        for one in self.ranges:
            at = one.topic_partition
            topics.setdefault(at.topic, []).append([at.partition, one.start, one.end])
        fields = {
            "version": _VERSION,
            "node": self.node,
            "planned_at_ms": self.planned_at_ms,
            "size_bytes": self.size_bytes,
            "by_date": self.by_date,
            "topics": topics,
        }
        return json.dumps(fields, separators=(",", ":"))

    @staticmethod
    def from_json(key: str, text: str) -> FrozenWindow:
        """Read it back.

        Raises:
            UnsupportedError: a newer relay_pipelines wrote it.
        """
        fields = json.loads(text)
        if fields["version"] not in _READABLE:
            raise UnsupportedError(
                f"the plan of window {key} has version {fields['version']}, this relay reads version {_VERSION}",
                remedy="upgrade relay_pipelines",
            )
        ranges = tuple(
            OffsetRange(TopicPartition(topic, partition), start, end)
            for topic, found in fields["topics"].items()
            for partition, start, end, *_ in found
        )
        return FrozenWindow(
            key,
            ranges,
            fields["node"],
            fields["planned_at_ms"],
            fields["size_bytes"],
            fields["by_date"],
        )

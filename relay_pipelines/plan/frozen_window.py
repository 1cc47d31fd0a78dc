"""The windows of many topics under one partition key, stored before anything is copied."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

from relay_pipelines.errors import UnsupportedError
from relay_pipelines.model import OffsetRange, TopicPartition, Window

_VERSION = 2
_READABLE = (1, _VERSION)  # version 1 has a fourth number per range, which is no longer used


@dataclass(frozen=True, slots=True)
class FrozenWindow:
    """The offsets of one asset partition of a lane.

    Args:
        ranges: one per topic-partition with something new, sorted.
        node: the source node that the offsets belong to.
        planned_at_ms: when it was planned; nothing in these ranges was committed before.
        size_bytes: an estimate; 0 if the source does not report sizes.
    """

    key: str
    ranges: tuple[OffsetRange, ...]
    node: str = ""
    planned_at_ms: int = 0
    size_bytes: int = 0

    @property
    def topics(self) -> list[str]:
        """The source topics, sorted."""
        return sorted({offset_range.topic_partition.topic for offset_range in self.ranges})

    @property
    def records(self) -> int:
        """The number of offsets: of records, unless some were compacted away or aborted."""
        return sum(map(len, self.ranges))

    def windows(self, topics: Collection[str]) -> list[Window]:
        """One window for each of these topics that the key covers, even if nothing is new in it."""
        grouped = groupby(self.ranges, key=lambda offset_range: offset_range.topic_partition.topic)
        return [Window(topic, tuple(ranges)) for topic, ranges in grouped if topic in topics]

    def to_json(self) -> str:
        """Serialize it; `from_json` reads it."""
        topics: dict[str, list[list[int]]] = {}
        for offsets in self.ranges:
            at = offsets.topic_partition
            topics.setdefault(at.topic, []).append([at.partition, offsets.start, offsets.end])
        fields = {
            "version": _VERSION,
            "node": self.node,
            "planned_at_ms": self.planned_at_ms,
            "size_bytes": self.size_bytes,
            "topics": topics,
        }
        return json.dumps(fields, separators=(",", ":"))

    @staticmethod
    def from_json(key: str, text: str) -> FrozenWindow:
        """Parse what `to_json` returned.

        Raises:
            UnsupportedError: a newer relay_pipelines wrote it.
        """
        fields = json.loads(text)
        if fields["version"] not in _READABLE:
            raise UnsupportedError(
                f"the plan of window {key} has version {fields['version']},"
                f" this relay reads version {_VERSION}",
                remedy="upgrade relay_pipelines",
            )
        ranges = tuple(
            OffsetRange(TopicPartition(topic, partition), start, end)
            for topic, ranges_of_topic in fields["topics"].items()
            for partition, start, end, *_ in ranges_of_topic
        )
        return FrozenWindow(
            key,
            ranges,
            fields["node"],
            fields["planned_at_ms"],
            fields["size_bytes"],
        )

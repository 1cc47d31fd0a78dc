"""Where topic-partitions ended when a move looked: what came later had nothing then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from relay_pipelines.model import TopicPartition


class Ends(dict[str, dict[int, int]]):
    """Offsets by topic and partition, as a record of a move has them.

    A fence, a cut and a way back each write one. A topic-partition that is not in it has come
    since, and had no record then.
    """

    @classmethod
    def of(cls, ends: Mapping[TopicPartition, int]) -> Self:
        """Return the ends of topic-partitions."""
        found = cls()
        for tp, end in sorted(ends.items()):
            found.setdefault(tp.topic, {})[tp.partition] = end
        return found

    def has(self, tp: TopicPartition) -> bool:
        """Whether the topic-partition was there."""
        return tp.partition in self.get(tp.topic, ())

    def at(self, tp: TopicPartition) -> int:
        """Return where it ended; 0 if it has come since."""
        return self.get(tp.topic, {}).get(tp.partition, 0)

    @property
    def by_partition(self) -> dict[TopicPartition, int]:
        """Where the topic-partitions ended that were there."""
        return {
            TopicPartition(topic, number): end
            for topic, ends in self.items()
            for number, end in ends.items()
        }

    def with_later(self, others: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where these ended, and others that may have come since."""
        return {**dict.fromkeys(others, 0), **self.by_partition}

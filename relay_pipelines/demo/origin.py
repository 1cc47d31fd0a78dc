"""Which node gave which records. Pure: the ledger's entries go in, and what they leave open comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Share:
    """What one node gave of one topic-partition, without a gap.

    Args:
        records: at the destination; fewer than offsets where the cleaner had been.
        chunks: that it was committed in.
    """

    source: OffsetRange
    node: str
    records: int
    chunks: int


def shares(entries: Iterable[LedgerEntry]) -> list[Share]:
    """Join the entries that follow on each other and name the same node, in the order of topic-partition and offset."""
    made: list[Share] = []
    for entry in sorted(entries, key=lambda one: one.source):
        if made and _follows(entry, made[-1]):
            last = made.pop()
            source = replace(last.source, end=entry.source.end)
            made.append(Share(source, last.node, last.records + entry.records, last.chunks + 1))
        else:
            made.append(Share(entry.source, entry.node, entry.records, 1))
    return made


def unexplained(
    given: Sequence[Share], found: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Name the topic-partitions whose records at the destination are not those of the ledger, each offset covered once.

    Args:
        found: how many records each has at the destination.
    """
    return [
        at
        for at in sorted({*found, *(one.source.topic_partition for one in given)})
        if not _explained(at, given, found)
    ]


def _follows(entry: LedgerEntry, last: Share) -> bool:
    where = entry.source.topic_partition, entry.source.start, entry.node
    return where == (last.source.topic_partition, last.source.end, last.node)


def _explained(
    at: TopicPartition, given: Sequence[Share], found: Mapping[TopicPartition, int]
) -> bool:
    ranges = [one.source for one in given if one.source.topic_partition == at]
    seamless = [one.start for one in ranges] == [0, *(one.end for one in ranges)][: len(ranges)]
    return seamless and sum(
        one.records for one in given if one.source.topic_partition == at
    ) == found.get(at, 0)

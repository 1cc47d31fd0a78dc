"""Where the chunks of a mirror are on each side, without the records of others."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from relay_pipelines.model import Checkpoint, Intervals, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.reader import FetchedSpan


def source_offsets(entries: Iterable[LedgerEntry]) -> dict[int, Intervals]:
    """Return the source offsets of chunks by partition, in order; neighbours are joined."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.source):
        some, offsets = found[entry.source.topic_partition.partition], entry.source
        if some and offsets.start <= some[-1][1]:
            some[-1] = some[-1][0], max(some[-1][1], offsets.end)
        else:
            some.append((offsets.start, offsets.end))
    return {partition: tuple(some) for partition, some in sorted(found.items())}


def copies_of(known: Checkpoint) -> TopicPartition:
    """Return the topic-partition with the last record copied; without one, where it would go."""
    return known.copies.topic_partition if known.copies else known.destination


class ChunkCopies(NamedTuple):
    """Where the records of a chunk are: its offsets `[start, end)`, and their producer id.

    Records of others may lie between them. Without a producer id (-1), all are the chunk's.
    """

    start: int
    end: int
    producer_id: int = -1

    @classmethod
    def of(cls, entry: LedgerEntry) -> ChunkCopies:
        """Return those of a ledger entry."""
        return cls(entry.destination.start, entry.destination.end, entry.producer_id)


def destination_offsets(entries: Iterable[LedgerEntry]) -> dict[int, tuple[ChunkCopies, ...]]:
    """Return where the copies of each chunk with records are, by partition, in order."""
    found: dict[int, list[ChunkCopies]] = defaultdict(list)
    for entry in entries:
        if entry.records:
            found[entry.destination.topic_partition.partition].append(ChunkCopies.of(entry))
    return {partition: tuple(sorted(some)) for partition, some in sorted(found.items())}


def own_batches(chunks: Sequence[ChunkCopies]) -> Callable[[FetchedSpan], bool]:
    """Return what tells whether a span at the destination holds records of chunks.

    Args:
        chunks: in order.
    """
    index = RangeIndex(chunks)

    def is_own(span: FetchedSpan) -> bool:
        if span.run is None or span.skipped is not None:
            return False
        # chunks of several partitions that are pinned to one may overlap
        within = (chunks[position] for position in index.containing(span.start))
        return any(chunk.producer_id in {-1, span.run.first.producer_id} for chunk in within)

    return is_own


class RangeIndex:
    """Finds, among offset ranges of one topic-partition, those that overlap others.

    A look-up takes logarithmic time, unless ranges lie within each other.

    Args:
        ranges: sorted by their start.
    """

    def __init__(self, ranges: Sequence[OffsetRange | ChunkCopies]) -> None:
        self._ranges = ranges
        self._starts = [offset_range.start for offset_range in ranges]
        self._most_ends = list(accumulate((offset_range.end for offset_range in ranges), max))

    def overlapping(self, start: int, end: int) -> Iterator[int]:
        """Yield the positions of the ranges that overlap `[start, end)`, the last one first."""
        position = bisect_left(self._starts, end) - 1
        while position >= 0 and self._most_ends[position] > start:
            if self._ranges[position].end > start:
                yield position
            position -= 1

    def containing(self, offset: int) -> Iterator[int]:
        """Yield the positions of the ranges that contain an offset, the last one first."""
        return self.overlapping(offset, offset + 1)

"""Where the chunks of a mirror are on each side, without the records of others."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from relay_pipelines.model import (
    Checkpoint,
    Intervals,
    LedgerEntry,
    OffsetRange,
    Skipped,
    TopicPartition,
)
from relay_pipelines.protocol.reader import FetchedSpan


def source_offsets(entries: Iterable[LedgerEntry]) -> dict[int, Intervals]:
    """Return the source offsets of chunks by partition, in order; neighbours are joined."""
    by_partition: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.source):
        some, offsets = by_partition[entry.tp.partition], entry.source
        if some and offsets.start <= some[-1][1]:
            some[-1] = some[-1][0], max(some[-1][1], offsets.end)
        else:
            some.append((offsets.start, offsets.end))
    return {partition: tuple(some) for partition, some in sorted(by_partition.items())}


def copies_of(known: Checkpoint) -> TopicPartition:
    """Return the topic-partition with the last record copied; without one, where it would go."""
    return known.copies.topic_partition if known.copies else known.destination


class ChunkCopies(NamedTuple):
    """Where the records of a chunk are: its offsets `[start, end)`, and their producer id.

    Records of others may lie between them. Without a producer id (-1), all are the chunk's.

    Args:
        records: how many there are; 0 if that is not known.
    """

    start: int
    end: int
    producer_id: int = -1
    records: int = 0

    @classmethod
    def of(cls, entry: LedgerEntry) -> ChunkCopies:
        """Return those of a ledger entry."""
        copies = entry.destination
        return cls(copies.start, copies.end, entry.producer_id, entry.records)


def destination_offsets(entries: Iterable[LedgerEntry]) -> dict[int, tuple[ChunkCopies, ...]]:
    """Return where the copies of each chunk with records are, by partition, in order."""
    by_partition: dict[int, list[ChunkCopies]] = defaultdict(list)
    for entry in entries:
        if entry.records:
            by_partition[entry.to.partition].append(ChunkCopies.of(entry))
    return {partition: tuple(sorted(some)) for partition, some in sorted(by_partition.items())}


class OwnBatches:
    """Tells which spans at the destination hold records of chunks.

    Args:
        chunks: in order; those of several partitions that are pinned to one may overlap.
    """

    def __init__(self, chunks: Sequence[ChunkCopies]) -> None:
        self._chunks = chunks
        self._index = RangeIndex(chunks)
        self._others = [0] * len(chunks)

    def has(self, span: FetchedSpan) -> bool:
        """Whether it holds some; each span is asked about once."""
        is_own = False
        for position in self._index.overlapping(span.start, span.end):
            chunk = self._chunks[position]
            holds = span.run is not None and span.skipped is None and span.start >= chunk.start
            if holds and span.run and chunk.producer_id in {-1, span.run.first.producer_id}:
                is_own = True
            elif span.skipped is not Skipped.COMPACTION_GAP:
                self._others[position] += min(span.end, chunk.end) - max(span.start, chunk.start)
        return is_own

    @property
    def replaced(self) -> int:
        """In the place of how many records others stand: an offset has one record at most."""
        pairs = zip(self._chunks, self._others, strict=True)
        return sum(max(0, each.records + others - each.end + each.start) for each, others in pairs)


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

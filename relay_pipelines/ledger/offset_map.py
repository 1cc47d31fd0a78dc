"""Which destination offset is the copy of which source offset, by the ledger.

The n-th copy of a chunk is the n-th of its source offsets that have one, and the n-th of its
destination offsets that are copies. An entry says which these are, if they are not all. Where that
would have taken too much room, it only says how many: then the answer is a bound.
docs/transactions.md argues why the map is right.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger.chunk_copies import ChunkCopies, OwnBatches
from relay_pipelines.ledger.offset_runs import OffsetRuns
from relay_pipelines.model import Intervals, LedgerEntry, OffsetRange, Side
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import read


class Bounds(NamedTuple):
    """A number that is known, or at least between which two it is."""

    least: int
    most: int

    @property
    def is_known(self) -> bool:
        """Whether it is one number."""
        return self.least == self.most


class ChunkOffsets:
    """The offsets of a chunk's records on one side.

    Args:
        start, end: of the chunk there.
        records: how many of these offsets they have.
        text: which ones, as of `offset_runs`; empty if it is not known, or all.
    """

    def __init__(self, start: int, end: int, records: int, text: str) -> None:
        self.start = start
        self.end = end
        self._records = records
        self._text = text

    @cached_property
    def runs(self) -> OffsetRuns | None:
        """Which ones they are; None if that is not known."""
        if self.end - self.start == self._records:
            return OffsetRuns.of_runs([(self.start, self.end)])
        if not self._text:
            return None
        runs = OffsetRuns.of_text(self._text, self.start)
        return runs if len(runs) == self._records else None

    def count_below(self, offset: int) -> Bounds:
        """Return how many of them are below an offset."""
        if self.runs is not None:
            return Bounds(*(self.runs.count_below(offset),) * 2)
        offset, size = min(max(offset, self.start), self.end), self.end - self.start
        others = size - self._records
        return Bounds(max(0, offset - self.start - others), min(self._records, offset - self.start))

    def offset_at(self, index: int) -> Bounds:
        """Return the one with an index, from 0."""
        if self.runs is not None:
            return Bounds(*(self.runs.offset_at(index),) * 2)
        return Bounds(self.start + index, self.end - self._records + index)


class _Chunk(NamedTuple):
    """A chunk with records.

    Args:
        first_copy: the index of its first copy.
    """

    first_copy: int
    sides: dict[Side, ChunkOffsets]
    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader of one side goes on at the other, by the copies alone.

    Args:
        low: the offset after the last copy that it has read; None if there is none.
        high: that of the first copy that it has not read; None if there is none. All offsets from
            `low` to `high` are exact.
        rereads: how many records at most it reads again from `high` on, because it is not known
            which copy it is; 0 if it is exact.
        in_chunk: whether both copies are of one chunk; otherwise its marker lies between them.
    """

    low: int | None
    high: int | None
    rereads: int = 0
    in_chunk: bool = False


class CopiedLog:
    """The copies of one source topic-partition in one generation.

    Args:
        entries: of the generation, in order.
    """

    def __init__(self, entries: Iterable[LedgerEntry]) -> None:
        self._chunks: list[_Chunk] = []
        self.copies = 0
        """How many there are."""
        self.extend(entries)

    def extend(self, entries: Iterable[LedgerEntry]) -> None:
        """Add the next entries."""
        for entry in entries:
            if entry.records:
                self._chunks.append(_Chunk(self.copies, chunk_offsets(entry), entry))
                self.copies += entry.records

    def count_below(self, side: Side, offset: int) -> Bounds:
        """Return how many copies are below an offset of one side."""
        number = self._number_of(side, offset)
        if number < 0:
            return Bounds(0, 0)
        index, sides, _ = self._chunks[number]
        least, most = sides[side].count_below(offset)
        return Bounds(index + least, index + most)

    def committed_at_ms(self, offset: int) -> int | None:
        """Return when the first copy at a destination offset or after it was committed."""
        number = bisect_right(
            self._chunks, offset, key=lambda chunk: chunk.sides[Side.DESTINATION].end
        )
        return self._chunks[number].entry.committed_at_ms if number < len(self._chunks) else None

    def place(self, side: Side, offset: int) -> Place:
        """Return where the reader of one side, to whom an offset is the next one, goes on."""
        count = self.count_below(side, offset)
        low = None
        if count.least:
            low = self._offset_at(side.other, count.least - 1).most + 1
        if count.least == self.copies:
            return Place(low, None)
        high = self._offset_at(side.other, count.least)
        index = count.least - self._chunks[self._chunk_of(count.least)].first_copy
        if count.is_known and high.is_known:
            return Place(low, high.least, in_chunk=index > 0)
        # those before the one that it may be, which lie after the bound
        uncertain = min(index, high.most - high.least)
        return Place(None, high.least, count.most - count.least + uncertain)

    def copy_at(self, index: int) -> tuple[int, int] | None:
        """Return the source and destination offset of a copy; None if they are not known."""
        source, destination = (self._offset_at(side, index) for side in Side)
        if source.is_known and destination.is_known:
            return source.least, destination.least
        return None

    def may_change(self, index: int) -> bool:
        """Whether the copy may differ from its record."""
        return self._chunks[self._chunk_of(index)].entry.may_change_records

    def _offset_at(self, side: Side, index: int) -> Bounds:
        chunk = self._chunks[self._chunk_of(index)]
        return chunk.sides[side].offset_at(index - chunk.first_copy)

    def _chunk_of(self, index: int) -> int:
        return bisect_right(self._chunks, index, key=lambda chunk: chunk.first_copy) - 1

    def _number_of(self, side: Side, offset: int) -> int:
        return bisect_right(self._chunks, offset, key=lambda chunk: chunk.sides[side].start) - 1


def chunk_offsets(entry: LedgerEntry) -> dict[Side, ChunkOffsets]:
    """Return the offsets of a chunk's records on both sides."""
    source, destination = entry.source, entry.destination
    return {
        Side.SOURCE: ChunkOffsets(source.start, source.end, entry.records, entry.source_runs),
        Side.DESTINATION: ChunkOffsets(
            destination.start, destination.end, entry.records, entry.destination_runs
        ),
    }


class Copied(NamedTuple):
    """Destination offsets that hold records of one chunk alone.

    Args:
        chunk: its source offsets.
    """

    start: int
    end: int
    chunk: OffsetRange


def copies_of(
    client: ClusterClient, entry: LedgerEntry, within: OffsetRange, instead: str
) -> list[tuple[int, int]]:
    """Return the destination offsets of a chunk's records within some source offsets.

    Args:
        client: of the destination.
        instead: the remedy where the destination does not show which records are a chunk's own.
    """
    offsets, source = chunk_offsets(entry), entry.source
    copies = offsets[Side.DESTINATION].runs
    own = _own_batches(client, entry, instead) if copies is None else list(copies.runs())
    skip = offsets[Side.SOURCE].count_below(within.start)
    stop = offsets[Side.SOURCE].count_below(within.end)
    if (skip.most, stop.least) == (0, entry.records):
        return own
    if not (skip.is_known and stop.is_known):
        raise ConfigError(
            f"the range cuts the chunk {source}, of which the ledger does not say which offsets"
            " have a record at the destination",
            remedy=f"begin and end it at {source.start} or {source.end}",
        )
    return part(own, skip.least, stop.least)


def _own_batches(client: ClusterClient, entry: LedgerEntry, instead: str) -> list[tuple[int, int]]:
    """Return the offsets of a chunk's own records, among those of others."""
    batches = OwnBatches([ChunkCopies.of(entry)])
    fetches = read(client, entry.destination, client.options.fetch_max_bytes)
    own = [(span.start, span.end) for spans in fetches for span in filter(batches.has, spans)]
    if sum(end - start for start, end in own) != entry.records:
        raise ConfigError(
            f"{entry.destination} no longer holds the {entry.records} records of the chunk"
            f" {entry.source} alone, so that it is unknown which are its own",
            remedy=instead,
        )
    return own


def merged(copies: Iterable[Copied], *, one_source: bool) -> Intervals:
    """Join neighbours, so that there are few intervals.

    Args:
        one_source: whether one source alone is copied there. Then a single offset between two
            chunks is the marker of the first, because the next one begins after it.
    """
    runs: list[tuple[int, int]] = []
    before = None
    for copied in sorted(copies):
        is_marker = one_source and before is not None and copied.chunk != before.chunk
        if runs and copied.start - runs[-1][1] <= int(is_marker):
            runs[-1] = runs[-1][0], max(runs[-1][1], copied.end)
        else:
            runs.append((copied.start, copied.end))
        before = copied
    return tuple(runs)


def part(own: Iterable[tuple[int, int]], skip: int, stop: int) -> list[tuple[int, int]]:
    """Return the offsets of the records number `skip` to `stop` of these."""
    runs, number = [], 0
    for start, end in own:
        first, last = max(start, start + skip - number), min(end, start + stop - number)
        if first < last:
            runs.append((first, last))
        number += end - start
    return runs

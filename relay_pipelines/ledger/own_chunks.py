"""The chunks of a mirror on one side, without the records of others."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from relay_pipelines.model import Intervals, LedgerEntry, OffsetRange
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


def destination_offsets(entries: Iterable[LedgerEntry]) -> dict[int, Intervals]:
    """Return the destination offsets of each chunk with records, by partition, in order."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for entry in entries:
        if entry.records:
            offsets = entry.destination
            found[offsets.topic_partition.partition].append((offsets.start, offsets.end))
    return {partition: tuple(sorted(some)) for partition, some in sorted(found.items())}


class OwnBatches:
    """Tells the batches of chunks at the destination from those of others.

    A chunk is one transaction: it has one producer, and begins with a record of its own. Records of
    others may lie within it, and between two chunks.

    Args:
        chunks: their destination offsets, in order.
    """

    def __init__(self, chunks: Intervals) -> None:
        self._chunks = chunks
        self._producers: dict[int, int] = {}

    def include(self, span: FetchedSpan) -> bool:
        """Whether the span holds records of a chunk; the spans must come in order."""
        if span.run is None or span.skipped is not None:
            return False
        index = bisect_right(self._chunks, span.start, key=lambda chunk: chunk[0]) - 1
        if index < 0 or span.start >= self._chunks[index][1]:
            return False
        producer = span.run.first.producer_id
        return self._producers.setdefault(index, producer) == producer


def own_and_replayed(
    mirror: str, entries: Iterable[LedgerEntry]
) -> tuple[list[LedgerEntry], list[OffsetRange]]:
    """Separate a mirror's entries from what its replays wrote, by destination offsets.

    For a replay, the others are its mirror and the mirror's other replays.
    """
    own, others = [], []
    for entry in entries:
        if entry.mirror == mirror:
            own.append(entry)
        elif entry.records:
            others.append(entry.destination)
    return own, others

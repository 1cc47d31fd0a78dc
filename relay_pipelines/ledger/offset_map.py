"""Where the copies of source offsets are at the destination, by the ledger and the batches there.

A chunk's copies are consecutive unless others write to the same topic-partition. Which of its
offsets were left out the ledger does not say: then only whole chunks can be mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger.accounted import OwnBatches
from relay_pipelines.model import Intervals, LedgerEntry, OffsetRange
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import read


class Copied(NamedTuple):
    """Destination offsets that hold records of one chunk alone.

    Args:
        chunk: its source offsets.
    """

    start: int
    end: int
    chunk: OffsetRange


class OffsetMap:
    """Maps source offsets of chunks to destination offsets.

    Args:
        client: of the destination.
        instead: the remedy where the destination does not show which records are a chunk's own.
    """

    def __init__(self, client: ClusterClient, instead: str) -> None:
        self._client = client
        self._instead = instead

    def copies(self, entry: LedgerEntry, wanted: OffsetRange) -> list[tuple[int, int]]:
        """Return the destination offsets of a chunk's records within the wanted source offsets."""
        offset_range, source = entry.destination, entry.source
        own = [(offset_range.start, offset_range.end)]
        if len(offset_range) != entry.records:
            own = self._own_batches(entry)
        skip, stop = (
            max(0, wanted.start - source.start),
            min(len(source), wanted.end - source.start),
        )
        if (skip, stop) == (0, len(source)):
            return own
        if len(source) != entry.records:
            raise ConfigError(
                f"the range cuts the chunk {source}, in which offsets have no record at the"
                " destination, so that nobody can tell which of its copies are wanted",
                remedy=f"begin and end it at {source.start} or {source.end}",
            )
        return part(own, skip, stop)

    def _own_batches(self, entry: LedgerEntry) -> list[tuple[int, int]]:
        """Return the offsets of a chunk's own records, among those of others."""
        offset_range = entry.destination
        batches = OwnBatches(((offset_range.start, offset_range.end),))
        fetches = read(self._client, offset_range, self._client.options.fetch_max_bytes)
        own = [
            (span.start, span.end) for spans in fetches for span in filter(batches.include, spans)
        ]
        if sum(end - start for start, end in own) != entry.records:
            raise ConfigError(
                f"{entry.destination} no longer holds the {entry.records} records of the chunk"
                f" {entry.source} alone, so that nobody can tell which are its own",
                remedy=self._instead,
            )
        return own


def merged(copies: Iterable[Copied], *, one_source: bool) -> Intervals:
    """Join neighbours, so that there are few intervals.

    Args:
        one_source: whether one source alone is copied there. Then a single offset between two
            chunks is the marker of the first, because the next one begins after it.
    """
    found: list[tuple[int, int]] = []
    before = None
    for copied in sorted(copies):
        is_marker = one_source and before is not None and copied.chunk != before.chunk
        if found and copied.start - found[-1][1] <= int(is_marker):
            found[-1] = found[-1][0], max(found[-1][1], copied.end)
        else:
            found.append((copied.start, copied.end))
        before = copied
    return tuple(found)


def part(own: Iterable[tuple[int, int]], skip: int, stop: int) -> list[tuple[int, int]]:
    """Return the offsets of the records number `skip` to `stop` of these."""
    found, number = [], 0
    for start, end in own:
        first, last = max(start, start + skip - number), min(end, start + stop - number)
        if first < last:
            found.append((first, last))
        number += end - start
    return found

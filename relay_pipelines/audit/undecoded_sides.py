"""Takes the records that are the same on both sides, whatever their batches, without decoding them.

Runs in a task. What it cannot take is for the comparison of decoded records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.records import codec_of
from relay_pipelines.protocol.undecoded import Ints, Undecoded, leading, same_tails, undecoded

if TYPE_CHECKING:
    from relay_pipelines.audit.comparison import Side
    from relay_pipelines.protocol.reader import FetchedSpan

# at once: the more, the less numpy's calls count; but after a difference, more may come soon
_LEAST_RECORDS, _MOST_RECORDS = 1_024, 1 << 15
_MOST_COMPRESSED = 1 << 13  # which may be many times as large as what was fetched


class SameRecords(NamedTuple):
    """Records that are the same on both sides.

    Args:
        source, destination: their offsets.
        untimed: how many have timestamps that the destination's brokers have set.
        times: on both sides.
        records: those of the source, of which these are some.
        first: of them.
    """

    source: Ints
    destination: Ints
    untimed: int
    times: tuple[Ints, Ints]
    records: Undecoded
    first: int

    @property
    def tails(self) -> Iterator[bytes]:
        """Key, value and headers of each, as they end an encoded record."""
        data, some = self.records.data, slice(self.first, self.first + len(self.source))
        bounds = self.records.tails[some].tolist(), self.records.ends[some].tolist()
        return (data[start:end] for start, end in zip(*bounds, strict=True))


@dataclass(slots=True)
class _Part:
    """The next records of a side; those from `at` to `stop` are left."""

    records: Undecoded
    at: int
    stop: int
    spans: list[FetchedSpan]
    is_append_time: bool

    @property
    def left(self) -> int:
        return self.stop - self.at


class UndecodedSides:
    """Both sides, as far as their records need no decoding."""

    def __init__(self, source: Side, destination: Side) -> None:
        self._sides = source, destination
        self._parts: list[_Part | None] = [None, None]
        self._most = _LEAST_RECORDS

    @property
    def are_at_batches(self) -> bool:
        """Whether nothing of a batch has been taken, so that whole ones can be compared."""
        return not any(self._parts)

    def take_same(self, *, retimed: bool = False) -> SameRecords | None:
        """Take records that are the same on both sides; None if the next ones must be decoded.

        Args:
            retimed: whether those are taken instead that are the same but for their timestamps.

        Raises:
            CorruptBatchError: a batch does not match its CRC, or cannot be decompressed.
        """
        source, destination = self._next(0), self._next(1)
        if source is None or destination is None:
            self._give_back()
            return None
        count = min(source.left, destination.left)
        known, there = (slice(each.at, each.at + count) for each in (source, destination))
        is_timed = not destination.is_append_time
        times = source.records.timestamps[known], destination.records.timestamps[there]
        if retimed and not is_timed:
            count = 0
        if is_timed:
            count = leading((times[0] == times[1]) != retimed)
        count = same_tails(source.records, source.at, destination.records, destination.at, count)
        if not count:
            self._give_back()
            return None
        same = SameRecords(
            source.records.offsets[source.at : source.at + count],
            destination.records.offsets[destination.at : destination.at + count],
            0 if is_timed else count,
            (times[0][:count], times[1][:count]),
            source.records,
            source.at,
        )
        for side, part in enumerate((source, destination)):
            part.at += count
            if not part.left:
                self._parts[side] = None
        return same

    def _next(self, side: int) -> _Part | None:
        if self._sides[side].left:
            return None
        if self._parts[side] is None:
            self._parts[side] = self._part(side)
        return self._parts[side]

    def _part(self, side: int) -> _Part | None:
        other = self._parts[1 - side]
        spans = self._spans(side, 0 if other is None else other.left)
        runs = [span.run for span in spans if span.run is not None]
        batches = [Batch(run.first, run.data) for run in runs]
        records = undecoded(batches) if batches else None
        if records is None:
            self._sides[side].give_back(spans)
            return None
        at, stop = np.searchsorted(records.offsets, (spans[0].start, spans[-1].end)).tolist()
        part = _Part(records, at, stop, spans, batches[0].header.is_log_append_time)
        if part.left:
            self._most = min(2 * self._most, _MOST_RECORDS)
            return part
        self._sides[side].give_back(spans)
        return None

    def _spans(self, side: int, enough: int) -> list[FetchedSpan]:
        """Take the next batches of a side, of one fetch, whose bytes are valid until the next.

        Args:
            enough: if they have exactly so many records, both sides may go on with equal batches.
        """
        spans: list[FetchedSpan] = []
        records, is_append_time = 0, False
        source = self._sides[side]
        while (span := source.span) is not None and span.run is not None and span.run.is_single:
            header = span.run.first
            if spans and (
                span.start > header.base_offset or header.is_log_append_time != is_append_time
            ):
                break
            is_append_time = header.is_log_append_time
            spans.append(source.take_span())
            records += header.records
            most = min(self._most, _MOST_COMPRESSED) if codec_of(header) else self._most
            is_enough = records >= most or not source.has_fetched
            if is_enough or 0 < records == enough or span.end <= header.last_offset:
                break
        return spans

    def _give_back(self) -> None:
        self._most = _LEAST_RECORDS
        for number, (side, part) in enumerate(zip(self._sides, self._parts, strict=True)):
            if part is not None:
                first = int(part.records.offsets[part.at])
                left = [span for span in part.spans if span.end > first]
                side.give_back([left[0]._replace(start=max(first, left[0].start)), *left[1:]])
                self._parts[number] = None

"""Compares one chunk on both sides, up to the first record that differs. Runs in a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.audit.difference import Difference, show, what_differs
from relay_pipelines.copy.columns import is_log_append_time, records_in
from relay_pipelines.protocol.batch import (
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    BatchHeader,
    BatchRun,
)
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import codec_of

_AT_ONCE = 1 << 20
_FILTERED_AT_ONCE = 256  # every record that was left out begins a new part
Content = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Timestamp, key, value and headers of a record: what must be the same on both sides."""


@dataclass(slots=True)
class Comparison:
    """What was found in a chunk.

    Args:
        records: how many are the same on both sides.
        undecoded: how many of them are in batches that were compared as bytes.
        left_out: source records that are not at the destination, as the ledger allows.
        superseded: how many of `records` are gone at the destination, because compaction has
            removed them: a later record of their key is there, or they end with a tombstone.
        untimed: how many of `records` have timestamps that the destination's brokers have set.
        not_verified: records that could not be compared, by reason.
        difference: where the sides begin to differ; None if they do not.
    """

    records: int = 0
    undecoded: int = 0
    left_out: int = 0
    superseded: int = 0
    untimed: int = 0
    not_verified: Counter[str] = field(default_factory=Counter)
    difference: Difference | None = None


Part = tuple[Sequence[Any], bool]
"""Records with offset, timestamp, key, value and headers, and whether a broker set their times."""


class Side:
    """The committed records of a chunk on one side.

    Args:
        parts: in order.
    """

    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = parts
        self.records: Sequence[Any] = []
        self.contents: list[Content] = []
        """Of the records that are decoded and not yet taken, those from `at` on are left."""
        self.at = 0
        self.is_append_time = False

    @property
    def left(self) -> int:
        """How many decoded records are left."""
        return len(self.contents) - self.at

    @property
    def batch(self) -> BatchRun | None:
        """The next batch, if it is whole and not decoded."""
        return None

    def skip_batch(self) -> int:
        """Take the next batch, undecoded, and return how many records it has."""
        raise NotImplementedError

    def fill(self) -> bool:
        """Read a part if no record is left; False if there is none."""
        while not self.left:
            part = next(self._parts, None)
            if part is None:
                return False
            self.records, self.is_append_time = part
            self.contents = [
                (record.timestamp, record.key, record.value, tuple(record.headers))
                for record in self.records
            ]
            self.at = 0
        return True

    def peek(self) -> Any:
        """Return the next record; None at the end."""
        return self.records[self.at] if self.fill() else None

    def rest(self, first: int) -> Iterator[int]:
        """Yield what identifies each record that is left, and take them.

        Args:
            first: the first field of `Content` that counts.
        """
        while self.fill():
            yield from (hash(content[first:]) for content in self.contents[self.at :])
            self.at = len(self.contents)


class BatchSide(Side):
    """A side of which batches are known, so that whole ones need not be decoded.

    Args:
        fetches: of `reader.read`.
        one_producer: whether only the batches of the first one's producer belong to the chunk,
            because copies of another source may lie between them.
    """

    def __init__(
        self, fetches: Iterable[Sequence[FetchedSpan]], *, one_producer: bool = False
    ) -> None:
        super().__init__(self._decoded())
        self._spans = (span for spans in fetches for span in spans if span.run is not None)
        self._one_producer = one_producer
        self._producer: int | None = None
        self._span: FetchedSpan | None = None
        self._advance()

    @property
    def batch(self) -> BatchRun | None:
        """The next batch, if it is whole and not decoded."""
        span = self._span
        if self.left or span is None or span.run is None or not span.run.is_single:
            return None
        header = span.run.first
        return span.run if (span.start, span.end) == _offsets(header) else None

    def skip_batch(self) -> int:
        """Take the next batch, undecoded, and return how many records it has."""
        assert self._span is not None
        assert self._span.run is not None
        records = self._span.run.first.records
        self._advance()
        return records

    def _decoded(self) -> Iterator[Part]:
        while self._span is not None:
            (records,) = records_in(self._span)
            part = records, is_log_append_time(self._span)
            self._advance()
            yield part

    def _advance(self) -> None:
        for span in self._spans:
            assert span.run is not None
            producer = span.run.first.producer_id
            if self._producer is None:
                self._producer = producer
            if not self._one_producer or producer == self._producer:
                self._span = span
                return
        self._span = None


def compare(source: Side, destination: Side, may_leave_out: int = 0) -> Comparison:
    """Compare both sides of a chunk in order.

    Args:
        may_leave_out: how many of the source's records a filter left out or the quarantine took.

    Raises:
        CorruptBatchError: a batch does not match its CRC, or cannot be decoded.
    """
    found = Comparison()
    at_once = _FILTERED_AT_ONCE if may_leave_out else _AT_ONCE
    while True:
        if _are_same(source.batch, destination.batch):
            found.untimed += _untimed(destination.batch)
            source.skip_batch()
            records = destination.skip_batch()
            found.records += records
            found.undecoded += records
            continue
        has_source, has_destination = source.fill(), destination.fill()
        if not has_source and not has_destination:
            break
        same = _same_records(source, destination, at_once)
        found.records += same
        found.untimed += same if destination.is_append_time else 0
        if same:
            continue
        if has_source and found.left_out < may_leave_out:
            source.at += 1
            found.left_out += 1
            continue
        found.difference = _difference(source, destination, filtered=may_leave_out > 0)
        return found
    if found.left_out < may_leave_out:
        fewer = may_leave_out - found.left_out
        what = f"the source has {fewer:,} records fewer than the ledger says that were left out"
        found.difference = Difference(what, None, None)
    return found


def _offsets(header: BatchHeader) -> tuple[int, int]:
    return header.base_offset, header.last_offset + 1


def _are_same(source: BatchRun | None, destination: BatchRun | None) -> bool:
    """Whether two batches hold the same records, without decoding them.

    Offsets and timestamps of records are relative to their batch.
    """
    if source is None or destination is None:
        return False
    one, other = source.first, destination.first
    return (
        one.size_bytes == other.size_bytes
        and one.records == other.records
        and codec_of(one) == codec_of(other)
        and (other.is_log_append_time or _are_timed_alike(one, other))
        # comparing memoryviews of bytes goes item by item, which costs several times the copies
        and bytes(source.data[HEADER_BYTES:]) == bytes(destination.data[HEADER_BYTES:])
    )


def _untimed(batch: BatchRun | None) -> int:
    return batch.first.records if batch is not None and batch.first.is_log_append_time else 0


def _are_timed_alike(source: BatchHeader, destination: BatchHeader) -> bool:
    # the cleaner of a compacted topic stores another time there (KIP-534)
    stored = (source.attributes | destination.attributes) & DELETE_HORIZON_BIT
    return (
        not stored
        and not source.is_log_append_time
        and source.base_timestamp_ms == destination.base_timestamp_ms
    )


def _same_records(source: Side, destination: Side, most: int) -> int:
    """Take the decoded records that are the same on both sides, and return how many there are."""
    count, first = min(source.left, destination.left, most), _first_field(destination)
    one = source.contents[source.at : source.at + count]
    other = destination.contents[destination.at : destination.at + count]
    if first:
        one, other = [each[first:] for each in one], [each[first:] for each in other]  # type: ignore[misc]  # without their timestamps
    if one != other:
        pairs = enumerate(zip(one, other, strict=True))
        count = next(at for at, (left, right) in pairs if left != right)
    source.at += count
    destination.at += count
    return count


def _first_field(destination: Side) -> int:
    """Return 1, to leave the timestamps out, if the destination's brokers set their own."""
    return int(destination.is_append_time)


def _difference(source: Side, destination: Side, *, filtered: bool) -> Difference:
    shown = show(source.peek(), destination.peek())
    first = _first_field(destination)
    left = list(source.rest(first)), list(destination.rest(first))
    if not filtered:
        return Difference(what_differs(*left), *shown)
    # a filter leaves records out, and nothing tells which: only what is there can be judged
    is_known = not left[1] or left[1][0] in left[0]
    what = (
        "more records are missing at the destination than the ledger says that were left out"
        if is_known
        else "the destination holds a record that the source does not have here"
    )
    return Difference(what, *shown)

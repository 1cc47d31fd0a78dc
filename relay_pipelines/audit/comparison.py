"""Compares one chunk on both sides, up to the first record that differs. Runs in a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from relay_pipelines.audit.retention import CleanupPolicies
from relay_pipelines.audit.undecoded_sides import UndecodedSides
from relay_pipelines.copy.columns import is_log_append_time, records_in
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import DELETE_HORIZON_BIT, HEADER_BYTES, BatchHeader, BatchRun
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import codec_of, name_to_text
from relay_pipelines.protocol.undecoded import Ints

_AT_ONCE = 1 << 20
_STEADY = 512  # records that are the same after a difference: the next ones may be, too
_FILTERED_AT_ONCE = 256  # every record that was left out begins a new part
Content = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Timestamp, key, value and headers of a record: what must be the same on both sides."""


@dataclass(frozen=True, slots=True)
class ComparedChunk:
    """One ledger entry, or all of a compacted topic-partition: what must be the same on both sides.

    Args:
        upstream: the upstream whose offsets these are; empty if they are of several.
        own_logs: the upstreams that have the log of these offsets, as of `SourceLogs.holders`.
        no_own: why none of them has; empty if one does.
        left_out: how many of the source's records are not at the destination.
        producer_id: of its copies, where those of another source may lie between them.
        compacted_at_source: whether compaction may have removed records there.
        policies: what may remove copies.
        entry: of the ledger; None for several.
    """

    source: OffsetRange
    destination: OffsetRange
    records: int
    size_bytes: int
    left_out: int = 0
    producer_id: int | None = None
    compacted_at_source: bool = False
    policies: CleanupPolicies = field(default_factory=CleanupPolicies)
    entry: LedgerEntry | None = None
    upstream: str = ""
    own_logs: Mapping[str, str] = field(default_factory=dict)
    no_own: str = ""

    @property
    def topic_partitions(self) -> set[TopicPartition]:
        """On both sides."""
        return {self.source.topic_partition, self.destination.topic_partition}

    @property
    def is_compacted(self) -> bool:
        """Whether the records are compared key by key."""
        return self.compacted_at_source or self.policies.compact


@dataclass(slots=True)
class Comparison:
    """What was found in a chunk.

    Args:
        upstream: the upstream that was read.
        records: how many are the same on both sides, or gone for a later one of their key.
        undecoded: how many of them are in batches that were compared as bytes.
        difference: where the sides begin to differ; None if they do not.
        unread: why it could not be compared; empty if it was.
        error: why it could not be read; empty if it was.
        superseded: how many of `records` are gone at the destination, because compaction has
            removed them: a later record of their key is there, or they end with a tombstone.
        untimed: how many of `records` have timestamps that the destination's brokers have set.
        not_verified: records that could not be compared, by reason.
    """

    chunk: ComparedChunk
    upstream: str = ""
    records: int = 0
    undecoded: int = 0
    difference: Difference | None = None
    unread: str = ""
    error: str = ""
    superseded: int = 0
    untimed: int = 0
    not_verified: Counter[str] = field(default_factory=Counter)

    @property
    def size_bytes(self) -> int:
        """How much was to be read, as of a count."""
        return self.chunk.size_bytes


class Side:
    """The committed records of a chunk on one side; whole batches of it need not be decoded.

    Args:
        fetches: of `reader.read`.
        producer_id: of the batches that belong to the chunk, where copies of another source may
            lie between them; None if all do.
    """

    def __init__(
        self, fetches: Iterable[Sequence[FetchedSpan]], producer_id: int | None = None
    ) -> None:
        self.records: list[Any] = []
        self.contents: list[Content] = []
        """Of the records that are decoded and not yet taken, those from `at` on are left."""
        self.at = 0
        self.holes = 0
        """Offsets so far that only a cleaner can have emptied."""
        self.is_append_time = False
        self._decoded: list[FetchedSpan] = []  # what is left comes from them
        self._fetches = iter(fetches)
        self._fetched: list[FetchedSpan] = []  # the next one is the last
        self._producer_id = producer_id

    @property
    def left(self) -> int:
        """How many decoded records are left."""
        return len(self.contents) - self.at

    @property
    def batch(self) -> BatchRun | None:
        """The next batch, if it is whole and not decoded."""
        span = self.span
        if span is None or span.run is None or not span.run.is_single:
            return None
        header = span.run.first
        offsets = header.base_offset, header.last_offset + 1
        return span.run if (span.start, span.end) == offsets else None

    def skip_batch(self) -> int:
        """Take the next batch, undecoded, and return how many records it has."""
        span = self.take_span()
        assert span.run is not None
        return span.run.first.records

    def fill(self) -> bool:
        """Decode a part if no record is left; False if there is none."""
        while not self.left:
            if self.span is None:
                return False
            self._forget()
            self._decode()
        return True

    @property
    def span(self) -> FetchedSpan | None:
        """The next batch, or a part of it; None if decoded records come first, or at the end."""
        return None if self.left else self._next()

    @property
    def has_fetched(self) -> bool:
        """Whether the next batch is there without a fetch."""
        return bool(self._fetched)

    def take_span(self) -> FetchedSpan:
        """Take the next batch, undecoded; its bytes are valid until the next fetch."""
        span = self._fetched.pop()
        self.is_append_time = is_log_append_time(span)
        return span

    def give_back(self, spans: Sequence[FetchedSpan]) -> None:
        """Let these batches be the next ones."""
        self._fetched += reversed(spans)

    def undecode(self) -> None:
        """Give back what is decoded and not yet taken."""
        if self.left:
            first = self.records[self.at].offset
            left = [span for span in self._decoded if span.end > first]
            self._forget()
            self.give_back([left[0]._replace(start=first), *left[1:]])

    def _forget(self) -> None:
        self.records, self.contents, self._decoded, self.at = [], [], [], 0

    @property
    def is_cut(self) -> bool:
        """Whether what follows the decoded records has timestamps of the other kind."""
        span = self._fetched[-1] if self._fetched and self.left else None
        return span is not None and is_log_append_time(span) != self.is_append_time

    def look(self, records: int, size_bytes: int, *, cuts: bool = False) -> bool:
        """Decode ahead until so many records, or bytes of values, are left; False at the end.

        Args:
            cuts: whether to stop where timestamps of the other kind begin.
        """
        del self.records[: self.at], self.contents[: self.at]
        self.at = 0
        first = self.records[0].offset if self.records else None
        self._decoded = [span for span in self._decoded if first is not None and span.end > first]
        ahead = sum(len(content[2] or b"") for content in self.contents)
        while self.left < records and ahead < size_bytes and self._next() is not None:
            if cuts and self.is_cut:
                break
            before = self.left
            self._decode()
            ahead += sum(len(content[2] or b"") for content in self.contents[before:])
        return self.left > records or self._next() is not None

    def _decode(self) -> None:
        """Decode the next part, after what is left."""
        span = self._fetched.pop()
        (records,) = records_in(span)
        self._decoded.append(_kept(span))
        self.is_append_time = is_log_append_time(span)
        self.records += records
        self.contents += [
            (record.timestamp, record.key, record.value, tuple(record.headers))
            for record in records
        ]

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

    def _next(self) -> FetchedSpan | None:
        """Return the next batch, or a part of it; what was fetched before may be invalid then."""
        while not self._fetched:
            spans = next(self._fetches, None)
            if spans is None:
                return None
            self.holes += sum(span.holes for span in spans)
            self._fetched = [span for span in reversed(spans) if self._is_own(span)]
        return self._fetched[-1]

    def _is_own(self, span: FetchedSpan) -> bool:
        run, own = span.run, self._producer_id
        return run is not None and (own is None or own == run.first.producer_id)


class Stretch(NamedTuple):
    """Records that are the same on both sides, one after the other.

    Args:
        records: how many; fewer than offsets only in a batch with the same holes on both sides.
        source, destination: the first and the last offset.
    """

    records: int
    source: tuple[int, int]
    destination: tuple[int, int]


class Same(NamedTuple):
    """What was taken because it is the same on both sides.

    Args:
        undecoded: how many records are in batches that were compared as bytes.
        untimed: how many have timestamps that the destination's brokers have set.
    """

    stretches: Sequence[Stretch]
    undecoded: int
    untimed: int

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(stretch.records for stretch in self.stretches)


class BothSides:
    """Takes what is the same on both sides next, by the cheapest way that can tell.

    Args:
        is_filtered: whether the destination lacks records here and there, so that nothing is gained
            by looking at many before they are decoded.
    """

    def __init__(self, source: Side, destination: Side, *, is_filtered: bool = False) -> None:
        self.undecoded = UndecodedSides(source, destination)
        self._source, self._destination = source, destination
        self._is_filtered = is_filtered
        self._steady = 0  # so many decoded records in a row are the same

    def take_same(self) -> Same | None:
        """Take it; None at a difference, where both sides are decoded, or where one has no more.

        Raises:
            CorruptBatchError: a batch does not match its CRC, or cannot be decoded.
        """
        return self._batch() or self._records_undecoded() or self._records()

    def undecode(self) -> None:
        """Give back what is decoded and not yet taken."""
        self._source.undecode()
        self._destination.undecode()

    def _batch(self) -> Same | None:
        if not self.undecoded.are_at_batches:
            return None
        batch, copy = self._source.batch, self._destination.batch
        if batch is None or copy is None or not are_same(batch, copy):
            return None
        records = self._source.skip_batch()
        self._destination.skip_batch()
        offsets = ((run.first.base_offset, run.first.last_offset) for run in (batch, copy))
        untimed = records if copy.first.is_log_append_time else 0
        return Same([Stretch(records, *offsets)] if records else (), records, untimed)

    def _records_undecoded(self) -> Same | None:
        if self._is_filtered:
            return None
        if self._steady >= _STEADY:
            self.undecode()
        taken = self.undecoded.take_same()
        return None if taken is None else Same(_stretches(*taken[:2]), 0, taken.untimed)

    def _records(self) -> Same | None:
        source, destination = self._source, self._destination
        source.fill()
        destination.fill()
        one, other = source.at, destination.at
        count = same_records(
            source, destination, _FILTERED_AT_ONCE if self._is_filtered else _AT_ONCE
        )
        self._steady = self._steady + count if count else 0
        if not count:
            return None
        offsets = (
            np.array([record.offset for record in side.records[start : start + count]])
            for side, start in ((source, one), (destination, other))
        )
        return Same(_stretches(*offsets), 0, count if destination.is_append_time else 0)


def _stretches(source: Ints, destination: Ints) -> list[Stretch]:
    """Return the stretches without a hole of records that are the same."""
    steps = np.diff(source) != 1, np.diff(destination) != 1
    stops = (np.flatnonzero(steps[0] | steps[1]) + 1).tolist()
    return [
        Stretch(
            stop - start,
            (int(source[start]), int(source[stop - 1])),
            (int(destination[start]), int(destination[stop - 1])),
        )
        for start, stop in zip([0, *stops], [*stops, len(source)], strict=True)
    ]


def compare(source: Side, destination: Side, chunk: ComparedChunk) -> Comparison:
    """Compare both sides of a chunk in order.

    Raises:
        CorruptBatchError: a batch does not match its CRC, or cannot be decoded.
    """
    comparison, left_out, may_leave_out = Comparison(chunk), 0, chunk.left_out
    both = BothSides(source, destination, is_filtered=may_leave_out > 0)
    while True:
        if (same := both.take_same()) is not None:
            comparison.records += same.records
            comparison.undecoded += same.undecoded
            comparison.untimed += same.untimed
            continue
        if not source.left and not destination.left:
            break
        if source.left and left_out < may_leave_out:
            source.at += 1
            left_out += 1
            continue
        comparison.difference = _difference(source, destination, filtered=may_leave_out > 0)
        return comparison
    if left_out < may_leave_out:
        fewer = may_leave_out - left_out
        what = f"the source has {fewer:,} records fewer than the ledger says that were left out"
        comparison.difference = Difference(what, None, None)
    return comparison


def _kept(span: FetchedSpan) -> FetchedSpan:
    """Return a span with bytes of its own."""
    run = span.run
    return (
        span if run is None else span._replace(run=run._replace(data=memoryview(bytes(run.data))))
    )


def are_same(source: BatchRun, destination: BatchRun) -> bool:
    """Whether two batches hold the same records, without decoding them.

    Offsets and timestamps of records are relative to their batch.
    """
    one, other = source.first, destination.first
    return (
        one.size_bytes == other.size_bytes
        and one.records == other.records
        and codec_of(one) == codec_of(other)
        and (other.is_log_append_time or _are_timed_alike(one, other))
        # comparing memoryviews of bytes goes item by item, which costs several times the copies
        and bytes(source.data[HEADER_BYTES:]) == bytes(destination.data[HEADER_BYTES:])
    )


def _are_timed_alike(source: BatchHeader, destination: BatchHeader) -> bool:
    # the cleaner of a compacted topic stores another time there (KIP-534)
    stored = (source.attributes | destination.attributes) & DELETE_HORIZON_BIT
    return (
        not stored
        and not source.is_log_append_time
        and source.base_timestamp_ms == destination.base_timestamp_ms
    )


def same_records(source: Side, destination: Side, most: int) -> int:
    """Take the decoded records that are the same on both sides, and return how many there are."""
    count, first = min(source.left, destination.left, most), first_field(destination)
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


def first_field(destination: Side) -> int:
    """Return 1, to leave the timestamps out, if the destination's brokers set their own."""
    return int(destination.is_append_time)


def _difference(source: Side, destination: Side, *, filtered: bool) -> Difference:
    shown = show(source.peek(), destination.peek())
    first = first_field(destination)
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


_FIELDS = ("offset", "timestamp_ms", "key", "value", "headers")
_SHOWN_BYTES = 64
_CONTEXT_BYTES = 24  # before the first byte that differs
_UTF8_BYTES = 4  # of the longest character
_CONTINUATION = 0x80  # the high bits of a byte that does not begin a character


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as people read it.

    Args:
        key, value, headers: UTF-8 if it is printable on both sides, otherwise hex; cut around the
            first byte that differs.
    """

    offset: int
    timestamp_ms: int
    key: str
    value: str
    headers: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two sides begin to differ.

    Args:
        what: what is wrong in the chunk from there on.
        source, destination: the first records that differ; None where that side has none left.
        is_of_both: whether both sides were read; False if the destination alone shows it.
    """

    what: str
    source: ShownRecord | None
    destination: ShownRecord | None
    is_of_both: bool = True

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Each field of the first records by name, as text on both sides."""
        sides = self.source, self.destination
        return [
            (name, *("no record" if side is None else str(getattr(side, name)) for side in sides))
            for name in _FIELDS
        ]

    @property
    def fields(self) -> list[str]:
        """The fields in which the first records differ; the record if one side has none."""
        if self.source is None or self.destination is None:
            return ["record"]
        return [name for name, one, other in self.rows[1:] if one != other] or ["record"]


def show(source: Any, destination: Any) -> tuple[ShownRecord | None, ShownRecord | None]:
    """Return two records as text; either may be None."""
    keys = excerpts(getattr(source, "key", None), getattr(destination, "key", None))
    values = excerpts(getattr(source, "value", None), getattr(destination, "value", None))
    headers = _headers(getattr(source, "headers", ()), getattr(destination, "headers", ()))
    one, other = (
        record
        and ShownRecord(record.offset, record.timestamp, keys[side], values[side], headers[side])
        for side, record in enumerate((source, destination))
    )
    return one, other


def excerpts(one: bytes | None, other: bytes | None) -> tuple[str, str]:
    """Return two values as text, cut around the first byte that differs."""
    pairs = enumerate(zip(one or b"", other or b"", strict=False))
    shorter = min(len(one or b""), len(other or b""))
    differs = next((at for at, (left, right) in pairs if left != right), shorter)
    longer = max(len(one or b""), len(other or b""))
    start = max(0, differs - _CONTEXT_BYTES) if longer > _SHOWN_BYTES else 0
    texts = [_text(one, start), _text(other, start)]
    printable = None not in texts
    first, second = (
        _excerpt(whole, start, text if printable else None)
        for whole, text in zip((one, other), texts, strict=True)
    )
    return first, second


def what_differs(source: Sequence[Hashable], destination: Sequence[Hashable]) -> str:
    """Say what happened to the rest of a chunk, which begins with the first difference.

    Args:
        source, destination: what identifies the records that are left on each side, in order.
    """
    missing = (Counter(source) - Counter(destination)).total()
    added = (Counter(destination) - Counter(source)).total()
    changed = sum(one != other for one, other in zip(source, destination, strict=False))
    if not missing and not added:
        return "the same records are in another order"
    if not destination:
        return f"the copies end here: {_records(missing)} missing"
    if not added:
        return f"{_records(missing)} missing at the destination"
    # records were added, so that as many of the chunk's last ones lie after its copies
    shifted = missing == added and list(source[:-added]) == list(destination[added:])
    if not missing or (shifted and changed > missing):
        return f"{_records(added)} at the destination, but not in the source"
    if len(source) == len(destination) and changed == missing:
        return f"{missing:,} {'record differs' if missing == 1 else 'records differ'}"
    return (
        f"{_records(missing)} missing at the destination, and {_records(added)} there, but not in"
        " the source"
    )


def _records(count: int) -> str:
    return f"{count:,} record is" if count == 1 else f"{count:,} records are"


def _text(whole: bytes | None, start: int) -> str | None:
    """Return what is shown as printable UTF-8, or None; without the parts of cut characters."""
    part = (whole or b"")[start : start + _SHOWN_BYTES]
    begins = (at for at, byte in enumerate(part[:_UTF8_BYTES]) if byte & 0xC0 != _CONTINUATION)
    begin = next(begins, 0) if start else 0
    is_cut = start + len(part) < len(whole or b"")
    for missing in range(_UTF8_BYTES if is_cut else 1):
        with suppress(UnicodeDecodeError):
            text = part[begin : len(part) - missing].decode()
            return text if text.isprintable() else None
    return None


def _excerpt(whole: bytes | None, start: int, text: str | None) -> str:
    if whole is None:
        return "null"
    part = whole[start : start + _SHOWN_BYTES]
    shown = part.hex(" ") if text is None else text
    if len(part) == len(whole):
        return shown
    before, after = "…" if start else "", "…" if start + len(part) < len(whole) else ""
    return f"{before}{shown}{after} ({len(whole):,} bytes, from {start:,})"


def _headers(one: Sequence[Any], other: Sequence[Any]) -> tuple[str, str]:
    """Return both lists of headers as `name=value`, each value cut like those of records."""
    texts: tuple[list[str], list[str]] = [], []
    for pair in zip_longest(one, other):
        values = excerpts(*(header[1] if header else None for header in pair))
        for text, header, value in zip(texts, pair, values, strict=True):
            if header:
                text.append(f"{name_to_text(header[0])}={value}")
    return ", ".join(texts[0]), ", ".join(texts[1])

"""Compares the records of each key, for topics that are compacted. Runs in a task.

The cleaner removes records of a key only from the oldest on, and keeps the newest one, unless that
is a tombstone. So of each key, what one side has is what the other one ends with. Every record that
is on both sides is compared; what is missing is explained by a later record of its key, or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from relay_pipelines.audit.comparison import (
    ComparedChunk,
    Comparison,
    Difference,
    ShownRecord,
    excerpts,
)
from relay_pipelines.copy.columns import is_log_append_time, records_in
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import digest_of

AT_SOURCE = "compaction at the source has removed them"
ON_BOTH_SIDES = "compaction has removed them on both sides"
_RECORD = Struct(">qqB8s")  # offset, timestamp, flags, digest without the timestamp
_TOMBSTONE, _APPEND_TIME = 1, 2
_DIGEST_FROM = 17

Part = tuple[Sequence[Any], bool]
"""Records with offset, timestamp, key, value and headers, and whether a broker set their times."""
Log = dict[bytes | None, bytearray]
"""The records of each key, `_RECORD` after `_RECORD`, in order."""


def compare_keys(
    source: Iterable[Part], destination: Iterable[Part], chunk: ComparedChunk
) -> Comparison:
    """Compare all records of each key; the order between records of different keys is not compared.

    Args:
        source, destination: from the first offset that is compared up to the end of the log, so
            that they show which keys come again later.
    """
    logs = *_log(source, chunk.source), *_log(destination, chunk.destination)
    return _Keys(*logs, chunk, Comparison(chunk)).compare()


def decoded(fetches: Iterable[Sequence[FetchedSpan]]) -> Iterator[Part]:
    """Yield the records of what `reader.read` returns."""
    for span in (span for spans in fetches for span in spans):
        for records in records_in(span):
            yield records, is_log_append_time(span)


def _log(parts: Iterable[Part], offset_range: OffsetRange) -> tuple[Log, set[bytes | None]]:
    """Return the records of a range by key, and the keys that come again after it."""
    log: Log = {}
    later: set[bytes | None] = set()
    for records, append_time in parts:
        for record in records:
            if record.offset >= offset_range.end:
                later.add(record.key)
            elif record.offset >= offset_range.start:
                log.setdefault(record.key, bytearray()).extend(_packed(record, append_time))
    return log, later


def _packed(record: Any, append_time: bool) -> bytes:  # noqa: FBT001 - once per record
    flags = (_TOMBSTONE if record.value is None else 0) | (_APPEND_TIME if append_time else 0)
    digest = bytes.fromhex(digest_of(0, record.key, record.value, list(record.headers)))
    return _RECORD.pack(record.offset, record.timestamp, flags, digest)


@dataclass
class _Keys:
    source: Log
    later_at_source: set[bytes | None]
    destination: Log
    later_at_destination: set[bytes | None]
    chunk: ComparedChunk
    comparison: Comparison
    differing: list[tuple[bytes | None, bytes | None, bytes | None]] = field(default_factory=list)
    only_there: int = 0

    def compare(self) -> Comparison:
        for key in self.source.keys() | self.destination.keys():
            sides = self.source.get(key, b""), self.destination.get(key, b"")
            self._compare(key, *map(bytes, sides))
        comparison = self.comparison
        if self.differing:
            comparison.difference = _difference(self.differing)
        gone = self.chunk.records - comparison.records - self.only_there
        comparison.not_verified = +Counter(
            {AT_SOURCE: self.only_there, ON_BOTH_SIDES: max(0, gone)}
        )
        return comparison

    def _compare(self, key: bytes | None, source: bytes, destination: bytes) -> None:
        size = min(len(source), len(destination))
        pairs = zip(
            _records(source[len(source) - size :]),
            _records(destination[len(destination) - size :]),
            strict=True,
        )
        for one, other in pairs:
            if not _are_same(one, other):
                self.differing.append((key, one, other))
                return
            self.comparison.untimed += bool(other[_DIGEST_FROM - 1] & _APPEND_TIME)
        self.comparison.records += size // _RECORD.size
        missing = (len(source) - size) // _RECORD.size
        added = (len(destination) - size) // _RECORD.size
        if missing and not self._may_miss_at_destination(key, source, destination):
            self.differing.append((key, source[: _RECORD.size], None))
        elif added and not self._may_miss_at_source(key, source, destination):
            self.differing.append((key, None, destination[: _RECORD.size]))
        else:
            self.comparison.records += missing
            self.comparison.superseded += missing
            self.only_there += added

    def _may_miss_at_destination(
        self, key: bytes | None, source: bytes, destination: bytes
    ) -> bool:
        # the cleaner deletes records without a key, but no later one replaces them
        is_replaced = bool(destination) or key in self.later_at_destination or _ends(source)
        return self.chunk.policies.compact and key is not None and is_replaced

    def _may_miss_at_source(self, key: bytes | None, source: bytes, destination: bytes) -> bool:
        is_replaced = bool(source) or key in self.later_at_source or _ends(destination)
        return self.chunk.compacted_at_source and (key is None or is_replaced)


def _records(log: bytes) -> Iterator[bytes]:
    return (log[at : at + _RECORD.size] for at in range(0, len(log), _RECORD.size))


def _are_same(source: bytes, destination: bytes) -> bool:
    if destination[_DIGEST_FROM - 1] & _APPEND_TIME:
        return source[_DIGEST_FROM:] == destination[_DIGEST_FROM:]
    # all but the offset, and the flag of append time, which a copy has as its own time
    return source[8:16] == destination[8:16] and source[_DIGEST_FROM:] == destination[_DIGEST_FROM:]


def _ends(log: bytes) -> bool:
    """Whether the newest record of a key is a tombstone, which the cleaner removes in time."""
    return bool(log[-_RECORD.size + _DIGEST_FROM - 1] & _TOMBSTONE)


def _difference(differing: list[tuple[bytes | None, bytes | None, bytes | None]]) -> Difference:
    """Return the first difference; of the records, only digests are in memory."""

    def offset(row: tuple[bytes | None, bytes | None, bytes | None]) -> int:
        return min(int(_RECORD.unpack(record)[0]) for record in row[1:] if record)

    key, source, destination = min(differing, key=offset)
    keys = len(differing)
    what = f"the records of {keys:,} {'key' if keys == 1 else 'keys'} differ"
    if keys == 1 and key is None:
        what = "the records without a key differ"
    name, _ = excerpts(key, key)
    return Difference(what, _shown(name, source), _shown(name, destination))


def _shown(key: str, record: bytes | None) -> ShownRecord | None:
    if record is None:
        return None
    offset, timestamp, flags, digest = _RECORD.unpack(record)
    value = "null" if flags & _TOMBSTONE else f"digest {digest.hex()}"
    return ShownRecord(offset, timestamp, key, value, "")

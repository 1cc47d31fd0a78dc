"""Compares the latest record of each key, for topics that are compacted. Runs in a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from relay_pipelines.copy.columns import is_log_append_time, records_in
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import digest_of
from relay_pipelines.verify.comparison import Comparison, Part
from relay_pipelines.verify.difference import Difference, ShownRecord, excerpts


class _Latest(NamedTuple):
    """The latest record of a key.

    Args:
        digest: of all that must be the same; empty for a tombstone.
        content_digest: without the timestamp, for brokers that set their own.
    """

    offset: int
    timestamp_ms: int
    digest: str
    content_digest: str
    is_append_time: bool


def compare_latest(
    source: Iterable[Part],
    destination: Iterable[Part],
    copied: OffsetRange,
) -> Comparison:
    """Compare the latest record of each key; `records` of the result are the keys that agree.

    A key may be missing on either side if its latest record is a tombstone, because the cleaner
    removes those in time. A key that the source has again after the copied range may have lost its
    older record on either side.

    Args:
        source: the whole log, so that it shows which keys come again later.
        copied: the source offsets that were copied.
    """
    at_source: dict[bytes | None, _Latest] = {}
    again: set[bytes | None] = set()
    for offset, key, latest in _latest(source):
        if offset < copied.end:
            at_source[key] = latest
        else:
            again.add(key)
    copies = {key: latest for _, key, latest in _latest(destination)}
    found, differing = Comparison(), []
    for key in (at_source.keys() | copies.keys()) - again - {None}:
        one, other = at_source.get(key), copies.get(key)
        if _agree(one, other):
            found.records += 1
        elif one is None or one.offset >= copied.start:
            differing.append((key, one, other))
    if differing:
        differing.sort(key=lambda each: min(latest.offset for latest in each[1:] if latest))
        found.difference = _difference(len(differing), *differing[0])
    return found


def decoded(fetches: Iterable[Sequence[FetchedSpan]]) -> Iterator[Part]:
    """Yield the records of what `reader.read` returns."""
    for span in (span for spans in fetches for span in spans):
        for records in records_in(span):
            yield records, is_log_append_time(span)


def _latest(parts: Iterable[Part]) -> Iterator[tuple[int, bytes | None, _Latest]]:
    for records, append_time in parts:
        for record in records:
            yield record.offset, record.key, _latest_of(record, append_time=append_time)


def _latest_of(record: Any, *, append_time: bool) -> _Latest:
    if record.value is None:
        return _Latest(record.offset, record.timestamp, "", "", append_time)
    content = record.key, record.value, list(record.headers)
    return _Latest(
        record.offset,
        record.timestamp,
        digest_of(record.timestamp, *content),
        digest_of(0, *content),
        append_time,
    )


def _agree(source: _Latest | None, destination: _Latest | None) -> bool:
    if source is None or destination is None:
        return not any(latest.digest for latest in (source, destination) if latest)
    if destination.is_append_time:
        return source.content_digest == destination.content_digest
    return source.digest == destination.digest


def _difference(
    keys: int, key: bytes | None, source: _Latest | None, destination: _Latest | None
) -> Difference:
    """Return the difference of one key; of its records, only digests are in memory."""
    name, _ = excerpts(key, key)

    def shown(latest: _Latest | None) -> ShownRecord | None:
        if latest is None:
            return None
        value = f"digest {latest.digest}" if latest.digest else "null"
        return ShownRecord(latest.offset, latest.timestamp_ms, name, value, "")

    what = "the latest record of 1 key differs"
    if keys > 1:
        what = f"the latest records of {keys:,} keys differ"
    return Difference(what, shown(source), shown(destination))

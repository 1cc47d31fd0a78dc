"""Compares all partitions of a topic key by key, or as a multiset. Nothing in it needs Spark.

Records become rows of bytes that sort by key, side and order. Whoever sorts them, in memory or in
Spark's shuffle, gives them back group by group; no more than one group is in memory.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, groupby
from operator import not_
from struct import Struct
from typing import Any, NamedTuple

from relay_pipelines.audit.comparison import Side
from relay_pipelines.compare.alignment import (
    FIELDS,
    KEY,
    TIMESTAMP,
    Alignment,
    Pairs,
    align,
    by,
    changed_fields,
    common,
)
from relay_pipelines.compare.in_order import digest_of_tail
from relay_pipelines.compare.pairs import (
    BEYOND_THE_END,
    CHANGED,
    CLEANED,
    CLEANED_MEANWHILE,
    DUPLICATED,
    EXTRA,
    MANY_OF_ONE_KEY,
    MISSING,
    OUT_OF_ORDER,
    PERHAPS_HIDDEN,
    TRIMMED_AT_DESTINATION,
    TRIMMED_AT_SOURCE,
    JudgedCommit,
    Log,
    Pair,
    PairResult,
)
from relay_pipelines.compare.reading import Reader, Readers
from relay_pipelines.compare.request import Align
from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.records import tail_of

GROUP_BYTES = 16
_PLACE = Struct(">BIq")  # side, partition, offset: they sort as they are numbered
_CONTENT = Struct(">qB16s")  # timestamp, flags, digest of the value
_NO_KEY, _TOMBSTONE, _APPEND_TIME = 1, 2, 4
_NOTHING = bytes(16)
_HOLES = b"\xff" * GROUP_BYTES  # the group of rows that count the holes of a log
_MOST_ROWS = 1 << 18  # of a group
_MOST_MISSING = 1 << 16  # of which the offsets are kept
_ALL = range(len(FIELDS))
_TIMELESS = range(KEY, len(FIELDS))


class Row(NamedTuple):
    """A record; the first fields are those of `Content`, with digests for key and value."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str], ...]
    side: int
    partition: int
    offset: int
    is_append_time: bool


def rows(reader: Reader, pair: Pair, side: int, log: Log) -> Iterator[bytes]:
    """Yield the records of a log as rows, and how many holes it has.

    Raises:
        RelayError: the cluster does not answer, or refuses; or retention deletes what is read; or
            the times of the destination choose other records than those of the source.
    """
    by_key, partition = pair.align is Align.KEY, log.topic_partition.partition
    with closing(reader.fetches(log.range)) as lists:
        records = Side(lists)
        while records.fill():
            flag = _APPEND_TIME if records.is_append_time else 0
            if flag and side and (pair.from_ms, pair.until_ms) != (None, None):
                raise RelayError(
                    f"the destination has set the times of {log.topic_partition}, which choose"
                    " other records than those of the source",
                    remedy="leave out --from and --until",
                )
            for record, content in zip(records.records, records.contents, strict=True):
                if pair.has(record.timestamp):
                    place = _PLACE.pack(side, partition, record.offset)
                    yield _group(content, by_key=by_key) + place + _packed(content, flag)
            records.at = len(records.contents)
    if records.holes:
        yield _HOLES + _PLACE.pack(side, partition, records.holes)


def _group(content: Sequence[Any], *, by_key: bool) -> bytes:
    if by_key and content[KEY] is not None:
        return digest_of_tail(tail_of(content[KEY], None, ()))
    return digest_of_tail(tail_of(*content[KEY:]))


def _packed(content: Sequence[Any], flags: int) -> bytes:
    timestamp, key, value, headers = content
    flags |= (_NO_KEY if key is None else 0) | (_TOMBSTONE if value is None else 0)
    made = _NOTHING if value is None else digest_of_tail(tail_of(None, value, ()))
    packed = _CONTENT.pack(timestamp, flags, made)
    if headers:
        named = [
            (name, digest_of_tail(tail_of(None, header_value, ())).hex())
            for name, header_value in headers
        ]
        packed += json.dumps(named).encode()
    return packed


def _unpacked(row: bytes) -> Row:
    side, partition, offset = _PLACE.unpack_from(row, GROUP_BYTES)
    at = GROUP_BYTES + _PLACE.size
    timestamp, flags, value = _CONTENT.unpack_from(row, at)
    named = row[at + _CONTENT.size :]
    return Row(
        timestamp,
        None if flags & _NO_KEY else row[:GROUP_BYTES],
        None if flags & _TOMBSTONE else value,
        tuple((name, made) for name, made in json.loads(named)) if named else (),
        side,
        partition,
        offset,
        bool(flags & _APPEND_TIME),
    )


def _newest(source: Sequence[Any], destination: Sequence[Any]) -> Pairs:
    """Return what is common, from the end on: a cleaner removes the oldest records of a key."""
    last = len(source) - 1, len(destination) - 1
    pairs = common(source[::-1], destination[::-1])
    return [(last[0] - one, last[1] - other) for one, other in reversed(pairs)]


def _retime(alignment: Alignment, source: Sequence[Row], destination: Sequence[Row]) -> None:
    """Name records as changed that the destination has with other times, which it has not set."""
    for pairs in (alignment.same, alignment.moved):
        is_timed = [
            not destination[other].is_append_time
            and source[one].timestamp != destination[other].timestamp
            for one, other in pairs
        ]
        alignment.changed += [*compress(pairs, is_timed)]
        pairs[:] = [*compress(pairs, map(not_, is_timed))]


@dataclass(slots=True)
class GroupsResult:
    """What was found in some of the groups of a topic.

    Args:
        pair_result: all but what is missing at the destination, as far as its offsets are kept.
        last: the last offset of each source partition that is the same in each partition of the
            destination: each of these may be behind.
        ends: the last offset of each partition of the destination that is the same, and the last
            one that is extra: one that has extra ones after the same ones is not just behind.
        missing: partition and offset of source records that are not at the destination, the
            partition there that has their key, -1 if none has, and how many come from there on,
            which is more than one where too many are missing.
        ended: partition and offset of those that the destination may have had, up to a tombstone.
        without_key: those of records of each side without any of their key on the other one, which
            a cleaner may have removed for one that came after the comparison began.
        holes: as of `PairResult.excuse`.
    """

    pair_result: PairResult
    last: dict[int, dict[int, int]] = field(default_factory=dict)
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    missing: list[tuple[int, int, int, int]] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    without_key: tuple[list[tuple[int, int]], list[tuple[int, int]]] = field(
        default_factory=lambda: ([], [])
    )
    holes: list[int] = field(default_factory=lambda: [0, 0])

    def reach(self, partition: int, same: int = -1, extra: int = -1) -> None:
        """Note offsets of the destination."""
        ends = self.ends.get(partition, (-1, -1))
        self.ends[partition] = max(same, ends[0]), max(extra, ends[1])


class ByKey:
    """Compares groups, one after the other."""

    def __init__(self, pair: Pair) -> None:
        self.result = GroupsResult(PairResult(pair))
        self._total = self.result.pair_result
        self._crowd: dict[tuple[int, int], tuple[int, int]] = {}  # of `missing`: offset and count
        self._pair = pair
        self._trimmed = [any(log.is_trimmed for log in logs) for logs in pair.sides]
        self._topics = [logs[0].topic_partition.topic for logs in pair.sides]

    def compare(self, sorted_rows: Iterable[bytes]) -> GroupsResult:
        """Compare all groups of rows, which come sorted."""
        for name, group in groupby(sorted_rows, key=lambda row: row[:GROUP_BYTES]):
            if name == _HOLES:
                for row in group:
                    side, _, holes = _PLACE.unpack_from(row, GROUP_BYTES)
                    self.result.holes[side] += holes
            else:
                self._compare(group)
        self.result.missing += [
            (partition, first, there, count)
            for (partition, there), (first, count) in self._crowd.items()
        ]
        return self.result

    def _compare(self, group: Iterable[bytes]) -> None:
        sides: tuple[list[Row], list[Row]] = [], []
        counts = [0, 0]
        for packed in group:
            side = packed[GROUP_BYTES]
            counts[side] += 1
            if len(sides[side]) < _MOST_ROWS:
                sides[side].append(_unpacked(packed))
        if max(counts) > _MOST_ROWS:
            self._count_only(sides, counts)
            return
        self._judge(*sides)

    def _count_only(self, sides: tuple[list[Row], list[Row]], counts: list[int]) -> None:
        source, destination = counts
        self._total.not_compared[MANY_OF_ONE_KEY] += min(counts)
        self._total.bounded = True
        kind, first = (MISSING, sides[0]) if source > destination else (EXTRA, sides[1])
        if source != destination:
            place = self._place(first[0])
            for row in sides[1] if kind is EXTRA else ():
                self.result.reach(row.partition, extra=sys.maxsize)  # which, nobody knows
            at, there = (place, None) if kind is MISSING else (None, place)
            self._total.note(kind, at, there, abs(source - destination))

    def _judge(self, source: list[Row], destination: list[Row]) -> None:
        timed = not any(row.is_append_time for row in destination)
        fields = _ALL if timed else _TIMELESS
        is_ordered = self._is_ordered(source) and self._is_ordered(destination)
        pairs = (
            _newest([by(row, fields) for row in source], [by(row, fields) for row in destination])
            if is_ordered
            else []
        )
        alignment = align(source, destination, fields, pairs, compacted=any(self._pair.compacts))
        if not timed:
            _retime(alignment, source, destination)
        if not is_ordered:
            alignment.same, alignment.moved = alignment.moved, []
        # where no order is known, any record may have been before those that are the same
        of_order = (
            [*alignment.same, *alignment.changed] if is_ordered or any(self._pair.compacts) else []
        )
        firsts = [min((pair[side] for pair in of_order), default=None) for side in (0, 1)]
        self._take(alignment, source, destination, fields)
        self._take_missing(alignment.missing, source, destination, firsts[0])
        self._take_extra(alignment.extra, source, destination, firsts[1], fields)

    def _is_ordered(self, some: list[Row]) -> bool:
        one = len({row.partition for row in some}) <= 1
        return one and self._pair.align is Align.KEY and not (some and some[0].key is None)

    def _take(
        self, alignment: Alignment, source: list[Row], destination: list[Row], fields: Sequence[int]
    ) -> None:
        total = self._total
        for one, other in alignment.same:
            total.same += 1
            total.untimed += TIMESTAMP not in fields
            self._matched(source[one], destination[other])
        for one, other in alignment.moved:
            total.note(OUT_OF_ORDER, self._place(source[one]), self._place(destination[other]))
        for one, other in alignment.changed:
            self._matched(source[one], destination[other])
            own = _TIMELESS if destination[other].is_append_time else _ALL
            names, added = changed_fields(source[one], destination[other], own)
            total.note(CHANGED, self._place(source[one]), self._place(destination[other]))
            total.changed[names] += 1
            if added:
                total.added[added] += 1

    def _matched(self, one: Row, other: Row) -> None:
        last = self.result.last.setdefault(one.partition, {})
        last[other.partition] = max(one.offset, last.get(other.partition, -1))
        self.result.reach(other.partition, same=other.offset)
        if len(self._pair.sources) == 1:
            self._total.map(one.offset, other.offset, 1)

    def _take_missing(
        self, missing: list[int], source: list[Row], destination: list[Row], first: int | None
    ) -> None:
        ends = not destination and source and source[-1].value is None
        there = destination[-1].partition if destination else -1
        for index in missing:
            is_before = first is None or index < first
            place = source[index].partition, source[index].offset
            if self._pair.compacts[1] and ends and len(self.result.ended) < _MOST_MISSING:
                self.result.ended.append(place)
            elif self._pair.compacts[1] and (ends or (first is not None and index < first)):
                self._total.superseded += 1
            elif self._trimmed[1] and is_before:
                self._total.not_compared[TRIMMED_AT_DESTINATION] += 1
            elif self._pair.compacts[1] and source[index].key is None:
                self._total.not_compared[CLEANED] += 1  # it was there before the topic compacted
            elif not destination and self._may_be_cleaned(source[index]):
                continue
            elif len(self.result.missing) < _MOST_MISSING:
                self.result.missing.append((*place, there, 1))
            else:
                partition, offset = place
                before, count = self._crowd.get((partition, there), (offset, 0))
                self._crowd[partition, there] = min(before, offset), count + 1
                self._total.bounded = True

    def _take_extra(
        self,
        extra: list[int],
        source: list[Row],
        destination: list[Row],
        first: int | None,
        fields: Sequence[int],
    ) -> None:
        originals = {by(row, fields): row for row in reversed(source)} if extra else {}
        ends = destination and destination[-1].value is None
        for index in extra:
            row = destination[index]
            original = originals.get(by(row, fields))
            is_before = first is None or index < first
            if original is not None:
                self._total.note(DUPLICATED, self._place(original), self._place(row))
            elif self._pair.compacts[0] and is_before and (source or ends):
                self._total.superseded += 1
            elif self._trimmed[0] and is_before:
                self._total.not_compared[TRIMMED_AT_SOURCE] += 1
            elif self._pair.compacts[0] and row.key is None:
                self._total.not_compared[CLEANED] += 1
            elif source or not self._may_be_cleaned(row):
                self._total.note(EXTRA, None, self._place(row))
                self.result.reach(row.partition, extra=row.offset)

    def _may_be_cleaned(self, row: Row) -> bool:
        """Keep a record without any of its key on the other side, if that is compacted."""
        places = self.result.without_key[row.side]
        is_kept = self._pair.compacts[1 - row.side] and len(places) < _MOST_MISSING
        if is_kept:
            places.append((row.partition, row.offset))
        return is_kept

    def _place(self, row: Row) -> tuple[TopicPartition, int]:
        return TopicPartition(self._topics[row.side], row.partition), row.offset


def merged(
    parts: Sequence[GroupsResult], has_grown: tuple[bool, bool] = (False, False)
) -> PairResult:
    """Return what was found in all groups of a topic.

    Args:
        has_grown: whether source and destination have more since the comparison began.
    """
    first, *others = parts
    total, last = first.pair_result, first.last
    for part in others:
        _add(total, part.pair_result)
        for partition, reached in part.last.items():
            of_source = last.setdefault(partition, {})
            for to, last_there in reached.items():
                of_source[to] = max(last_there, of_source.get(to, -1))
        for partition, ends in part.ends.items():
            first.reach(partition, *ends)
    missing = [place for part in parts for place in part.missing]
    here, there = (sorted(each for part in parts for each in part.without_key[s]) for s in (0, 1))
    if there and has_grown[0]:
        total.not_compared[CLEANED_MEANWHILE] += len(there)
    else:
        topic = total.pair.destinations[0].topic_partition.topic
        for partition, offset in there:
            total.note(EXTRA, None, (TopicPartition(topic, partition), offset))
            first.reach(partition, extra=offset)
    if here and has_grown[1]:
        total.not_compared[CLEANED_MEANWHILE] += len(here)
    else:
        missing += [(*place, -1, 1) for place in here]
    ended = [place for part in parts for place in part.ended]
    total.leave_open(EXTRA, PERHAPS_HIDDEN, sum(log.hidden for log in total.pair.sources))
    has_own = total.numbers[EXTRA] > 0  # which no open transaction explains
    not_behind = {to for to, (same, extra) in first.ends.items() if has_own and extra > same}
    _name_missing(total, sorted(missing), ended, last, not_behind)
    total.excuse([sum(part.holes[side] for part in parts) for side in (0, 1)])
    total.runs.sort()
    unknown = "records are compared by key, which maps no offsets"
    total.judged = [JudgedCommit(commit, unknown=unknown) for commit in total.pair.commits]
    return total


def _name_missing(
    total: PairResult,
    missing: Sequence[tuple[int, int, int, int]],
    ended: Sequence[tuple[int, int]],
    last: Mapping[int, Mapping[int, int]],
    not_behind: Collection[int],
) -> None:
    """Name what the destination does not have.

    Args:
        missing, ended, last: as of `GroupsResult`.
        not_behind: partitions of the destination that end with records of their own.
    """
    behind = {
        partition: {to: at for to, at in reached.items() if to not in not_behind}
        for partition, reached in last.items()
    }
    unknown = math.inf if not_behind else -1

    def end(partition: int, to: int, of: Callable[..., float] = min) -> float:
        """Return the last source offset that a partition of the destination has, if it is behind.

        A key that is nowhere may be on its way to any of those that are.
        """
        if to in not_behind:
            return math.inf
        ends = behind.get(partition, {})
        return ends[to] if to in ends else of(ends.values(), default=unknown)

    topic = total.pair.sources[0].topic_partition.topic
    for partition, offset, to, count in missing:
        if offset > end(partition, to):
            total.not_compared[BEYOND_THE_END] += count
        else:
            total.note(MISSING, (TopicPartition(topic, partition), offset), None, count)
    for partition, offset in ended:
        # no cleaner removes the last record of a log
        if offset > end(partition, -1, max):
            total.not_compared[BEYOND_THE_END] += 1
        else:
            total.superseded += 1


def _add(total: PairResult, more: PairResult) -> None:
    for name in ("same", "untimed", "superseded"):
        setattr(total, name, getattr(total, name) + getattr(more, name))
    for name in ("numbers", "changed", "added", "not_compared"):
        getattr(total, name).update(getattr(more, name))
    total.bounded |= more.bounded
    total.runs += more.runs
    for kind, example in more.first.items():
        known = total.first.setdefault(kind, example)
        if (example.source or example.destination) < (known.source or known.destination):  # type: ignore[operator]  # one side is there
            total.first[kind] = example


def compare_here(readers: Readers, pair: Pair) -> PairResult:
    """Compare a small topic in this process, which sorts its rows in memory.

    Raises:
        RelayError: as `rows`.
    """
    logs = [(side, log) for side in (0, 1) for log in pair.sides[side]]
    all_rows = [row for side, log in logs for row in rows(readers[side], pair, side, log)]
    return merged([ByKey(pair).compare(sorted(all_rows))], have_grown(readers, pair))


def have_grown(readers: Readers, pair: Pair) -> tuple[bool, bool]:
    """Return whether each side has more than when the comparison began."""

    def has(client: ClusterClient, logs: Sequence[Log]) -> bool:
        tps = [log.topic_partition for log in logs]
        ends = client.retry(partial(client.list_offsets, tps, LATEST, READ_COMMITTED))
        return any(ends[log.topic_partition] > log.end for log in logs)

    return has(readers[0].client, pair.sources), has(readers[1].client, pair.destinations)

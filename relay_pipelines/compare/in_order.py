"""Compares two topic-partitions in order, from the first difference to the next. Runs in a task.

Equal batches are compared as bytes. Where the sides differ, a window of decoded records on each
side is aligned; what has no partner in it waits, as a digest, for one that comes later. Windows and
digests are bounded, whatever the topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

from relay_pipelines.audit.comparison import BothSides, Same, Side, Stretch, first_field
from relay_pipelines.compare.alignment import (
    FIELDS,
    HEADERS,
    KEY,
    TIMESTAMP,
    Alignment,
    align,
    anchors,
    changed_fields,
)
from relay_pipelines.compare.pairs import (
    BEYOND_THE_END,
    CHANGED,
    DUPLICATED,
    ELSEWHERE,
    EXTRA,
    FAR,
    MISSING,
    OUT_OF_ORDER,
    PERHAPS_HIDDEN,
    TRIMMED_AT_DESTINATION,
    TRIMMED_AT_SOURCE,
    Commit,
    JudgedCommit,
    Log,
    Pair,
    PairResult,
)
from relay_pipelines.compare.reading import Reader, Readers
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.client import READ_COMMITTED
from relay_pipelines.protocol.records import tail_of

_INT = Struct(">q")
_WINDOWS = (64, 512, 4_096)
_WINDOW_BYTES = 16 << 20
_MOST_WAITING = 1 << 19
_MOST_CHANGED = 1 << 16
_FAR_RECORDS = 1 << 17  # from where the time index leads
_FAR_LOOKS = 16  # that find nothing
_FAR_GROWTH = 8

Content = Sequence[Any]


def digest(content: Content, fields: Sequence[int]) -> bytes:
    """Return what is the same only for records that are the same in these fields.

    Args:
        fields: all of them, or all but the timestamp.
    """
    timestamp, *rest = content
    digested = digest_of_tail(tail_of(*rest))
    return _INT.pack(timestamp) + digested if TIMESTAMP in fields else digested


def digest_of_tail(tail: bytes) -> bytes:
    """Return what is the same only for records that end with the same bytes."""
    return blake2b(tail, digest_size=16).digest()


class _Changed(NamedTuple):
    """Two records that are one, which was changed, unless the same as one of them comes later.

    Args:
        names, added: as of `changed_fields`.
    """

    here: int
    there: int
    names: str
    added: str
    digests: tuple[bytes, bytes]


@dataclass(slots=True)
class _Waiting:
    """Records of one side without the same on the other one yet: their offsets by digest.

    Args:
        crowded: how many more there are, for which there was no room.
        bounds: the first and the last offset of those.
    """

    offsets: dict[bytes, list[int]] = field(default_factory=dict)
    count: int = 0
    crowded: int = 0
    bounds: tuple[int, int] = (-1, -1)

    def take(self, content: bytes) -> int | None:
        """Take one of these records; None if there is none."""
        offsets = self.offsets.get(content)
        if offsets is None:
            return None
        self.count -= 1
        offset = offsets.pop()
        if not offsets:
            del self.offsets[content]
        return offset

    def crowd(self, offset: int) -> None:
        """Count a record for which there is no room: it finds no partner."""
        first, last = self.bounds if self.crowded else (offset, offset)
        self.bounds = min(first, offset), max(last, offset)
        self.crowded += 1

    def discard(self, content: bytes, offset: int) -> bool:
        """Take this record; False if it was taken."""
        offsets = self.offsets.get(content, [])
        if offset not in offsets:
            return False
        offsets.remove(offset)
        self.count -= 1
        if not offsets:
            del self.offsets[content]
        return True

    def add(self, content: bytes, offset: int) -> bool:
        """Let a record wait; False if too many do."""
        if self.count >= _MOST_WAITING:
            return False
        self.count += 1
        self.offsets.setdefault(content, []).append(offset)
        return True


@dataclass(slots=True)
class _Tail:
    """Records of the source after all of the destination's."""

    first: int = -1
    records: int = 0


Bounds = tuple[int, int]
Seen = Callable[[Log, Collection[bytes]], Mapping[bytes, Bounds]]
"""Returns the first and the last offset of each digest in a log, and near its range, too."""
Far = Callable[[Side, Side], tuple[int, int] | None]
"""Returns the source and destination offsets at which both sides may be the same again."""


class InOrder:
    """The comparison of a pair of logs.

    Args:
        far: is asked where the windows have nothing in common.
    """

    def __init__(
        self,
        pair: Pair,
        source: Side,
        destination: Side,
        far: Far,
    ) -> None:
        self.result = PairResult(pair)
        self._source, self._destination, self._far = source, destination, far
        (self._from,), (self._to,) = pair.sources, pair.destinations
        self._at, self._there = self._from.topic_partition, self._to.topic_partition
        self._missing, self._extra = _Waiting(), _Waiting()
        self._hidden = self._from.hidden
        self._tail = _Tail()
        self._both = BothSides(source, destination)
        self._is_retimed = False  # the last records differed in their times alone
        self._marks = sorted({commit.source for commit in pair.commits}, reverse=True)
        self._places: dict[int, int] = {}
        self._moves: list[tuple[int, int]] = []
        self._changed: deque[_Changed] = deque()
        # the last offsets that hold the same record, or one that was changed
        self._last_source = self._last_destination = -1
        self.fields: Sequence[int] = range(len(FIELDS))

    def compare(self) -> None:
        """Compare up to both ends."""
        while True:
            if self._retimed():
                continue
            if (same := self._both.take_same()) is not None:
                self._match(same)
            elif self._source.left and self._destination.left:
                self._resynchronise()
            else:
                break
        self._rest()

    def _retimed(self) -> bool:
        """Take records that differ in their times alone, if those before them did."""
        if not self._is_retimed:
            return False
        self._both.undecode()
        taken = self._both.undecoded.take_same(retimed=True)
        self._is_retimed = taken is not None
        if taken is None:
            return False
        offsets = taken.source.tolist(), taken.destination.tolist()
        digested = [digest_of_tail(tail) for tail in taken.tails]
        here, there = (
            [_INT.pack(time) + tail for time, tail in zip(each.tolist(), digested, strict=True)]
            for each in taken.times
        )
        names = FIELDS[TIMESTAMP]
        for one, other, *digests in zip(*offsets, here, there, strict=True):
            self._wait_changed(_Changed(one, other, names, "", (digests[0], digests[1])))
        return True

    def _match(self, same: Same) -> None:
        self.result.undecoded += same.undecoded
        self.result.untimed += same.untimed
        for records, (one, last), (other, last_there) in same.stretches:
            self.result.same += records
            # what a cleaner has removed of a batch leaves the same holes on both sides
            self.result.map(one, other, records if records == last - one + 1 else 1)
            self._last_source, self._last_destination = last, last_there
            self._pass_marks((one, last), (other, last_there))

    def _pass_marks(self, here: Bounds, there: Bounds) -> None:
        """Note where the copies of records are that groups have not read, up to these records."""
        while self._marks and self._marks[-1] <= here[1]:
            mark = self._marks.pop()
            # a cleaner may have left a batch longer than that which has the same records
            self._places[mark] = min(there[0] + max(0, mark - here[0]), there[1] + 1)

    def _resynchronise(self) -> None:
        """Align what follows the first difference, up to where both sides are the same again."""
        source, destination = self._source, self._destination
        self.fields = range(first_field(destination), len(FIELDS))
        for size in _WINDOWS:
            more = [
                source.look(size, _WINDOW_BYTES),
                destination.look(size, _WINDOW_BYTES, cuts=True),
            ]
            ones, others = source.contents[:size], destination.contents[:size]
            self.fields = range(first_field(destination), len(FIELDS))
            pairs = anchors(ones, others, self.fields)
            if pairs or not any(more):
                break
        else:
            if (place := self._far(source, destination)) is not None:
                self._skip_to(*place)
                return
            if destination.is_cut:  # what they are the same as may follow
                ones = []
        if pairs and any(more):  # what follows the last pair is aligned with what comes
            last = pairs[-1]
            ones, others = ones[: last[0] + 1], others[: last[1] + 1]
        self._take(align(ones, others, self.fields, pairs), ones, others)

    def _take(self, aligned: Alignment, ones: Sequence[Content], others: Sequence[Content]) -> None:
        source, destination = self._source, self._destination
        here = [record.offset for record in source.records[: len(ones)]]
        there = [record.offset for record in destination.records[: len(others)]]
        begins = self._last_source < 0
        first = min((*aligned.same, *aligned.changed), default=(len(ones), len(others)))
        for kind, indices, contents, offsets, limit in (
            (MISSING, aligned.missing, ones, here, first[0]),
            (EXTRA, aligned.extra, others, there, first[1]),
        ):
            for index in indices:
                if not (begins and index < limit and self._is_trimmed(kind)):
                    self._wait(kind, digest(contents[index], self.fields), offsets[index])
        for one, other in aligned.moved:
            self._note_moved(here[one], there[other])
        changed = set(aligned.changed)
        for one, other in sorted((*aligned.same, *aligned.changed)):
            if (one, other) in changed:
                self._wait_changed(
                    self._as_changed(ones[one], others[other], here[one], there[other])
                )
                continue
            places = (here[one], here[one]), (there[other], there[other])
            self._match(Same([Stretch(1, *places)], 0, int(TIMESTAMP not in self.fields)))
        source.at, destination.at = len(ones), len(others)
        others_too = aligned.same or aligned.moved or aligned.missing or aligned.extra
        self._is_retimed = not others_too and all(
            tuple(ones[one][KEY:]) == tuple(others[other][KEY:]) for one, other in aligned.changed
        )

    def _as_changed(self, one: Content, other: Content, here: int, there: int) -> _Changed:
        digests = digest(one, self.fields), digest(other, self.fields)
        return _Changed(here, there, *changed_fields(one, other, self.fields), digests)

    def _wait_changed(self, each: _Changed) -> None:
        """Let two records wait that are one, which was changed: its like may come later."""
        self._last_source = max(each.here, self._last_source)
        self._last_destination = max(each.there, self._last_destination)
        self._pass_marks((each.here, each.here), (each.there, each.there))
        self.result.map(each.here, each.there, 1)
        self._changed.append(each)
        self._wait(MISSING, each.digests[0], each.here)
        self._wait(EXTRA, each.digests[1], each.there)
        if len(self._changed) > _MOST_CHANGED:
            self._note_changed(self._changed.popleft())

    def _note_changed(self, each: _Changed) -> None:
        """Note a changed record, unless what waited for its like has found it."""
        here, there = each.here, each.there
        is_left = self._missing.discard(each.digests[0], here)
        if not self._extra.discard(each.digests[1], there):
            if is_left:
                self._missing.add(each.digests[0], here)
            return
        if not is_left:
            self._extra.add(each.digests[1], there)
            return
        self.result.note(CHANGED, (self._at, here), (self._there, there))
        self.result.changed[each.names] += 1
        if each.added:
            self.result.added[each.added] += 1

    def _wait(self, kind: str, content: bytes, offset: int) -> None:
        """Note a record without a partner, which may have come before, or may come later."""
        own, other = self._missing, self._extra
        if kind is EXTRA:
            own, other = other, own
        partner = other.take(content)
        if partner is not None:
            self._note_moved(*((offset, partner) if kind is MISSING else (partner, offset)))
        elif not own.add(content, offset):
            self.result.bounded = True
            own.crowd(offset)

    def _note_moved(self, here: int, there: int) -> None:
        self.result.note(OUT_OF_ORDER, (self._at, here), (self._there, there))
        if self.result.pair.commits and len(self._moves) < _MOST_WAITING:
            self._moves.append((here, there))

    def _note_alone(self, kind: str, offset: int, count: int = 1) -> None:
        """Note a difference of one side, and where the map expects the record on the other one."""
        is_missing = kind is MISSING
        side, other = (0, 1) if is_missing else (1, 0)
        runs = self.result.runs
        index = bisect_right(runs, offset, key=lambda run: run[side]) - 1
        expected = runs[index][other] + runs[index][2] if index >= 0 else 0
        here, there = (offset, expected) if is_missing else (expected, offset)
        self.result.note(kind, (self._at, here), (self._there, there), count)

    def _is_trimmed(self, kind: str) -> bool:
        """Note a record before the first that is the same, if the other log may have had it."""
        if kind is EXTRA and self._from.is_trimmed:
            self.result.not_compared[TRIMMED_AT_SOURCE] += 1
            return True
        if kind is MISSING and self._to.is_trimmed:
            self.result.not_compared[TRIMMED_AT_DESTINATION] += 1
            return True
        return False

    def _skip_to(self, here: int, there: int) -> None:
        """Take all records before these offsets, which have no partner near."""
        for side, kind, end in (
            (self._source, MISSING, here),
            (self._destination, EXTRA, there),
        ):
            while side.fill() and side.peek().offset < end:
                record, content = side.records[side.at], side.contents[side.at]
                if self._last_source >= 0 or not self._is_trimmed(kind):
                    self._wait(kind, digest(content, self.fields), record.offset)
                side.at += 1

    def _rest(self) -> None:
        """Take what one side has after the end of the other one."""
        source, destination = self._source, self._destination
        destination.fill()
        self.fields = range(first_field(destination), len(FIELDS))
        self._skip_to(self._from.range.start, self._to.range.end)
        if source.fill():
            self._tail.first = source.peek().offset
        while source.fill():
            for record, content in zip(
                source.records[source.at :], source.contents[source.at :], strict=True
            ):
                if self._last_source >= 0 or not self._is_trimmed(MISSING):
                    self._take_late(content, record.offset)
            source.at = len(source.contents)
            while source.batch is not None and self._tail.records and not self._extra.count:
                self._tail.records += source.skip_batch()

    def _take_late(self, content: Content, offset: int) -> None:
        """Take a source record after all of the destination's: its like may have come too early."""
        if not self._to.is_whole:
            self._wait(MISSING, digest(content, self.fields), offset)
            return
        partner = self._extra.take(digest(content, self.fields)) if self._extra.count else None
        if partner is None:
            self._tail.records += 1
        else:
            self._note_moved(offset, partner)

    def judge(self, seen: Seen) -> PairResult:
        """Name what is left without a partner, and judge the commits."""
        while self._changed:
            self._note_changed(self._changed.popleft())
        result, extra = self.result, self._extra.offsets
        originals = seen(self._from, extra) if extra else {}
        last_extra = -1
        for content, offsets in extra.items():
            original = originals.get(content)
            if original is None:
                last_extra = max(last_extra, *offsets)
            for offset in offsets:
                if original is None:
                    self._judge_alone(EXTRA, (offset, offset))
                elif self._is_outside(original, offset):
                    result.outside += 1
                else:
                    result.note(DUPLICATED, (self._at, original[0]), (self._there, offset))
        if self._extra.crowded:
            last_extra = max(last_extra, self._extra.bounds[1])
            self._judge_alone(EXTRA, self._extra.bounds, self._extra.crowded)
        self._judge_missing(seen, is_behind=last_extra <= self._last_destination)
        result.excuse((self._source.holes, self._destination.holes))
        return result

    def _is_outside(self, original: Bounds, there: int) -> bool:
        """Whether a destination record is the copy of one outside of what was asked for.

        Without their times, nobody knows which records of one content these are.

        Args:
            original: where the source has it.
        """
        (first, last), runs, part = original, self.result.runs, self._from.range
        if TIMESTAMP not in self.fields or not runs:
            return first < part.start or last >= part.end
        if there < runs[0][1]:
            return first < part.start
        # of records that are all alike, the first ones of each side are the same
        is_more = first < part.start <= last or last >= part.end
        return there > self._last_destination and is_more

    def _judge_alone(self, kind: str, offsets: Bounds, crowded: int = 0) -> None:
        """Note records of one side, unless the other one may have them hidden, or far away.

        Args:
            offsets: the first and the last.
            crowded: how many were not looked for; 0 for one that was.
        """
        side, other = (0, self._to) if kind is MISSING else (1, self._from)
        last_same = (self._last_source, self._last_destination)[side]
        runs, known = self.result.runs, other.range if crowded else other.around
        is_before = not runs or offsets[1] < runs[0][side]
        is_after = not runs or offsets[0] > last_same
        number = max(1, crowded)
        if kind is EXTRA and offsets[0] > last_same and number <= self._hidden:
            self._hidden -= number
            self.result.not_compared[PERHAPS_HIDDEN] += number
            return
        is_unknown = (is_before and known.start > other.low) or (is_after and known.end < other.end)
        # times lead near, unless the destination has set its own
        if is_unknown and (crowded or TIMESTAMP not in self.fields):
            self.result.not_compared[FAR] += number
        else:
            self._note_alone(kind, offsets[0], number)

    def _judge_missing(self, seen: Seen, *, is_behind: bool) -> None:
        """Name what the destination does not have.

        Args:
            is_behind: whether the destination has nothing of its own after the last same record.
        """
        result, missing = self.result, self._missing.offsets
        copies = seen(self._to, missing) if missing and not self._to.is_whole else {}
        for content, offsets in missing.items():
            for offset in offsets:
                if content in copies:
                    result.not_compared[ELSEWHERE] += 1
                elif is_behind and offset > self._last_source:
                    result.not_compared[BEYOND_THE_END] += 1
                else:
                    self._judge_alone(MISSING, (offset, offset))
        if self._missing.crowded and is_behind and self._missing.bounds[0] > self._last_source:
            result.not_compared[BEYOND_THE_END] += self._missing.crowded
        elif self._missing.crowded:
            self._judge_alone(MISSING, self._missing.bounds, self._missing.crowded)
        if self._tail.records and is_behind:
            result.not_compared[BEYOND_THE_END] += self._tail.records
        elif self._tail.records:
            self._note_alone(MISSING, self._tail.first, self._tail.records)

    def judge_commits(self, count: Callable[[int, int], int]) -> None:
        """Say what becomes of the groups.

        Args:
            count: returns how many records the destination has between two offsets.
        """
        for commit in self.result.pair.commits:
            self.result.judged.append(self._judged(commit, count))

    def _judged(self, commit: Commit, count: Callable[[int, int], int]) -> JudgedCommit:
        judged = JudgedCommit(commit)
        if commit.destination < 0:
            return replace(judged, unknown="it has committed nothing at the destination")
        if not self._from.range.start <= commit.source <= self._from.range.end:
            return replace(judged, unknown="what it has read is outside of what was compared")
        if not self._to.low <= commit.destination <= self._to.end:
            return replace(judged, unknown="the destination's log does not have what it has read")
        expected = self._places.get(commit.source, self._last_destination + 1)
        if self._last_destination < 0 or len(self._moves) >= _MOST_WAITING:
            return replace(judged, unknown="too little is the same on both sides")
        there, here = commit.destination, commit.source
        skips = count(expected, there) if there > expected else 0
        rereads = count(there, expected) if there < expected else 0
        skips += sum(one >= here and other < min(there, expected) for one, other in self._moves)
        rereads += sum(one < here and other >= max(there, expected) for one, other in self._moves)
        return replace(judged, expected=expected, rereads=rereads, skips=skips)


def look_far(readers: Readers, pair: Pair) -> Far:
    """Return what finds where one side goes on with what the other one has."""
    left = _FAR_LOOKS

    def far(source: Side, destination: Side) -> tuple[int, int] | None:
        nonlocal left
        if not left:
            return None
        here = _Ahead(source, readers[0], pair.sources[0])
        there = _Ahead(destination, readers[1], pair.destinations[0])
        records = _FAR_RECORDS
        fields = slice(first_field(destination), HEADERS)
        # without times, nothing tells how much one log has that the other one no longer has
        is_first = fields.start and left == _FAR_LOOKS
        most = max(len(each.log.range) for each in (here, there)) if is_first else records
        while True:
            if (offset := here.find(destination, fields, records)) is not None:
                return offset, destination.peek().offset
            if (offset := there.find(source, fields, records)) is not None:
                return source.peek().offset, offset
            if records >= most:
                left -= 1
                return None
            records *= _FAR_GROWTH

    return far


class _Ahead(NamedTuple):
    """What the log of a side has after the window that is decoded."""

    side: Side
    reader: Reader
    log: Log

    def find(self, other: Side, fields: slice, records: int) -> int | None:
        """Return where it has a record of the window of the other side.

        The time index leads there, unless the destination has set its own times.

        Args:
            fields: of `Content` that are compared.
            records: of how many offsets, at most, are looked at.
        """
        contents = {content[fields] for content in other.contents}
        tp, head, client = self.log.topic_partition, self.side.records[0].offset, self.reader.client
        start = head
        if fields.start == TIMESTAMP:
            times = [record.timestamp for record in other.records if record.timestamp >= 0]
            if not times:
                return None
            ask = partial(client.list_offsets, [tp], min(times), READ_COMMITTED)
            start = max(head, client.retry(ask)[tp])
        offsets = OffsetRange(tp, start, min(self.log.range.end, start + records))
        with closing(self.reader.fetches(offsets)) as lists:
            ahead = Side(lists)
            while ahead.fill():
                for record, content in zip(ahead.records, ahead.contents, strict=True):
                    if content[fields] in contents:
                        return int(record.offset) if record.offset > head else None
                ahead.at = len(ahead.contents)
        return None


def compare_in_order(readers: Readers, pair: Pair) -> PairResult:
    """Compare two logs, and show the first difference of each kind.

    Raises:
        RelayError: a cluster does not answer, or refuses; or retention deletes what is read.
    """
    (source,), (destination,) = pair.sources, pair.destinations
    with (
        closing(readers[0].fetches(source.range)) as originals,
        closing(readers[1].fetches(destination.range)) as copies,
    ):
        comparing = InOrder(pair, Side(originals), Side(copies), look_far(readers, pair))
        comparing.compare()
    fields = comparing.fields

    def seen(log: Log, digests: Collection[bytes]) -> dict[bytes, Bounds]:
        reader = readers[0] if log is source else readers[1]
        places: dict[bytes, Bounds] = {}
        with closing(reader.fetches(log.around)) as lists:
            side = Side(lists)
            while side.fill():
                for record, content in zip(side.records, side.contents, strict=True):
                    if (known := digest(content, fields)) in digests:
                        first = places[known][0] if known in places else record.offset
                        places[known] = first, record.offset
                side.at = len(side.contents)
        return places

    result = comparing.judge(seen)
    tp = destination.topic_partition
    comparing.judge_commits(lambda start, end: readers[1].count(OffsetRange(tp, start, end)))
    return result

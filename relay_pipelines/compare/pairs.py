"""What is compared with what, and what was found: the values between the driver and the tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from relay_pipelines.audit.comparison import Difference
from relay_pipelines.compare.request import Align
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition

MISSING, EXTRA, DUPLICATED = "missing", "extra", "duplicated"
OUT_OF_ORDER, CHANGED = "out of order", "changed"
KINDS = (MISSING, EXTRA, DUPLICATED, OUT_OF_ORDER, CHANGED)
"""Differences: each has a number, and its first record is shown."""
BEYOND_THE_END = "beyond the end of the destination, which is behind or has lost them"
TRIMMED_AT_SOURCE = "the source's log begins after them"
TRIMMED_AT_DESTINATION = "the destination's log begins after them"
HIDDEN = "an open transaction hides them at the source"
PERHAPS_HIDDEN = "an open transaction hides records at the source, perhaps these"
ELSEWHERE = "they are at the destination, but not between the times of what was asked for"
FAR = "the other side may have them far from what was asked for"
CLEANED_MEANWHILE = "a cleaner may have removed them on the other side meanwhile"
CLEANED = "a cleaner may have removed them on the other side"
MANY_OF_ONE_KEY = "one key has too many records to compare them in order"
SHUFFLED_BYTES = 64 << 20
"""Rows of more, which sort by key, go through Spark's shuffle."""
MOST_READINGS = 4
"""Of a compacted topic that differs."""
_RUNS = 10_000
_NEAR_OFFSETS = 1 << 17


@dataclass(frozen=True, slots=True)
class CompareJob:
    """What all tasks of a comparison share."""

    name: str
    source: Cluster
    destination: Cluster
    options: CopyOptions
    max_bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class Log:
    """A topic-partition of one side.

    Args:
        range: what of it is compared.
        low, end: where its committed records begin and end.
        leader_epoch: of its leader, when the comparison began; -1 if the cluster does not say it.
        last_crc: of its last batch, where that is to prove that the log is still the same; -1 if it
            is not known.
        hidden_after_end: offsets that an open transaction hides.
    """

    range: OffsetRange
    low: int
    end: int
    leader_epoch: int = -1
    last_crc: int = -1
    hidden_after_end: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose log it is."""
        return self.range.topic_partition

    @property
    def whole(self) -> OffsetRange:
        """All that was there when the comparison began."""
        return OffsetRange(self.topic_partition, self.low, self.end)

    @property
    def around(self) -> OffsetRange:
        """The range with what is near it, where records of the other side may be, too."""
        start, end = self.range.start - _NEAR_OFFSETS, self.range.end + _NEAR_OFFSETS
        return OffsetRange(self.topic_partition, max(self.low, start), min(self.end, end))

    @property
    def is_whole(self) -> bool:
        """Whether all of it is compared."""
        return (self.range.start, self.range.end) == (self.low, self.end)

    @property
    def hidden(self) -> int:
        """How many offsets an open transaction hides where what is compared ends."""
        return self.hidden_after_end if self.range.end == self.end else 0

    @property
    def is_trimmed(self) -> bool:
        """Whether records before those that are compared may be gone."""
        return 0 < self.low == self.range.start


@dataclass(frozen=True, slots=True)
class Commit:
    """What a group goes on with on both sides, as somebody says.

    Args:
        where: the source topic-partition.
        by: who says it: the group itself, or a topic of checkpoints.
    """

    group: str
    where: TopicPartition
    source: int
    destination: int
    by: str


@dataclass(frozen=True, slots=True)
class JudgedCommit:
    """What becomes of a group that goes on at the destination.

    Args:
        expected: the destination offset of the first record that it has not read; -1 if unknown.
        rereads, skips: how many records it reads again, or never.
        unknown: why that cannot be said; empty if it can.
    """

    commit: Commit
    expected: int = -1
    rereads: int = 0
    skips: int = 0
    unknown: str = ""

    @property
    def verdict(self) -> str:
        """The judgement in words."""
        if self.unknown:
            return f"not judged: {self.unknown}"
        if self.skips:
            return f"skips {self.skips:,}"
        return f"re-reads {self.rereads:,}" if self.rereads else "exact"


@dataclass(frozen=True, slots=True)
class Pair:
    """Logs whose records must be the same: one of each side, or all of a topic.

    Args:
        topic: of the source.
        align: never `AUTO`.
        compacts: whether a cleaner may work at the source, and at the destination.
        commits: of groups, to be judged.
        from_ms, until_ms: the times of the records that are compared, half-open, where that is not
            in order: there, the ranges end with the logs.
    """

    topic: str
    sources: tuple[Log, ...]
    destinations: tuple[Log, ...]
    align: Align
    size_bytes: int
    compacts: tuple[bool, bool] = (False, False)
    commits: tuple[Commit, ...] = ()
    from_ms: int | None = None
    until_ms: int | None = None

    @property
    def sides(self) -> tuple[tuple[Log, ...], tuple[Log, ...]]:
        """The logs of the source, and of the destination."""
        return self.sources, self.destinations

    def has(self, timestamp_ms: int) -> bool:
        """Whether a record is compared, where records are not compared in order."""
        return (self.from_ms is None or timestamp_ms >= self.from_ms) and (
            self.until_ms is None or timestamp_ms < self.until_ms
        )

    @property
    def is_shuffled(self) -> bool:
        """Whether its rows are too many to be sorted in memory."""
        return self.align is not Align.ORDER and self.size_bytes > SHUFFLED_BYTES

    @property
    def where(self) -> str:
        """The source's side in words."""
        one = len(self.sources) == 1
        return str(self.sources[0].topic_partition) if one else self.topic


@dataclass(frozen=True, slots=True)
class Example:
    """The first difference of a kind.

    Args:
        source, destination: where it is, or where it is expected; None if that is not known.
        shown: both records; None if they could not be read again.
    """

    source: tuple[TopicPartition, int] | None
    destination: tuple[TopicPartition, int] | None
    shown: Difference | None = None

    def __str__(self) -> str:
        sides = (("source", self.source), ("destination", self.destination))
        return ", ".join(f"{side} {at[0]} at {at[1]}" for side, at in sides if at)


@dataclass(slots=True)
class PairResult:
    """What was found in a pair.

    Args:
        source, destination: how many committed records were read on each side.
        same: that are the same on both sides, in order.
        undecoded: how many of them are in batches that were compared as bytes.
        untimed: how many of them have timestamps that the destination's brokers have set.
        numbers: of the differences, by kind.
        changed: records, by the fields that differ.
        added: of them those that have more headers, and none less, by the names of these.
        superseded: records that a cleaner has removed on one side, for a later one of their key.
        not_compared: source records, or offsets, that could not be compared, by reason.
        outside: destination records that are copies of records outside of what was asked for.
        first: the first difference of each kind.
        runs: the map from source offsets to destination offsets: first ones and how many.
        thinned: whether it had too many runs to keep them all.
        judged: the commits of the pair.
        bounded: whether there were too many differences to tell apart what is missing or extra
            from what is out of order or duplicated.
        error: why it could not be read; empty if it was.
    """

    pair: Pair
    source: int = 0
    destination: int = 0
    same: int = 0
    undecoded: int = 0
    untimed: int = 0
    numbers: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    added: Counter[str] = field(default_factory=Counter)
    superseded: int = 0
    not_compared: Counter[str] = field(default_factory=Counter)
    outside: int = 0
    first: dict[str, Example] = field(default_factory=dict)
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    thinned: bool = False
    judged: list[JudgedCommit] = field(default_factory=list)
    bounded: bool = False
    error: str = ""

    @property
    def size_bytes(self) -> int:
        """How much was to be read."""
        return self.pair.size_bytes

    def note(
        self,
        kind: str,
        source: tuple[TopicPartition, int] | None,
        destination: tuple[TopicPartition, int] | None,
        count: int = 1,
    ) -> None:
        """Count a difference; the first one is kept."""
        self.numbers[kind] += count
        self.first.setdefault(kind, Example(source, destination))

    def leave_open(self, kind: str, why: str, most: int) -> int:
        """Count differences of a kind, at most so many, as not compared; return how many."""
        number = min(most, self.numbers[kind])
        if number:
            self.not_compared[why] += number
            self.numbers[kind] -= number
            if not self.numbers[kind]:
                del self.numbers[kind], self.first[kind]
        return number

    def excuse(self, holes: Sequence[int]) -> None:
        """Leave open what a cleaner may have removed, whatever the policy of the topic is now.

        Args:
            holes: offsets of the source, and of the destination, that only a cleaner can have
                emptied.
        """
        left, by_key = [*holes], self.pair.align is Align.KEY
        for kind, side in ((EXTRA, 0), (DUPLICATED, 0), (MISSING, 1)):
            # of other records, their keys have said more
            if kind is DUPLICATED or not (by_key and self.pair.compacts[side]):
                left[side] -= self.leave_open(kind, CLEANED, left[side])

    def map(self, source: int, destination: int, count: int) -> None:
        """Note that these offsets, one after the other, hold the same records."""
        if self.runs:
            start, there, known = self.runs[-1]
            if (start + known, there + known) == (source, destination):
                self.runs[-1] = start, there, known + count
                return
        if len(self.runs) >= _RUNS:
            del self.runs[1::2]
            self.thinned = True
        self.runs.append((source, destination, count))

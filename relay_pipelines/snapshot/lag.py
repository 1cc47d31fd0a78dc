"""How many records are not copied yet, and for how long the oldest one has waited.

How fast topics grow at the source and are copied, from one snapshot to the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter

from relay_pipelines.errors import RelayError
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol import reader
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

MOST_AGES = 1_000
"""Of how many topic-partitions the ages are asked for: each is an answer of up to 16 KiB."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far the copy of one topic-partition is behind its source.

    Args:
        records: source offsets that are not copied yet.
        seconds: for how long the first of them has waited; 0 if there is none, None if it is
            unknown.
    """

    records: int
    seconds: float | None


NO_LAG = PartitionLag(0, 0.0)


def measure(
    snapshot: ClusterSnapshot, late: Container[TopicPartition] = (), most_ages: int = MOST_AGES
) -> dict[TopicPartition, PartitionLag]:
    """Measure the lag of every topic-partition.

    Since when it waits, is said of the batch that holds the first uncopied record. Of very many
    topic-partitions that are behind, it is known of late ones, and then of those with the most
    records.

    Args:
        late: the topic-partitions that are known to have the oldest records.
        most_ages: of how many to ask for the age.
    """
    waiting = [position for position in snapshot.positions if position.lag]
    waiting.sort(key=lambda position: (position.topic_partition not in late, -position.lag))
    # the source does not answer for offsets that retention has removed
    first = {
        position.topic_partition: max(position.first_uncopied, position.low_watermark)
        for position in waiting[:most_ages]
    }
    since = waiting_since_ms(snapshot, first)
    now_ms = snapshot.sides.clock.now_ms()
    lags = dict.fromkeys((position.topic_partition for position in snapshot.positions), NO_LAG)
    for position in waiting:
        tp = position.topic_partition
        age = max(0, now_ms - since[tp]) / 1000 if tp in since else None
        lags[tp] = PartitionLag(position.lag, age)
    return lags


def oldest_seconds(lags: Iterable[PartitionLag]) -> float | None:
    """Return how long the oldest uncopied record has waited; 0 if none does, None if unknown."""
    behind = [lag.seconds for lag in lags if lag.records]
    known = [age for age in behind if age is not None]
    return max(known) if known else None if behind else 0.0


def total(lags: Iterable[PartitionLag]) -> PartitionLag:
    """Return the records of several topic-partitions, and how long the oldest has waited."""
    all_lags = list(lags)
    return PartitionLag(sum(lag.records for lag in all_lags), oldest_seconds(all_lags))


def late(snapshot: ClusterSnapshot, now_ms: int) -> set[TopicPartition]:
    """Return the topic-partitions with an uncopied record that waits for longer than its target.

    What no look of this process decides, the source's time index does, by the records' timestamps.
    It asks for the first offset since that time, and reads no record.

    Args:
        now_ms: milliseconds since the Unix epoch.

    Raises:
        RelayError: the source does not answer.
    """
    behind = [position.uncopied for position in snapshot.positions if position.lag]
    if not behind:
        return set()
    looks, window_of = _learn(snapshot), snapshot.sides.mirror.window_of
    late: set[TopicPartition] = set()
    waiting: defaultdict[int, dict[TopicPartition, OffsetRange]] = defaultdict(dict)
    for offset_range in behind:
        tp = offset_range.topic_partition
        before_ms = now_ms - window_of(tp.topic).lag_target
        earliest_ms, latest_ms = looks[tp].arrival_ms(offset_range.start)
        if latest_ms < before_ms:
            late.add(tp)
        elif earliest_ms < before_ms:
            waiting[before_ms][tp] = offset_range
    if not waiting:
        return late
    with snapshot.source_client("lag") as client:
        for before_ms, ranges in waiting.items():
            ends = {tp: offset_range.end for tp, offset_range in ranges.items()}
            ask = partial(client.first_offsets, before_ms, ends)
            since = client.retry(ask, patient=False)
            late |= {tp for tp, offset_range in ranges.items() if offset_range.start < since[tp]}
    return late


def waiting_since_ms(
    snapshot: ClusterSnapshot, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return since when the records at these offsets wait, as far as it is known.

    That is their timestamp, but not before the last look at which they were not there: a record may
    be new, and say that it is of last year. Nor is it after the first look that has seen them.
    """
    looks = _learn(snapshot)
    if not offsets:
        return {}
    since = {}
    # the copy reports what is wrong
    with snapshot.source_client("lag") as client, suppress(RelayError):
        for tp, written_ms in reader.timestamps_ms(client, offsets).items():
            earliest_ms, latest_ms = looks[tp].arrival_ms(offsets[tp])
            since[tp] = min(max(written_ms, earliest_ms), latest_ms)
    return since


_MOST_ENDS = 50


@dataclass(slots=True)
class _Looks:
    """When this process has seen which ends of a log.

    Args:
        topic_id: of the topic, which may be created again.
        ends: end offsets, ascending, with the times of the first and the last look at each.
    """

    topic_id: str
    ends: list[tuple[int, int, int]] = field(default_factory=list)

    def learn(self, end: int, first_uncopied: int, now_ms: int) -> None:
        """Note an end; forget those that say nothing about what is not copied yet."""
        ends = self.ends
        if ends and end < ends[-1][0]:  # another log, or a truncated one
            ends.clear()
        if ends and end == ends[-1][0]:
            ends[-1] = (end, ends[-1][1], now_ms)
        else:
            ends.append((end, now_ms, now_ms))
        while len(ends) > 1 and ends[1][0] <= first_uncopied:
            del ends[0]
        if len(ends) > _MOST_ENDS:  # of a long backlog, it is known less exactly
            del ends[1:-1:2]

    def arrival_ms(self, offset: int) -> tuple[int, int]:
        """Return the times between which the record at an offset has arrived."""
        after = bisect_right(self.ends, offset, key=itemgetter(0))
        first_seen = self.ends[min(after, len(self.ends) - 1)]
        return self.ends[after - 1][2] if after else 0, first_seen[1]


_looks: dict[tuple[str, str, TopicPartition], _Looks] = {}
"""Of this process, by mirror and upstream, which may be behind another one."""


def _learn(snapshot: ClusterSnapshot) -> dict[TopicPartition, _Looks]:
    """Note the ends of a snapshot, and return what is known of its topic-partitions."""
    now_ms, looks = snapshot.sides.clock.now_ms(), {}
    for position in snapshot.positions:
        tp = position.topic_partition
        topic = snapshot.topics.get(tp.topic)
        topic_id = topic.metadata.topic_id if topic else ""
        key = snapshot.name, snapshot.upstream.name, tp
        if key not in _looks or _looks[key].topic_id != topic_id:
            _looks[key] = _Looks(topic_id)
        _looks[key].learn(position.end_offset, position.first_uncopied, now_ms)
        looks[tp] = _looks[key]
    return looks


PERIOD_SECONDS = 30.0
"""Over which rates are averaged where people watch them: a copy commits every few seconds."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Offsets per second.

    Args:
        source: by which the source grows.
        copied: by which the checkpoints advance.
    """

    source: float = 0.0
    copied: float = 0.0

    def seconds_left(self, lag_records: int) -> float | None:
        """Return when nothing is behind any more at these rates; None if never."""
        if not lag_records:
            return 0.0
        gain = self.copied - self.source
        return lag_records / gain if gain > 0 else None


def total_rate(rates: Iterable[Rate]) -> Rate:
    """Return the sum of the rates of several topics."""
    added = [(rate.source, rate.copied) for rate in rates]
    return Rate(sum(source for source, _ in added), sum(copied for _, copied in added))


class Rates:
    """Remembers the end offsets and checkpoints of the last snapshots.

    Args:
        period_seconds: over which rates are averaged; at least from one snapshot to the next.
    """

    def __init__(self, period_seconds: float = 0.0) -> None:
        self._period_ms = period_seconds * 1000
        self._looks: deque[tuple[int, Mapping[TopicPartition, tuple[int, int]]]] = deque()

    def learn(self, snapshot: ClusterSnapshot, taken_ms: int) -> dict[str, Rate]:
        """Return the rates by topic; empty at the first snapshot.

        Args:
            taken_ms: when the snapshot was taken, in milliseconds since the Unix epoch.
        """
        now = {
            position.topic_partition: (position.end_offset, position.begin)
            for position in snapshot.positions
        }
        while len(self._looks) > 1 and self._looks[1][0] <= taken_ms - self._period_ms:
            self._looks.popleft()
        grown: defaultdict[str, list[Rate]] = defaultdict(list)
        if self._looks:
            began_ms, before = self._looks[0]
            seconds = max(1, taken_ms - began_ms) / 1000
            for tp in now.keys() & before.keys():
                # another upstream may end earlier, and a checkpoint may be reset
                source, copied = (
                    max(0, new - old) / seconds
                    for new, old in zip(now[tp], before[tp], strict=True)
                )
                grown[tp.topic].append(Rate(source, copied))
        self._looks.append((taken_ms, now))
        return {topic: total_rate(rates) for topic, rates in grown.items()}

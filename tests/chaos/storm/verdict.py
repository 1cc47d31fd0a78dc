"""Compares the records of source and destination with pure functions."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay_pipelines.model import TopicPartition
from tests.support.independent import Record


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one topic-partition with its source.

    Args:
        lost: source records that did not arrive.
        doubled: further arrivals of source records.
        foreign: arrivals that the source does not have; an altered record is one lost and one
            foreign record.
        disordered: first arrivals after a record that follows them at the source.
    """

    expected: int
    arrived: int
    lost: int
    doubled: int
    foreign: int
    disordered: int

    @property
    def good(self) -> bool:
        """Whether all records arrived once, unaltered and in order."""
        return not (self.lost or self.doubled or self.foreign or self.disordered)


def judge(expected: Sequence[Hashable], arrived: Sequence[Hashable]) -> Verdict:
    """Compare record by record; the records of the source must be unique."""
    places = {record: place for place, record in enumerate(expected)}
    assert len(places) == len(expected), "the source has equal records"
    counts = Counter(arrived)
    furthest, disordered = -1, 0
    for place in dict.fromkeys(places[record] for record in arrived if record in places):
        disordered += place < furthest
        furthest = max(furthest, place)
    return Verdict(
        expected=len(expected),
        arrived=len(arrived),
        lost=sum(record not in counts for record in places),
        doubled=sum(times - 1 for record, times in counts.items() if record in places),
        foreign=sum(times for record, times in counts.items() if record not in places),
        disordered=disordered,
    )


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest wait of the oldest record of a topic-partition without a commit."""

    seconds: float = 0.0
    topic_partition: TopicPartition | None = None
    ended_at_ms: int = 0


def longest_stall(
    entries: Iterable[Mapping[str, Any]], source: Mapping[TopicPartition, Mapping[int, Record]]
) -> Stall:
    """Find the longest time in which a topic-partition had records to copy but no commit.

    The time before the first commit does not count.

    Args:
        entries: the entries of the ledger, in order per topic-partition.
        source: records by offset, with the time of writing as timestamp; other topic-partitions are
            ignored.
    """
    longest = Stall()
    last_commits: dict[TopicPartition, int] = {}
    for entry in entries:
        at = TopicPartition(**entry["source"]["topic_partition"])
        committed_ms = entry["committed_at_ms"]
        first = source.get(at, {}).get(entry["source"]["start"])
        if first is None:
            continue
        waiting_since_ms = max(first.timestamp[1], last_commits.get(at, committed_ms))
        stalled = (committed_ms - waiting_since_ms) / 1000
        if stalled > longest.seconds:
            longest = Stall(stalled, at, committed_ms)
        last_commits[at] = committed_ms
    return longest

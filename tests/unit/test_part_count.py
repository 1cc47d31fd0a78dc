"""How parts are counted: attempts that each try what is left, and what spans mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from relay_pipelines.audit import part_count
from relay_pipelines.audit.coverage import coverage
from relay_pipelines.audit.part_count import PartCount, count_parts, count_ranges
from relay_pipelines.audit.recount import DestinationCount, Recount
from relay_pipelines.audit.recount_parts import KnownEntries, RecountPart
from relay_pipelines.audit.window_recount import _WindowCount
from relay_pipelines.errors import ConfigError, RetentionPassedError, RetriableError
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, Skipped, TopicPartition
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import Record
from tests.support.audited import AT, TO, entry, wanted
from tests.support.fetched_spans import batch, span

OPTIONS = CopyOptions(give_up_after_ms=60_000)


@dataclass
class Clock:
    """A clock that only sleeping moves."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def client() -> ClusterClient:
    """It is never asked: what would ask it is replaced."""
    return destination_client("m", Cluster("nowhere", ("127.0.0.1:1",)), OPTIONS, Clock())


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the count of one part by a function of the part."""

    def answer(count: Callable[[RecountPart], DestinationCount]) -> None:
        monkeypatch.setattr(part_count, "_configs", lambda *_: ({}, {}))
        monkeypatch.setattr(
            part_count, "_ask", lambda _, parts: dict.fromkeys(parts, part_count._Log(0, 0, None))
        )
        monkeypatch.setattr(part_count, "_count", lambda _, part, *__: count(part))

    return answer


PARTS = [RecountPart(wanted(start, start + 10), wanted(start, start + 10)) for start in (0, 10, 20)]


def unreachable(at: TopicPartition | None = AT) -> RetriableError:
    return RetriableError("no leader", topic_partition=at)


def test_parts_that_fail_wait_together(counting: Any, client: ClusterClient) -> None:
    """Each is tried in every attempt; the others are counted, and the time is over once."""

    def count(part: RecountPart) -> DestinationCount:
        if part.range.start < 20:
            raise unreachable()
        return DestinationCount(part.range)

    counting(count)
    *failed, counted = count_parts(client, PARTS)
    assert [type(each) for each in failed] == [RetriableError] * 2
    assert counted == DestinationCount(PARTS[2].range)
    assert 60 <= client.clock.monotonic() < 70


def test_a_cluster_that_is_away_fails_what_is_left(counting: Any, client: ClusterClient) -> None:
    """What was counted before stays counted; no part waits for itself."""

    def count(part: RecountPart) -> DestinationCount:
        if part.range.start:
            raise unreachable(None)
        return DestinationCount(part.range)

    counting(count)
    counted, *failed = count_parts(client, PARTS)
    assert isinstance(counted, DestinationCount)
    assert [str(each) for each in failed] == [str(unreachable(None))] * 2
    assert 60 <= client.clock.monotonic() < 70


def test_what_does_not_pass_is_not_tried_again(counting: Any, client: ClusterClient) -> None:
    """And it keeps nothing else from being tried again."""
    tried: list[int] = []

    def count(part: RecountPart) -> DestinationCount:
        tried.append(part.range.start)
        if part.range.start == 0:
            raise ConfigError("refused")
        if tried.count(part.range.start) == 1:
            raise unreachable()
        return DestinationCount(part.range)

    counting(count)
    failed, *counted = count_parts(client, PARTS)
    assert str(failed) == "refused"
    assert counted == [DestinationCount(part.range) for part in PARTS[1:]]
    assert tried == [0, 10, 20, 10, 20]


def test_a_range_fails_if_one_of_its_parts_does(counting: Any, client: ClusterClient) -> None:
    """Copies in two topics: what one of them holds is not the whole of the range."""
    moved = TopicPartition("new.orders", 0)
    renamed = replace(entry(10, 20), destination=OffsetRange(moved, 0, 10))
    known = KnownEntries({AT: [entry(0, 10), renamed, entry(20, 30)]})

    def count(part: RecountPart) -> DestinationCount:
        if part.destination.topic_partition == moved:
            raise unreachable(moved)
        records = len(part.range)
        return DestinationCount(part.range, recorded=records, counted=records)

    counting(count)
    ranges = [wanted(0, 20), wanted(20, 30)]
    failed, counted = count_ranges(client, ranges, known)
    assert isinstance(failed, RetriableError)
    assert isinstance(counted, Recount)
    assert (counted.range, counted.records, counted.problems) == (ranges[1], 10, [])
    assert TO in {part.destination.topic_partition for part in known.parts(ranges[0])}


def test_records_that_are_deleted_while_they_are_counted(
    counting: Any, client: ClusterClient
) -> None:
    """Retention comes between the look at where the log begins, and its first record."""
    tried: list[int] = []

    def count(part: RecountPart) -> DestinationCount:
        tried.append(part.range.start)
        if tried.count(part.range.start) == 1 and part.range.start == 0:
            raise RetentionPassedError("gone", topic_partition=AT, offset=0)
        return DestinationCount(part.range)

    counting(count)
    assert count_parts(client, PARTS) == [DestinationCount(part.range) for part in PARTS]
    assert tried == [0, 10, 20, 0]


@pytest.mark.parametrize("low", [1, 2, 5, 19], ids="begins at {}".format)
def test_a_chunk_whose_first_record_is_gone(low: int) -> None:
    """Its producer is that of its last record: the first one that is left may be another's."""
    own, other = 1, 2
    copied = replace(entry(0, 16, 0), destination=OffsetRange(TO, 0, 20))
    others = replace(entry(0, 4), destination=OffsetRange(TO, 1, 5))
    (part,) = KnownEntries({AT: [copied]}, [others]).parts(wanted(0, 16))
    counting = PartCount(part, is_compacted=False, producers={copied.destination: own})
    record = Record(0, 1, b"k", b"v", [])
    for offset in range(low, 20):
        producer = other if 1 <= offset < 5 else own
        counting.add(span(batch([record], offset, producer=producer)))
    counting.judge(low)
    found = counting.result
    assert (found.foreign, found.counted) == (0, 20 - max(low, 5))
    assert (found.count_problems, found.not_verified.total()) == ([], 16 - found.counted)


@pytest.mark.xfail(
    strict=True, reason="whose a batch is will be looked up: a ledger entry names its producer"
)
def test_a_compacted_chunk_whose_first_record_is_gone() -> None:
    """The cleaner has taken it, and the first batch that is left is of another pinned source."""
    own, other = 1, 2
    copied = replace(entry(0, 16, 0), destination=OffsetRange(TO, 0, 20))
    others = replace(entry(0, 4), destination=OffsetRange(TO, 1, 5))
    (part,) = KnownEntries({AT: [copied]}, [others]).parts(wanted(0, 16))
    counting = PartCount(part, is_compacted=True)
    counting.add(FetchedSpan(0, 1, None, Skipped.COMPACTION_GAP))
    record = Record(0, 1, b"k", b"v", [])
    for offset in range(1, 20):
        counting.add(span(batch([record], offset, producer=other if offset < 5 else own)))
    counting.judge(0)
    assert (counting.result.foreign, counting.result.count_problems) == (0, [])


def test_a_loss_supersedes_what_follows_the_last_chunk(client: ClusterClient) -> None:
    """A hole before it was copied before the loss: no loss excuses it."""
    loss = replace(entry(40, 40), generation=1, gap="the topic was created again")
    entries = [entry(0, 10), entry(30, 40), loss]
    counted = Recount(wanted(0, 60), coverage=coverage(wanted(0, 60), entries, 60))
    _WindowCount(client, 0, {}, {})._explain(counted, entries, [])
    assert (counted.superseded, counted.unaccounted) == (20, 20)
    assert counted.problems == ["20 source offsets are in no ledger entry: [10, 30)"]

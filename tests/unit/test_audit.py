"""What an audit compares and counts, what it reports of it, and what retention explains."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.audit import part_count
from relay_pipelines.audit.audit import Audit, PartitionAudit
from relay_pipelines.audit.chunks import AuditJob
from relay_pipelines.audit.claims import Claims, RecountPart
from relay_pipelines.audit.comparison import ComparedChunk, Comparison, Difference
from relay_pipelines.audit.coverage import CoverageMap, OffsetKind, coverage
from relay_pipelines.audit.part_count import PartCount, count_parts, count_ranges
from relay_pipelines.audit.recount import DestinationCount, Recount
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.audit.retention import CleanupPolicies, followed
from relay_pipelines.audit.spark_job import groups_of
from relay_pipelines.audit.verdict import Tally
from relay_pipelines.audit.window_recount import explain, forget
from relay_pipelines.errors import ConfigError, RetentionPassedError, RetriableError
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.model import (
    Cluster,
    CopyOptions,
    LedgerEntry,
    OffsetRange,
    Skipped,
    TopicPartition,
)
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import Record
from relay_pipelines.settings.topics import Topics
from tests.support.audited import AT, CHUNKS, TO, counted, entry, wanted
from tests.support.fetched_spans import batch, span
from tests.support.findings import differences, notes, unreadable
from tests.support.sleeping_clock import SleepingClock
from tests.support.tables import titled

HERE = Cluster("here", ("127.0.0.1:1",))


def chunk(start: int, end: int, size_bytes: int = 100) -> ComparedChunk:
    return ComparedChunk(wanted(start, end), OffsetRange(TO, start, end), end - start, size_bytes)


def made(*results: Comparison, parts: Iterable[DestinationCount] = ()) -> PartitionAudit:
    found = PartitionAudit(
        coverage(wanted(0, 40), CHUNKS, 40), Chain(AT), Level.FULL, rule="record by record"
    )
    found.counted = [*parts]
    job = AuditJob("m", (HERE,), HERE, CopyOptions())
    Audit("m", AuditRequest(level=Level.FULL), job, {AT: found}).add(results)
    return found


def test_chunks_are_split_into_groups_of_about_one_size() -> None:
    """In order, so that a task reads one after another; a large chunk is a group of its own."""
    sizes = [40, 40, 40, 500, 10, 90, 10]
    groups = groups_of([chunk(n, n + 1, size) for n, size in enumerate(sizes)], 100)
    assert [[each.size_bytes for each in group] for group in groups] == [
        [40, 40],
        [40],
        [500],
        [10, 90],
        [10],
    ]
    assert groups_of([], 100) == []


def test_what_an_audit_reports() -> None:
    """The first difference, whatever task is done first; what was not compared is none."""
    found = made(
        Comparison(chunk(30, 40), "a", difference=Difference("later", None, None)),
        Comparison(chunk(0, 10), "a", records=10),
        Comparison(chunk(10, 30), "b", difference=Difference("1 record differs", None, None)),
    )
    first = "the first is [10, 30), compared with upstream b: 1 record differs"
    assert differences(found) == [f"differing chunks: 2 of 3; {first}"]
    assert (found.records, notes(found)) == (10, [])
    found = made(
        Comparison(chunk(0, 10), unread="retention"),
        Comparison(chunk(10, 30), unread="retention"),
        Comparison(chunk(30, 40), error="away"),
    )
    assert differences(found) == []
    assert notes(found) == ["30 records were not compared: retention"]
    assert unreadable(found) == ["away"]
    found = made(parts=[counted(0, 40, 25, 25, 3)])
    assert differences(found) == [
        "records at the destination that this mirror did not write: 3",
        "the first record that this mirror did not write is in copy.orders-0 at offset 30",
    ]


ENTRIES = [entry(start, start + 10) for start in range(0, 100, 10)]


def parts(
    start: int, end: int, size_bytes: int = 300, own: list[LedgerEntry] = ENTRIES
) -> list[RecountPart]:
    """The parts of a range; every entry has 100 bytes."""
    covering = [each for each in own if each.source.overlaps(wanted(start, end))]
    claims = Claims("m", own, {TO: OffsetRange(TO, 5, 99)})
    return claims.parts(wanted(start, end), covering, size_bytes)


def spans(found: list[RecountPart]) -> list[tuple[int, int]]:
    return [(part.range.start, part.range.end) for part in found]


def reads(found: list[RecountPart]) -> list[tuple[int, int]]:
    return [(part.destination.start, part.destination.end) for part in found]


def test_a_range_is_counted_in_parts() -> None:
    """Cut between chunks, each up to the next one, the last to the log's end; they cover it."""
    assert spans(parts(0, 100)) == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert spans(parts(15, 72)) == [(15, 40), (40, 70), (70, 72)]
    assert spans(parts(15, 18)) == [(15, 18)]
    assert spans(parts(0, 100, 10_000)) == [(0, 100)]
    assert {(part.expired_to, part.known_to) for part in parts(0, 100)} == {(5, 99)}
    assert reads(parts(0, 100)) == [(0, 30), (30, 60), (60, 90), (90, sys.maxsize)]
    assert reads(parts(15, 35)) == [(10, 40)]
    assert [part.size_bytes for part in parts(0, 100)] == [300, 300, 300, 100]


def test_where_parts_are_cut() -> None:
    """Between two destinations, but not within entries that overlap, nor where some are missing."""
    moved = TopicPartition("new.orders", 0)
    renamed = [
        replace(entry, destination=replace(entry.destination, topic_partition=moved))
        for entry in ENTRIES[5:]
    ]
    found = parts(0, 100, 10_000, [*ENTRIES[:5], *renamed])
    assert spans(found) == [(0, 50), (50, 100)]
    assert [part.destination for part in found] == [
        OffsetRange(TO, 0, sys.maxsize),
        OffsetRange(moved, 50, sys.maxsize),
    ]
    doubled = sorted([*ENTRIES, entry(25, 45)], key=lambda each: each.source)
    assert reads(parts(0, 100, 100, doubled)) == [
        (0, 10),
        (10, 20),
        (20, 50),
        *((start, start + 10) for start in range(50, 90, 10)),
        (90, sys.maxsize),
    ]
    left = [*ENTRIES[:3], *ENTRIES[5:]]
    assert reads(parts(0, 100, 100, left))[2:4] == [(20, 50), (50, 60)]


def test_a_part_knows_what_others_wrote_where_its_chunks_have_no_records() -> None:
    """Else their records would seem foreign where its scan begins; it knows only neighbours."""
    filtered, copied = entry(0, 10, filtered=10), entry(10, 20)
    other = replace(entry(0, 10), source=OffsetRange(TopicPartition("other", 0), 0, 10))
    replayed = [replace(entry(*at), mirror="m.replay@r") for at in ((20, 30), (2, 4))]
    (part,) = Claims("m", [copied, other, *replayed]).parts(wanted(0, 20), [filtered, copied])
    assert [chunk.start for chunk in part.others] == [0, 2, 20]
    (part,) = Claims("m", [other, *replayed]).parts(wanted(0, 20), [filtered])
    assert not len(part.destination), "the other's records follow at once"
    replayed = [replace(entry(at, at + 1), mirror="m.replay@r") for at in range(100)]
    found = Claims("m", [*ENTRIES, *replayed]).parts(wanted(0, 100), ENTRIES, 300)
    assert [len(part.others) for part in found] == [30, 30, 30, 10]


def test_the_recounts_of_parts_are_added() -> None:
    """If one could not be counted, there is no sum, but an error."""
    first = DestinationCount(wanted(0, 30), wanted(0, 31), Tally(30, 29), first_ms=5, last_ms=7)
    second = DestinationCount(
        *(wanted(30, 40), wanted(31, 41), Tally(10, 10, foreign=2), 35), first_ms=3, last_ms=4
    )
    found = Recount(coverage(wanted(0, 40), CHUNKS, 40), [first, second])
    assert (found.tally, found.first_foreign) == (Tally(40, 39, foreign=2), second)
    assert (found.scanned, found.first_ms, found.last_ms) == (wanted(0, 41), 3, 7)
    partition = made()
    partition.parts = parts(0, 40)
    partition.counted = [
        DestinationCount(wanted(0, 30)),
        DestinationCount(wanted(30, 40), error="away"),
    ]
    assert (partition.recount, unreadable(partition)) == (None, ["away"])


OPTIONS = CopyOptions(give_up_after_ms=60_000)


@pytest.fixture
def client() -> ClusterClient:
    """It is never asked: what would ask it is replaced."""
    clock = SleepingClock(0.0)
    return destination_client("m", Cluster("nowhere", ("127.0.0.1:1",)), OPTIONS, clock)


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
    """The time is over once, for others, too; a cluster that is away fails what is left."""

    def count(part: RecountPart) -> DestinationCount:
        if part.range.start < 20:
            raise unreachable()
        return DestinationCount(part.range)

    counting(count)
    *failed, counted = count_parts(client, PARTS)
    assert [type(each) for each in failed] == [RetriableError] * 2
    assert counted == DestinationCount(PARTS[2].range)
    assert 60 <= client.clock.monotonic() < 70

    def reach(part: RecountPart) -> DestinationCount:
        if part.range.start:
            raise unreachable(None)
        return DestinationCount(part.range)

    counting(reach)
    before = client.clock.monotonic()
    counted, *failed = count_parts(client, PARTS)
    assert isinstance(counted, DestinationCount)
    assert [str(each) for each in failed] == [str(unreachable(None))] * 2
    assert 60 <= client.clock.monotonic() - before < 70


def test_what_is_tried_again(counting: Any, client: ClusterClient) -> None:
    """What was refused is not; what retention has deleted since the look at the log is."""
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
    tried.clear()

    def look_again(part: RecountPart) -> DestinationCount:
        tried.append(part.range.start)
        if tried.count(part.range.start) == 1 and part.range.start == 0:
            raise RetentionPassedError("gone", topic_partition=AT, offset=0)
        return DestinationCount(part.range)

    counting(look_again)
    assert count_parts(client, PARTS) == [DestinationCount(part.range) for part in PARTS]
    assert tried == [0, 10, 20, 0]


def test_a_range_fails_if_one_of_its_parts_does(counting: Any, client: ClusterClient) -> None:
    """Copies in two topics: what one of them holds is not the whole of the range."""
    moved = TopicPartition("new.orders", 0)
    renamed = replace(entry(10, 20), destination=OffsetRange(moved, 0, 10))
    first, last = entry(0, 10), entry(20, 30)
    claims = Claims("m", [first, renamed, last])

    def count(part: RecountPart) -> DestinationCount:
        if part.destination.topic_partition == moved:
            raise unreachable(moved)
        records = len(part.range)
        return DestinationCount(part.range, tally=Tally(records, records))

    counting(count)
    ranges = [(wanted(0, 20), [first, renamed]), (wanted(20, 30), [last])]
    failed, counted = count_ranges(client, ranges, claims)
    assert isinstance(failed, RetriableError)
    assert isinstance(counted, Recount)
    assert (counted.range, counted.records, counted.problems) == (wanted(20, 30), 10, [])
    assert TO in {part.destination.topic_partition for part in claims.parts(*ranges[0])}


@pytest.mark.parametrize("low", [1, 2, 5, 19], ids="begins at {}".format)
@pytest.mark.parametrize("is_compacted", [False, True], ids=["retention", "compaction"])
def test_a_chunk_whose_first_record_is_gone(*, low: int, is_compacted: bool) -> None:
    """Its entry says whose its records are: the first one that is left may be another's."""
    copied = replace(entry(0, 16, 0), destination=OffsetRange(TO, 0, 20))
    own, other = copied.producer_id, copied.producer_id + 1
    others = replace(entry(0, 4), destination=OffsetRange(TO, 1, 5), producer_id=other)
    (part,) = Claims("m", [copied, others]).parts(wanted(0, 16), [copied])
    counting = PartCount(part, is_compacted=is_compacted)
    if is_compacted:
        counting.add(FetchedSpan(0, low, None, Skipped.COMPACTION_GAP))
    record = Record(0, 1, b"k", b"v", [])
    for offset in range(low, 20):
        producer = other if 1 <= offset < 5 else own
        counting.add(span(batch([record], offset, producer=producer)))
    counting.judge(0 if is_compacted else low)
    found = counting.result
    tally = found.tally
    assert (tally.foreign, tally.counted) == (0, 20 - max(low, 5))
    assert (Recount(CoverageMap(part.range), [found]).problems, tally.unverified) == (
        [],
        16 - tally.counted,
    )
    counting.add(span(batch([record], 2, producer=other + 1)))
    assert tally.foreign == 1, "of nobody, within two chunks"


def test_a_loss_supersedes_what_follows_the_last_chunk() -> None:
    """A hole before it was copied before the loss: no loss excuses it."""
    loss = replace(entry(40, 40), generation=1, gap="the topic was created again")
    entries = [entry(0, 10), entry(30, 40), loss]
    counted = Recount(coverage(wanted(0, 60), entries, 60))
    explain(counted, entries, 0)
    assert (counted.superseded, counted.coverage.offsets(OffsetKind.MISSING)) == (20, 20)
    assert counted.problems == ["20 source offsets are in no ledger entry: [10, 30)"]


@pytest.mark.parametrize(
    ("oldest", "generation", "forgotten"),
    [
        pytest.param(None, 0, 60, id="none is left"),
        pytest.param(entry(130, 140), 0, 30, id="of its generation"),
        pytest.param(replace(entry(0, 10), generation=1), 0, 60, id="of a later one"),
        pytest.param(entry(500, 510), 1, 0, id="of the one before"),
    ],
)
def test_which_offsets_expired_entries_had(
    oldest: LedgerEntry | None, generation: int, forgotten: int
) -> None:
    """Offsets are comparable within a generation: the oldest entry left may be of another one."""
    counted = Recount(coverage(wanted(100, 160), [], 160))
    forget(counted, oldest, generation)
    assert (counted.forgotten, counted.coverage.offsets(OffsetKind.MISSING)) == (
        forgotten,
        60 - forgotten,
    )


AT = TopicPartition("orders", 0)
HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
CHUNK_OFFSETS = OffsetRange(AT, 0, 10)


# its first record is three days old, its newest one, one day; it was committed an hour ago
CHUNK = replace(
    LedgerEntry(
        "m",
        CHUNK_OFFSETS,
        CHUNK_OFFSETS,
        10,
        100,
        1,
        0,
        {},
        "",
        7,
        "kafka-a",
        "",
        "r",
        NOW_MS - HOUR_MS,
    ),
    first_timestamp_ms=NOW_MS - 72 * HOUR_MS,
    max_timestamp_ms=NOW_MS - 24 * HOUR_MS,
)
UNDATED = replace(CHUNK, first_timestamp_ms=-1, max_timestamp_ms=-1)


def hours(number: int) -> str:
    return str(number * HOUR_MS)


def kept_for(number: int) -> dict[str, str]:
    return {"retention.ms": hours(number)}


COMPACTS, BOTH = {"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}
BY_SIZE = {"retention.bytes": "1000"}
EXPLAINED = [
    ("everything is kept", {}, 10, CHUNK, 1, False),
    ("older", kept_for(12), 10, CHUNK, 1, True),
    ("younger", kept_for(48), 10, CHUNK, 1, False),
    ("a part of it is older", kept_for(48), 5, CHUNK, 1, True),
    ("no part of it is older", kept_for(96), 5, CHUNK, 1, False),
    ("dated by its commit, younger", kept_for(12), 10, UNDATED, 1, False),
    ("dated by its commit, older", {"retention.ms": "60000"}, 10, UNDATED, 1, True),
    ("a small log", BY_SIZE, 10, CHUNK, 999, False),
    ("a large log", BY_SIZE, 10, CHUNK, 1000, True),
    ("a log of unknown size", BY_SIZE, 10, CHUNK, None, True),
    ("by size, not by time", kept_for(48) | {"retention.bytes": "9"}, 10, CHUNK, 9, True),
    ("a topic that is only compacted", kept_for(12) | COMPACTS, 10, CHUNK, 1, False),
    ("a topic that is compacted and deleted", kept_for(12) | BOTH, 10, CHUNK, 1, True),
    (
        "the cleaner may have taken its newest record before",
        kept_for(48) | BOTH,
        10,
        CHUNK,
        1,
        True,
    ),
    ("no part of it is older, with a cleaner", kept_for(96) | BOTH, 10, CHUNK, 1, False),
    ("the cleaner has made the log small since", BY_SIZE | BOTH, 10, CHUNK, 9, True),
    ("a small log that is only compacted", BY_SIZE | COMPACTS, 10, CHUNK, 9, False),
    (
        "dated by the broker",
        *(kept_for(12) | {"message.timestamp.type": "LogAppendTime"}, 10, CHUNK, 1, False),
    ),
    ("no records", {}, 10, replace(CHUNK, records=0), 1, True),
]


@titled("configs, low, chunk, size_bytes, expected", EXPLAINED)
def test_what_retention_explains(
    configs: dict[str, str], low: int, chunk: LedgerEntry, size_bytes: int | None, *, expected: bool
) -> None:
    found = CleanupPolicies(configs).contradicting([chunk], low, NOW_MS, lambda: size_bytes)
    assert (not found) == expected


def test_every_chunk_must_be_explained() -> None:
    """By what its topic keeps; copies follow the keys that are not left to the destination."""
    younger = replace(CHUNK, max_timestamp_ms=NOW_MS)

    def unexplained(configs: dict[str, str]) -> str:
        return CleanupPolicies(configs).contradicting([CHUNK, younger], 10, NOW_MS, lambda: 0)

    assert unexplained({}) == "its topic keeps everything"
    limited = {"retention.ms": hours(12), "retention.bytes": "-1"}
    assert unexplained(limited) == f"retention.ms is {hours(12)} and retention.bytes is -1"
    at_source = {"retention.ms": "1", "cleanup.policy": "delete", "message.timestamp.type": "x"}
    topics = Topics(config_keys=("retention.ms",), rename={"pinned": "copy:0"})
    assert followed(topics, {"orders": at_source, "pinned": at_source}) == {
        "orders": {"retention.ms": "1"}
    }


@pytest.mark.parametrize(
    ("there", "at_source", "expected"),
    [
        (hours(12), {}, ""),
        (hours(12), {"retention.ms": hours(12)}, ""),
        (hours(12), {"retention.ms": hours(48)}, f"retention.ms at the source is {hours(48)}"),
        (hours(48), {"retention.ms": hours(12)}, f"retention.ms is {hours(48)}"),
        (hours(12), {"cleanup.policy": "compact"}, "its topic at the source keeps everything"),
        (hours(12), {"retention.ms": hours(48), "retention.bytes": "9"}, ""),
    ],
    ids=["not followed", "alike", "shorter", "longer", "compacted", "by size at the source"],
)
def test_only_what_both_sides_would_delete(
    there: str, at_source: dict[str, str], expected: str
) -> None:
    """The destination's brokers may keep records for a shorter time; that excuses nothing."""
    found = CleanupPolicies({"retention.ms": there}, at_source).contradicting(
        [CHUNK], 10, NOW_MS, lambda: 9
    )
    assert found.split(" and ")[0] == expected


@pytest.mark.parametrize(
    ("there", "at_source", "expected"),
    [
        ("compact", {}, True),
        ("compact", {"cleanup.policy": "compact,delete"}, True),
        ("compact", {"cleanup.policy": "delete"}, False),
        ("delete", {"cleanup.policy": "compact"}, False),
    ],
)
def test_a_cleaner_that_works_on_both_sides(
    there: str, at_source: dict[str, str], *, expected: bool
) -> None:
    assert CleanupPolicies({"cleanup.policy": there}, at_source).compact is expected

"""What an audit compares, and what it reports of it."""

from __future__ import annotations

import sys
from dataclasses import replace

from relay_pipelines.audit.audit import Audit, PartitionAudit
from relay_pipelines.audit.chunks import AuditJob, ChunkResult, ComparedChunk
from relay_pipelines.audit.comparison import Difference
from relay_pipelines.audit.coverage import coverage
from relay_pipelines.audit.part_count import PartResult
from relay_pipelines.audit.recount import DestinationCount, Recount, merged
from relay_pipelines.audit.recount_parts import KnownEntries, RecountPart
from relay_pipelines.audit.request import Level
from relay_pipelines.audit.spark_job import groups_of
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.model import (
    Cluster,
    CopyOptions,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
)
from tests.support.audited import AT, CHUNKS, TO, entry, wanted
from tests.support.findings import differences, notes, unreadable

HERE = Cluster("here", ("127.0.0.1:1",))


def chunk(start: int, end: int, size_bytes: int = 100) -> ComparedChunk:
    return ComparedChunk(wanted(start, end), OffsetRange(TO, start, end), end - start, size_bytes)


def made(*results: ChunkResult, recount: Recount | None = None) -> PartitionAudit:
    found = PartitionAudit(
        coverage(wanted(0, 40), CHUNKS, 40), Chain(AT), Level.FULL, TO, rule="record by record"
    )
    if recount is not None:
        found.counted = [PartResult(recount.range, 100, recount)]
    job = AuditJob("m", (HERE,), HERE, CopyOptions())
    Audit("m", Level.FULL, job, {AT: found}).add(results)
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


def test_the_first_difference_is_the_one_with_the_lowest_offset() -> None:
    """Whatever task is done first."""
    found = made(
        ChunkResult(chunk(30, 40), "a", difference=Difference("later", None, None)),
        ChunkResult(chunk(0, 10), "a", records=10),
        ChunkResult(chunk(10, 30), "b", difference=Difference("1 record differs", None, None)),
    )
    assert differences(found) == [
        "differing chunks: 2 of 3; the first is [10, 30), compared with node b: 1 record differs"
    ]
    assert (found.records, notes(found)) == (10, [])


def test_what_could_not_be_compared_is_no_difference() -> None:
    found = made(
        ChunkResult(chunk(0, 10), unread="retention"),
        ChunkResult(chunk(10, 30), unread="retention"),
        ChunkResult(chunk(30, 40), error="away"),
    )
    assert differences(found) == []
    assert notes(found) == ["30 records were not compared: retention"]
    assert unreadable(found) == ["away"]


def test_the_recount_counts() -> None:
    found = made(recount=Recount(wanted(0, 40), recorded=25, counted=25, foreign=3, foreign_at=7))
    assert differences(found) == [
        "records at the destination that this mirror did not write: 3",
        "the first record that this mirror did not write is in copy.orders-0 at offset 7",
    ]


ENTRIES = [entry(start, start + 10) for start in range(0, 100, 10)]


def parts(
    start: int, end: int, size_bytes: int = 300, own: list[LedgerEntry] = ENTRIES
) -> list[RecountPart]:
    """The parts of a range; every entry has 100 bytes."""
    return KnownEntries({AT: own}, accounted={TO: wanted(0, 99)}).parts(
        wanted(start, end), size_bytes
    )


def spans(found: list[RecountPart]) -> list[tuple[int, int]]:
    return [(part.range.start, part.range.end) for part in found]


def reads(found: list[RecountPart]) -> list[tuple[int, int]]:
    return [(part.destination.start, part.destination.end) for part in found]


def test_a_range_is_counted_in_parts() -> None:
    """They are cut between chunks, and cover the range."""
    assert spans(parts(0, 100)) == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert spans(parts(15, 72)) == [(15, 40), (40, 70), (70, 72)]
    assert spans(parts(15, 18)) == [(15, 18)]
    assert spans(parts(0, 100, 10_000)) == [(0, 100)]
    assert {part.accounted for part in parts(0, 100)} == {wanted(0, 99)}


def test_a_part_ends_where_the_next_chunk_begins() -> None:
    """Also if that is not of the range; the last one has no next, and ends with the log."""
    assert reads(parts(0, 100)) == [(0, 30), (30, 60), (60, 90), (90, sys.maxsize)]
    assert reads(parts(15, 35)) == [(10, 40)]
    assert [part.size_bytes for part in parts(0, 100)] == [300, 300, 300, 100]


def test_a_part_has_a_destination() -> None:
    """After a topic is renamed, its copies are in two; each is read to its own end."""
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


def test_a_part_knows_what_others_wrote_where_its_chunks_have_no_records() -> None:
    """Its scan begins there: without their entries, their records would seem to be foreign."""
    filtered, copied = entry(0, 10, filtered=10), entry(10, 20)
    other = replace(entry(0, 10), source=OffsetRange(TopicPartition("other", 0), 0, 10))
    replayed = [OffsetRange(TO, 20, 30), OffsetRange(TO, 2, 4)]
    (part,) = KnownEntries({AT: [filtered, copied]}, [other], replayed).parts(wanted(0, 20))
    assert part.others == (other.destination, *reversed(replayed))
    (part,) = KnownEntries({AT: [filtered]}, [other], replayed).parts(wanted(0, 20))
    assert not len(part.destination), "the other's records follow at once"


def test_a_part_knows_only_its_neighbours() -> None:
    """What others and replays wrote after it goes to other tasks."""
    replayed = [OffsetRange(TO, offset, offset + 1) for offset in range(100)]
    found = KnownEntries({AT: ENTRIES}, (), replayed).parts(wanted(0, 100), 300)
    assert [len(part.others) for part in found] == [30, 30, 30, 10]


def test_parts_are_not_cut_within_entries_that_overlap() -> None:
    """Both parts would count their records."""
    doubled = sorted([*ENTRIES, entry(25, 45)], key=lambda each: each.source)
    assert reads(parts(0, 100, 100, doubled)) == [
        (0, 10),
        (10, 20),
        (20, 50),
        *((start, start + 10) for start in range(50, 90, 10)),
        (90, sys.maxsize),
    ]


def test_foreign_records_are_looked_for_where_entries_are_missing() -> None:
    left = [*ENTRIES[:3], *ENTRIES[5:]]
    assert reads(parts(0, 100, 100, left))[2:4] == [(20, 50), (50, 60)]


def test_the_recounts_of_parts_are_added() -> None:
    first = DestinationCount(wanted(0, 30), wanted(0, 31), 30, 29, first_ms=5, last_ms=7)
    second = DestinationCount(wanted(30, 40), wanted(31, 41), 10, 10, 2, 35, first_ms=3, last_ms=4)
    found = merged(wanted(0, 40), [first, second])
    assert (found.recorded, found.counted, found.foreign, found.foreign_at) == (40, 39, 2, 35)
    assert (found.scanned, found.first_ms, found.last_ms) == (wanted(0, 41), 3, 7)


def test_a_part_that_could_not_be_counted() -> None:
    """Then there is no sum, but an error."""
    found = made()
    found.parts = parts(0, 40)
    found.counted = [
        PartResult(wanted(0, 30), 100, Recount(wanted(0, 30))),
        PartResult(wanted(30, 40), 100, error="away"),
    ]
    assert (found.recount, unreadable(found)) == (None, ["away"])

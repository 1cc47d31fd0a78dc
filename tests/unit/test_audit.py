"""What an audit compares, and what it reports of it."""

from __future__ import annotations

from relay_pipelines.model import Cluster, CopyOptions, OffsetRange
from relay_pipelines.verify.audit import Audit, Level, PartitionAudit
from relay_pipelines.verify.chunks import AuditJob, ChunkResult, ComparedChunk, groups_of
from relay_pipelines.verify.coverage import coverage
from relay_pipelines.verify.difference import Difference
from relay_pipelines.verify.recount import Recount
from tests.unit.test_coverage import AT, CHUNKS, TO, wanted

HERE = Cluster("here", ("127.0.0.1:1",))


def chunk(start: int, end: int, size_bytes: int = 100) -> ComparedChunk:
    return ComparedChunk(wanted(start, end), OffsetRange(TO, start, end), end - start, size_bytes)


def made(*results: ChunkResult, recount: Recount | None = None) -> PartitionAudit:
    found = PartitionAudit(coverage(wanted(0, 40), CHUNKS, 40), TO, recount, "record by record")
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
        ChunkResult(chunk(30, 40), difference=Difference("later", None, None)),
        ChunkResult(chunk(0, 10), records=10),
        ChunkResult(chunk(10, 30), difference=Difference("1 record differs", None, None)),
    )
    assert found.problems == ["2 of 3 chunks differ, the first is [10, 30): 1 record differs"]
    assert (found.records, found.notes) == (10, [])


def test_what_could_not_be_compared_is_no_difference() -> None:
    found = made(
        ChunkResult(chunk(0, 10), unread="retention"),
        ChunkResult(chunk(10, 30), unread="retention"),
        ChunkResult(chunk(30, 40), error="away"),
    )
    assert found.problems == []
    assert found.notes == ["30 records were not compared: retention"]
    assert found.errors == ["away"]


def test_the_recount_counts() -> None:
    found = made(recount=Recount(wanted(0, 40), recorded=25, counted=25, foreign=3, foreign_at=7))
    assert found.problems == [
        "records at the destination that this mirror did not write: 3",
        "the first record that this mirror did not write is in copy.orders-0 at offset 7",
    ]

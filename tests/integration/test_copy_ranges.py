"""Which offsets are copied: every source offset is copied once and accounted for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger.checkpoint import TOPIC, home, key_of, read_all
from relay_pipelines.model import OffsetRange, Status, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from tests.copying import Clusters, Mirror, batches_of, numbered
from tests.support.independent import delete_before, read, settled_end


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic and its copy, with the brokers' defaults."""
    return Mirror(*sides, topic_name)


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
def test_a_range_that_cuts_batches(mirror: Mirror, size: int) -> None:
    """A range that starts and ends inside batches copies exactly its own records."""
    mirror.write(*(numbered(10, size, first) for first in range(0, 50, 10)))
    outcome = mirror.copy(3, 38)
    assert (outcome.records, outcome.next_offset) == (35, 38)
    assert mirror.copied() == mirror.original()[3:38]


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
def test_consecutive_ranges_leave_no_gap(mirror: Mirror, size: int) -> None:
    """Consecutive ranges leave neither gap nor duplicate, wherever they meet."""
    mirror.write(*(numbered(10, size, first) for first in range(0, 40, 10)))
    for start, end in ((0, 13), (13, 14), (14, 30), (30, 40)):
        assert mirror.copy(start, end).records == end - start
    mirror.assert_equal()


def test_a_log_that_does_not_start_at_zero(mirror: Mirror) -> None:
    """A copy may start in the middle of a batch that retention has cut."""
    mirror.write(numbered(20, 1000), numbered(20, 1000, 20))
    delete_before(mirror.source, mirror.at, 15)
    assert mirror.copy(15).records == 25
    mirror.assert_equal()
    assert len(mirror.copied()) == 25


def test_retention_that_overtakes_the_mirror_fails_the_range(mirror: Mirror) -> None:
    """Retention that deletes uncopied records fails the range in one line; nothing is skipped."""
    mirror.write(numbered(20))
    mirror.copy(0, 5)
    delete_before(mirror.source, mirror.at, 15)
    outcome = mirror.try_copy(5)
    facts = outcome.status, outcome.error_kind, outcome.exit_code
    assert facts == (Status.FAILED, "RetentionPassedError", 3)
    assert "offset 5" in outcome.error
    assert "\n" not in outcome.error
    assert len(mirror.copied()) == 5


def test_the_checkpoint_decides_where_a_range_begins(mirror: Mirror) -> None:
    """A window that was overtaken, repeated or is empty copies nothing; a failed one is made up."""
    mirror.write(numbered(60))
    assert mirror.copy(0, 0).records == 0
    mirror.copy(0, 25)
    for start, end in ((5, 20), (0, 25)):
        again = mirror.copy(start, end)
        assert (again.records, again.chunks, again.next_offset) == (0, 0, 25)
    assert mirror.copy(20, 30).records == 5
    assert mirror.copy(50, 60).records == 30, "the window before it has failed"
    mirror.assert_equal()


def test_a_task_finds_checkpoints_newer_than_the_drivers(mirror: Mirror) -> None:
    """A task finds checkpoints that were committed after the driver read them."""
    mirror.write(numbered(30))
    mirror.copy(0, 5)
    with ClusterClient(mirror.destination, DestinationError) as client:
        stored = read_all(client, mirror.name)
    assert list(stored.checkpoints) == [mirror.at]
    read_to = stored.ends[home(TOPIC, key_of(mirror.name, mirror.at))]
    mirror.known = stored.checkpoints[mirror.at], read_to
    assert mirror.copy(5, 12).records == 7
    assert mirror.copy(5, 30).records == 18
    mirror.assert_equal()


@pytest.mark.parametrize("size", [20, 9000], ids=["merged", "verbatim"])
def test_many_chunks_are_one_copy(mirror: Mirror, size: int) -> None:
    """However small the chunks are, the ledger is complete and the records are equal.

    A chunk is committed after `chunk_ms`, however little it holds.
    """
    mirror.write(*(numbered(3, size, first) for first in range(0, 90, 3)))
    outcome = mirror.with_options(chunk_bytes=1, coalesce_to_bytes=300, fetch_max_bytes=500).copy()
    assert outcome.records == 90
    assert outcome.chunks == len(mirror.entries()) >= 6
    mirror.assert_equal()
    markers = settled_end(mirror.destination, mirror.at) - 90
    assert markers == outcome.chunks
    mirror.write(*(numbered(1, 9000, n) for n in range(90, 95)))
    timed = mirror.with_options(chunk_bytes=1 << 20, chunk_ms=0, fetch_max_bytes=1).copy(90)
    assert timed.chunks == 5
    mirror.assert_equal()


def test_two_ranges_in_one_task(sides: Clusters, topic_name: str) -> None:
    """A task copies several topic-partitions, each with its own outcome."""
    one = Mirror(*sides, f"{topic_name}-1", name="two-ranges")
    two = Mirror(*sides, f"{topic_name}-2", name="two-ranges")
    one.write(numbered(20))
    two.write(numbered(30, 900))
    outcomes = list(copy_ranges(one.job, [one.range(), two.range(), one.range()]))
    assert [(outcome.records, outcome.status) for outcome in outcomes] == [
        (20, "done"),
        (30, "done"),
        (0, "done"),
    ]
    one.assert_equal()
    two.assert_equal()


def test_a_missing_topic_does_not_stop_the_others(mirror: Mirror) -> None:
    """The range of a missing topic fails in one line that names it; the others are copied."""
    mirror.write(numbered(20))
    mirror.with_options(give_up_after_ms=500)
    gone = TopicPartition(f"{mirror.topic}-gone", 0)
    missing = replace(mirror.range(), source=OffsetRange(gone, 0, 5))
    first, second = copy_ranges(mirror.job, [missing, mirror.range()])
    assert (first.status, first.records) == (Status.FAILED, 0)
    assert gone.topic in first.error
    assert "\n" not in first.error
    assert (second.status, second.records) == (Status.DONE, 20)
    mirror.assert_equal()


def test_batches_land_where_the_ledger_says(mirror: Mirror) -> None:
    """A ledger entry's destination offsets hold its records, even beside another producer."""
    mirror.write(numbered(10, 2000))
    mirror.copy(0, 5)
    other = Mirror(mirror.source, mirror.destination, f"{mirror.topic}-other", to=mirror.at)
    other.write(numbered(7))
    other.copy()
    mirror.copy(5, 10)
    settled_end(mirror.destination, mirror.at)
    found = dict(read(mirror.destination, mirror.at))
    for entry, expected in zip(
        mirror.entries(), (numbered(5, 2000), numbered(5, 2000, 5)), strict=True
    ):
        assert [
            found[offset] for offset in range(entry.destination.start, entry.destination.end)
        ] == expected
        assert batches_of(
            mirror.destination, mirror.at, entry.destination.start, entry.destination.end
        )

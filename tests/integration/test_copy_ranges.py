"""Which offsets are copied: every committed record once, and each offset is accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.ledger.checkpoint import TOPIC, home, key_of, read_all
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import OffsetRange, Status, TopicPartition
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.metadata import Metadata
from tests.contract.interleaved_transactions import InterleavedTransactions
from tests.copying import KEPT, Clusters, Mirror, batches_of, numbered, write_transaction
from tests.support.independent import create, delete_before, put, read, settled_end, transactional


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic and its copy, with the brokers' defaults."""
    return Mirror(*sides, topic_name)


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
def test_ranges_may_meet_in_a_batch(mirror: Mirror, size: int) -> None:
    """Each copies exactly its own records: neither gap nor duplicate, wherever they meet."""
    mirror.write(*(numbered(10, size, first) for first in range(0, 50, 10)))
    for start, end in ((3, 13), (13, 14), (14, 30), (30, 38)):
        outcome = mirror.copy(start, end)
        assert (outcome.records, outcome.next_offset) == (end - start, end)
    assert mirror.copied() == mirror.original()[3:38]


def test_retention_cuts_a_log(mirror: Mirror) -> None:
    """A copy may begin in a batch that was cut; what was not copied in time fails in one line."""
    mirror.write(numbered(20, 1000), numbered(20, 1000, 20))
    delete_before(mirror.source, mirror.at, 15)
    assert mirror.copy(15, 25).records == 10
    assert mirror.copied() == mirror.original()[:10]
    delete_before(mirror.source, mirror.at, 30)
    outcome = mirror.try_copy(25)
    facts = outcome.status, outcome.error_kind, outcome.exit_code
    assert facts == (Status.FAILED, "RetentionPassedError", 3)
    assert "offset 25" in outcome.error
    assert "\n" not in outcome.error
    assert len(mirror.copied()) == 10


def test_the_checkpoint_decides_where_a_range_begins(mirror: Mirror) -> None:
    """What was overtaken, repeated or is empty copies nothing; a failed window is made up."""
    mirror.write(numbered(60))
    assert mirror.copy(0, 0).records == 0
    mirror.copy(0, 25)
    for start, end in ((5, 20), (0, 25)):
        again = mirror.copy(start, end)
        assert (again.records, again.chunks, again.next_offset) == (0, 0, 25)
    with ClusterClient(mirror.destination, DestinationError) as client:
        stored = read_all(client, mirror.name)
    assert list(stored.checkpoints) == [mirror.at]
    read_to = stored.ends[home(TOPIC, key_of(mirror.name, mirror.at))]
    mirror.known = stored.checkpoints[mirror.at], read_to
    assert mirror.copy(20, 30).records == 5
    assert mirror.copy(50, 60).records == 30, "the window before it has failed"
    mirror.assert_equal()


@pytest.mark.parametrize("size", [20, 9000], ids=["merged", "verbatim"])
def test_many_chunks_are_one_copy(mirror: Mirror, size: int) -> None:
    """However small or short chunks are, the ledger is complete and the records are equal."""
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


def test_ranges_in_one_task(sides: Clusters, topic_name: str) -> None:
    """Each has its own outcome; that of a missing topic names it, and stops no other."""
    one, two = (Mirror(*sides, f"{topic_name}-{n}", name=f"m-{topic_name[-8:]}") for n in "12")
    one.write(numbered(20))
    two.write(numbered(30, 900))
    gone = TopicPartition(f"{topic_name}-gone", 0)
    missing = replace(one.range(), source=OffsetRange(gone, 0, 5))
    job = one.with_options(give_up_after_ms=500).job
    failed, *done = copy_ranges(job, [missing, one.range(), two.range(), one.range()])
    assert (failed.status, failed.records) == (Status.FAILED, 0)
    assert gone.topic in failed.error
    assert "\n" not in failed.error
    found = [(outcome.records, outcome.status) for outcome in done]
    assert found == [(20, Status.DONE), (30, Status.DONE), (0, Status.DONE)]
    one.assert_equal()
    two.assert_equal()


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
    copies = [entry.destination for entry in mirror.entries()]
    for there, first in zip(copies, (0, 5), strict=True):
        expected = numbered(5, 2000, first)
        assert [found[offset] for offset in range(there.start, there.end)] == expected
        assert batches_of(mirror.destination, mirror.at, there.start, there.end)


def transaction(
    mirror: Mirror, *, commit: bool, count: int = 10, size: int = 20, first: int = 0
) -> None:
    """One transaction of one batch."""
    write_transaction(mirror.source, mirror.at, numbered(count, size, first), commit=commit)


class TestInterleaved(InterleavedTransactions):
    """With the clusters of the test run."""


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
def test_ranges_that_cut_transactions(mirror: Mirror, size: int) -> None:
    """Ranges may meet in an aborted batch, at a marker or in a committed batch without loss."""
    transaction(mirror, commit=False, size=size)
    transaction(mirror, commit=True, size=size, first=10)
    assert settled_end(mirror.source, mirror.at) == 22
    for start, end in pairwise((0, 4, 10, 16, 21, 22)):
        mirror.copy(start, end)
    mirror.assert_equal()
    assert len(mirror.copied()) == 10


def test_a_range_of_aborted_records_moves_the_checkpoint(mirror: Mirror) -> None:
    """It copies nothing, whoever reads; a mirror may begin with one."""
    transaction(mirror, commit=False)
    assert mirror.copy().skipped == {"control": 1, "aborted": 10}
    assert mirror.checkpoint().fingerprint is None
    assert not mirror.copied()
    mirror.write(numbered(5))
    mirror.copy(11)
    before = mirror.checkpoint()
    transaction(mirror, commit=False, first=10)
    transaction(mirror, commit=False, first=20)
    outcome = mirror.copy(16)
    assert (outcome.records, outcome.skipped) == (0, {"control": 2, "aborted": 20})
    after = mirror.checkpoint()
    assert (after.next_offset, after.fingerprint) == (38, before.fingerprint)
    assert after.copies == before.copies
    transaction(mirror, commit=True, first=30)
    mirror.copy(38)
    mirror.assert_equal()
    settled_end(mirror.destination, mirror.at)
    uncommitted = read(mirror.destination, mirror.at, "read_uncommitted")
    assert uncommitted == read(mirror.destination, mirror.at)


def test_an_open_transaction_ends_the_range(mirror: Mirror) -> None:
    """Records after an open transaction are copied once it has ended."""
    sender = transactional(mirror.source, mirror.topic)
    mirror.write(numbered(5))
    sender.begin_transaction()
    put(sender, mirror.at, numbered(5, first=5))
    sender.flush(30)
    mirror.write(numbered(5, first=10))
    assert mirror.copy().next_offset == 5
    sender.commit_transaction(30)
    settled_end(mirror.source, mirror.at)
    assert mirror.copy().records == 10
    mirror.assert_equal()


def test_an_aborted_chunk_leaves_the_copies_where_they_are(mirror: Mirror) -> None:
    """Under another name, neither records nor a chunk without records move the position there."""
    mirror.write(numbered(5))
    mirror.copy()
    former, before = mirror.to, mirror.checkpoint()
    transaction(mirror, commit=False)
    mirror.to = TopicPartition(f"{mirror.topic}-renamed", 0)
    create(mirror.destination, mirror.to.topic, 1, KEPT)
    assert mirror.try_copy(5).error_kind == "DestinationChangedError"
    assert mirror.checkpoint() == before
    mirror.to = former
    assert mirror.copy(5).records == 0
    assert mirror.checkpoint().copies == before.copies
    mirror.write(numbered(5, first=50))
    assert mirror.copy(16).records == 5


def test_the_leaders_of_many_topics_are_asked_for_at_once(
    source_cluster: LocalCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that knows none of the topics sends one question, not one for each of them."""
    topics = [f"{topic_name}-{number}" for number in range(5)]
    for topic in topics:
        create(source_cluster.cluster(), topic, 2)
    asked: list[object] = []
    real = ClusterClient.metadata

    def counted(self: ClusterClient, names: Sequence[str] | None = None) -> Metadata:
        asked.append(names)
        return real(self, names)

    monkeypatch.setattr(ClusterClient, "metadata", counted)
    wanted = [TopicPartition(topic, number) for topic in topics for number in range(2)]
    with ClusterClient(source_cluster.cluster(), SourceError) as of_source:
        ends = of_source.list_offsets(iter(wanted), LATEST, READ_COMMITTED)
    assert ends == dict.fromkeys(wanted, 0)
    assert asked == [topics]

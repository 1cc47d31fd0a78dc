"""Sources written in transactions: only committed records are copied."""

from __future__ import annotations

import pytest

from relay_pipelines.model import TopicPartition
from tests.contract.interleaved_transactions import InterleavedTransactions
from tests.copying import KEPT, Clusters, Mirror, numbered, write_transaction
from tests.support.independent import create, put, read, settled_end, transactional


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic and its copy, with the brokers' defaults."""
    return Mirror(*sides, topic_name)


def transaction(
    mirror: Mirror, *, commit: bool, count: int = 10, size: int = 20, first: int = 0
) -> None:
    """One transaction of one batch."""
    write_transaction(mirror.source, mirror.at, numbered(count, size, first), commit=commit)


class TestInterleaved(InterleavedTransactions):
    """With the clusters of the test run."""


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
@pytest.mark.parametrize("cut", [4, 10, 16, 21])
def test_ranges_that_cut_transactions(mirror: Mirror, size: int, cut: int) -> None:
    """Ranges may meet in an aborted batch, at a marker or in a committed batch without loss."""
    transaction(mirror, commit=False, size=size)
    transaction(mirror, commit=True, size=size, first=10)
    assert settled_end(mirror.source, mirror.at) == 22
    mirror.copy(0, cut)
    mirror.copy(cut)
    mirror.assert_equal()
    assert len(mirror.copied()) == 10


def test_a_range_of_aborted_records_moves_the_checkpoint(mirror: Mirror) -> None:
    """A range of aborted records and markers copies nothing; a mirror may begin with one.

    The destination has nothing either that only readers of uncommitted records see.
    """
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

"""Compacted sources: batches with holes, empty batches, and offsets that the cleaner removed."""

from __future__ import annotations

import pytest

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.protocol.batch import BatchHeader
from tests.copying import Mirror, batches_of, end_of
from tests.support.compacted import COMPACTED, clean, keyed, roll
from tests.support.independent import CREATE_TIME, Record, put, read, transactional, until

_DELETE_HORIZON_BIT = 0x40


@pytest.fixture
def mirror(
    eager_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> Mirror:
    """A compacted topic and a copy that is not compacted."""
    return Mirror(eager_cluster.cluster(), destination_cluster.cluster(), topic_name, COMPACTED)


def headers_of(mirror: Mirror, end: int) -> list[BatchHeader]:
    return [header for header, _ in batches_of(mirror.source, mirror.at, 0, end)]


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_with_holes(mirror: Mirror, size: int, codec: str) -> None:
    """Records that the cleaner left arrive in order, and the holes are counted."""
    mirror.write(
        keyed(20, size), [*keyed(5, size), *keyed(15, size, 1000, 100)], compression_type=codec
    )
    clean(mirror, 40, 35)
    end = end_of(mirror.source, mirror.at)
    sparse = [
        header for header in headers_of(mirror, end) if header.records <= header.last_offset_delta
    ]
    assert sparse
    outcome = mirror.copy(0, end)
    expected = [record for offset, record in read(mirror.source, mirror.at) if offset < end]
    assert mirror.copied() == expected
    assert outcome.records == len(expected)
    assert outcome.skipped["compaction_gap"] == end - len(expected)


@pytest.mark.parametrize("cut", [10, 20])
def test_a_range_that_ends_in_a_hole(mirror: Mirror, cut: int) -> None:
    """Two ranges may meet at an offset that the cleaner removed."""
    mirror.write(keyed(20, 1000), keyed(20, 1000))
    clean(mirror, 40, 20)
    end = end_of(mirror.source, mirror.at)
    first = mirror.copy(0, cut)
    assert first.next_offset == cut
    mirror.copy(cut, end)
    assert mirror.copied() == [
        record for offset, record in read(mirror.source, mirror.at) if offset < end
    ]


def test_batches_that_lost_every_record(mirror: Mirror) -> None:
    """An empty batch, which the cleaner keeps for the state of its producer, is skipped.

    Also where a range holds nothing else.
    """
    # the last batch of a producer that is still known stays, without records
    for size in (2000, 20):
        mirror.write(keyed(10, size), enable_idempotence=True)
        mirror.write(keyed(10, size))
    clean(mirror, 40, 10)
    end = end_of(mirror.source, mirror.at)
    empty = [header.base_offset for header in headers_of(mirror, end) if not header.records]
    assert empty
    first = mirror.copy(0, 10)
    assert (first.records, first.skipped) == (0, {"compaction_gap": 10})
    outcome = mirror.copy(10, end)
    assert mirror.copied() == [
        record for offset, record in read(mirror.source, mirror.at) if offset < end
    ]
    assert outcome.skipped["compaction_gap"] >= 20


@pytest.mark.newer_kafka
def test_batches_with_a_delete_horizon(mirror: Mirror) -> None:
    """Tombstones in a batch with a delete horizon (KIP-534) arrive with their own timestamps."""
    tombstones = [
        Record(b"k%d" % n, None, (), (CREATE_TIME, 1_700_000_000_000 + 7 * n)) for n in range(300)
    ]
    padded = [
        Record(b"p%d" % n, b"x" * 100, (), (CREATE_TIME, 1_700_000_000_500 + n)) for n in range(300)
    ]
    mirror.write(keyed(20, 20), [*tombstones, *padded])
    until(lambda: _marked(mirror), "a delete horizon")
    end = end_of(mirror.source, mirror.at)
    outcome = mirror.copy(0, end)
    assert mirror.copied() == [
        record for offset, record in read(mirror.source, mirror.at) if offset < end
    ]
    assert outcome.records - outcome.reencoded >= 600


def _marked(mirror: Mirror) -> bool:
    roll(mirror)
    end = end_of(mirror.source, mirror.at)
    return any(
        header.attributes & _DELETE_HORIZON_BIT and header.records >= 600
        for header in headers_of(mirror, end)
    )


def test_aborted_records_stay_away_after_compaction(mirror: Mirror) -> None:
    """Markers that the cleaner has thinned out still keep aborted records away."""
    sender = transactional(mirror.source, mirror.topic)
    for first, commit in ((0, True), (10, False), (20, True)):
        sender.begin_transaction()
        put(sender, mirror.at, keyed(10, 500, 10, first))
        sender.flush(30)
        (sender.commit_transaction if commit else sender.abort_transaction)(30)
    clean(mirror, 33, 10)
    end = end_of(mirror.source, mirror.at)
    mirror.copy(0, end)
    assert mirror.copied() == [
        record for offset, record in read(mirror.source, mirror.at) if offset < end
    ]

"""Compacted sources: batches with holes, empty batches, and offsets that the cleaner removed."""

from __future__ import annotations

from itertools import pairwise

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


def left_below(mirror: Mirror, end: int) -> list[Record]:
    """What the cleaner has left below an offset."""
    return [record for offset, record in read(mirror.source, mirror.at) if offset < end]


@pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_with_holes(mirror: Mirror, size: int, codec: str) -> None:
    """Records that the cleaner left arrive in order, and the holes are counted."""
    mirror.write(
        keyed(20, size), [*keyed(5, size), *keyed(15, size, 1000, 100)], compression_type=codec
    )
    clean(mirror, 40, 35)
    end = end_of(mirror.source, mirror.at)
    assert any(each.records <= each.last_offset_delta for each in headers_of(mirror, end))
    cuts = (0, 3, 5, end)  # two ranges may meet at an offset that the cleaner removed
    outcomes = [mirror.copy(start, cut) for start, cut in pairwise(cuts)]
    expected = left_below(mirror, end)
    assert mirror.copied() == expected
    assert sum(outcome.records for outcome in outcomes) == len(expected)
    gaps = sum(outcome.skipped.get("compaction_gap", 0) for outcome in outcomes)
    assert gaps == end - len(expected)


def test_batches_that_lost_every_record(mirror: Mirror) -> None:
    """The cleaner keeps them for the state of a producer: they are skipped, alone or not."""
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
    assert mirror.copied() == left_below(mirror, end)
    assert outcome.skipped["compaction_gap"] >= 20


@pytest.mark.newer_kafka
def test_batches_with_a_delete_horizon(mirror: Mirror) -> None:
    """Tombstones in a batch with a delete horizon (KIP-534) arrive with their own timestamps."""
    batch = [
        Record(b"k%d" % n, None, (), (CREATE_TIME, 1_700_000_000_000 + 7 * n)) for n in range(300)
    ]
    batch += [
        Record(b"p%d" % n, b"x" * 100, (), (CREATE_TIME, 1_700_000_000_500 + n)) for n in range(300)
    ]
    mirror.write(keyed(20, 20), batch)
    until(lambda: _marked(mirror), "a delete horizon")
    end = end_of(mirror.source, mirror.at)
    outcome = mirror.copy(0, end)
    assert mirror.copied() == left_below(mirror, end)
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
    assert mirror.copied() == left_below(mirror, end)

"""A batch corrupted on the source's disk: it is named, and never reaches the destination."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Status, TopicPartition
from tests.copying import KEPT, Mirror, end_of, numbered
from tests.support.independent import create, write
from tests.support.segments import flip_bit

# value sizes: small batches are decoded and merged, large ones go as they are
SIZES = {"merged": 20, "verbatim": 2000}
FIRST, COUNT = 10, 5


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker with two topics of three batches each; one bit of the second batch is flipped."""
    folder = tmp_path_factory.mktemp("damaged")
    with LocalCluster("damaged", folder=folder) as cluster:
        for topic, size in SIZES.items():
            create(cluster.cluster(), topic, 1, KEPT)
            batches = [
                numbered(COUNT if number == 1 else FIRST, size, first=number * FIRST)
                for number in range(3)
            ]
            write(cluster.cluster(), TopicPartition(topic, 0), *batches)
        (broker,) = cluster.brokers
        broker.stop()
        for topic in SIZES:
            flip_bit(folder, TopicPartition(topic, 0), b"%08d" % (FIRST + COUNT - 1))
        broker.start()
        yield cluster


@pytest.mark.parametrize("topic", SIZES)
def test_a_corrupt_batch_stops_the_range(
    damaged: LocalCluster, destination_cluster: LocalCluster, topic: str, topic_name: str
) -> None:
    """The outcome names the batch in one line; every run fails alike; earlier ones are copied."""
    mirror = Mirror(
        damaged.cluster(), destination_cluster.cluster(), topic, to=TopicPartition(topic_name, 0)
    )
    assert end_of(mirror.source, mirror.at) == 2 * FIRST + COUNT
    for _ in range(2):
        outcome = mirror.try_copy()
        found = (outcome.status, outcome.error_kind, outcome.exit_code)
        assert found == (Status.FAILED, "CorruptBatchError", 1)
        assert outcome.error.startswith(
            f"{topic}-0 at offset {FIRST}: the record batch does not match its CRC"
        )
        assert outcome.error.endswith(
            "; read from another node or replica, or restore the source's log segment"
        )
        assert "\n" not in outcome.error
        assert (outcome.next_offset, outcome.records, outcome.chunks) == (0, 0, 0)
        assert (mirror.copied(), mirror.entries()) == ([], [])
    assert mirror.copy(0, FIRST).records == FIRST
    before = mirror.checkpoint()
    outcome = mirror.try_copy()
    assert (outcome.error_kind, outcome.next_offset) == ("CorruptBatchError", FIRST)
    assert (mirror.checkpoint(), len(mirror.copied())) == (before, FIRST)
    # an operator may avoid it with another mirror that starts after the batch
    beyond = Mirror(mirror.source, mirror.destination, topic, to=mirror.to)
    assert beyond.copy(FIRST + COUNT).records == FIRST
    size = SIZES[topic]
    assert mirror.copied() == [*numbered(FIRST, size), *numbered(FIRST, size, first=2 * FIRST)]

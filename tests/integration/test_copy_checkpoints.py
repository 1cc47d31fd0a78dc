"""Which checkpoints are found in a topic that holds those of many mirrors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping

import pytest

from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import home, key_of, read_all
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Checkpoint, Cluster, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from tests.copying import Mirror, ensure_homes, numbered, read_own
from tests.support.independent import Record, until, write


@pytest.fixture
def cluster(destination_cluster: LocalCluster) -> Cluster:
    """A destination that has the internal topics."""
    ensure_homes(destination_cluster.cluster())
    return destination_cluster.cluster()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    """A client of the destination."""
    with ClusterClient(cluster, DestinationError) as client:
        yield client


@pytest.fixture
def mirror(source_cluster: LocalCluster, cluster: Cluster, topic_name: str) -> Mirror:
    """A mirror that has copied 10 of 20 records."""
    mirror = Mirror(source_cluster.cluster(), cluster, topic_name)
    mirror.write(numbered(20))
    mirror.copy(0, 10)
    return mirror


def own_checkpoint(client: ClusterClient, mirror: Mirror) -> Checkpoint | None:
    """Return the checkpoint that a task of this mirror finds."""
    return read_own(client, mirror.name, mirror.at, (None, 0))


def test_all_checkpoints_of_a_mirror(
    source_cluster: LocalCluster, cluster: Cluster, client: ClusterClient, topic_name: str
) -> None:
    """`read_all` returns the last checkpoint of each topic-partition of this mirror only."""
    mirrors = [
        Mirror(
            source_cluster.cluster(), cluster, f"{topic_name}-{n}", name=f"all-{topic_name[-8:]}"
        )
        for n in range(3)
    ]
    for number, mirror in enumerate(mirrors):
        mirror.write(numbered(10))
        for end in range(1, number + 2):
            mirror.try_copy(0, end)
    longer = Mirror(
        source_cluster.cluster(), cluster, f"{topic_name}-0", name=f"all-{topic_name[-8:]}-longer"
    )
    longer.try_copy(0, 7)
    found, _ = until(lambda: _when_complete(client, mirrors[0].name, 3), "all checkpoints")
    assert {at: committed.next_offset for at, committed in found.items()} == {
        mirror.at: n + 1 for n, mirror in enumerate(mirrors)
    }
    for mirror in mirrors:
        assert own_checkpoint(client, mirror) == found[mirror.at] == mirror.checkpoint()


def _when_complete(
    client: ClusterClient, mirror: str, last: int
) -> tuple[Mapping[TopicPartition, Checkpoint], object] | None:
    # markers follow the answer to a commit
    stored = read_all(client, mirror)
    found, ends = stored.checkpoints, stored.ends
    return (
        (found, ends)
        if max((committed.next_offset for committed in found.values()), default=0) == last
        else None
    )


def test_foreign_records_are_not_taken_for_checkpoints(
    client: ClusterClient, mirror: Mirror
) -> None:
    """Tombstones and records of other keys in the topic are not taken for checkpoints."""
    at = home(checkpoint.TOPIC, key_of(mirror.name, mirror.at))
    write(mirror.destination, at, [Record(b"some/one/0", b"else")], [Record(b"some/one/0", None)])
    found = own_checkpoint(client, mirror)
    assert found is not None
    assert found.next_offset == 10
    assert mirror.at in read_all(client, mirror.name).checkpoints


def test_a_copy_refuses_a_checkpoint_of_another_version(mirror: Mirror) -> None:
    """The range fails at once with an UnsupportedError, and nothing is copied."""
    mirror.name = f"version-{uuid.uuid4().hex[:8]}"
    key = key_of(mirror.name, mirror.at)
    write(
        mirror.destination,
        home(checkpoint.TOPIC, key),
        [Record(key, json.dumps({"version": 99}).encode())],
    )
    outcome = mirror.try_copy(10, 20)
    assert (outcome.error_kind, outcome.records) == ("UnsupportedError", 0)
    assert "was written by a newer relay_pipelines than this one" in outcome.error

"""Reading checkpoints: the last committed one, whatever else is going on in the topic that holds them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator

import confluent_kafka
import pytest

from relay_pipelines.copy import checkpoint, copier
from relay_pipelines.copy.checkpoint import home, key_of, read_all, read_own
from relay_pipelines.copy.clock import SystemClock
from relay_pipelines.copy.faults import Point
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.errors import DestinationError, UnsupportedError
from relay_pipelines.model import Checkpoint, Cluster, CopyOptions, Outcome, TopicPartition
from relay_pipelines.wire.cluster import ClusterClient
from tests.copying import OPTIONS, Mirror, ensure_homes, numbered
from tests.independent import Record, transactional, until, write


class WatchedClock(SystemClock):
    """The machine's clock, telling when somebody waits."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.waits.set()
        time.sleep(seconds)


@pytest.fixture
def cluster(destination_cluster: EmbeddedCluster) -> Cluster:
    """A destination with its topics."""
    ensure_homes(destination_cluster.cluster())
    return destination_cluster.cluster()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ClusterClient]:
    """A client of the destination."""
    with ClusterClient(cluster, DestinationError) as client:
        yield client


@pytest.fixture
def mirror(source_cluster: EmbeddedCluster, cluster: Cluster, topic_name: str) -> Mirror:
    """A mirror that has copied 10 of 20 records."""
    mirror = Mirror(source_cluster.cluster(), cluster, topic_name)
    mirror.write(numbered(20))
    mirror.copy(0, 10)
    return mirror


def read_checkpoint(
    client: ClusterClient, mirror: Mirror, clock: SystemClock, options: CopyOptions = OPTIONS
) -> Checkpoint | None:
    return read_own(client, mirror.name, mirror.at, (None, 0), options, clock)


@pytest.fixture
def neighbour(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> Iterator[confluent_kafka.Producer]:
    """Another task's transaction, open beside the mirror's checkpoints since shortly before its last commit."""
    at = home(checkpoint.TOPIC, key_of(mirror.name, mirror.at))
    sender = transactional(mirror.destination, f"neighbour-{mirror.name}")
    sender.begin_transaction()

    def come_between(point: Point) -> None:
        if point is Point.BEFORE_CHECKPOINT:
            sender.produce(at.topic, b"{}", b"neighbour/topic/0", at.partition)
            assert sender.flush(30) == 0

    with monkeypatch.context() as patched:
        patched.setattr(copier, "reach", come_between)
        # committed, and yet behind the neighbour's record: whoever reads committed records does not see it
        assert mirror.try_copy(10, 20).next_offset == 20
    yield sender
    with contextlib.suppress(confluent_kafka.KafkaException):
        sender.abort_transaction(30)


def test_the_danger(client: ClusterClient, mirror: Mirror, neighbour: object) -> None:
    """Up to the last stable offset one finds the checkpoint before our last: going on from there would double records."""
    assert neighbour
    found, _ = read_all(client, mirror.name, SystemClock())
    assert found[mirror.at].next_offset == 10


def test_a_neighbours_open_transaction_is_waited_for(
    cluster: Cluster, mirror: Mirror, neighbour: confluent_kafka.Producer
) -> None:
    """The checkpoint is read once nothing hides it any more, and is the last one committed."""
    found: list[Checkpoint | None] = []
    clock = WatchedClock()

    def read() -> None:
        with ClusterClient(cluster, DestinationError) as client:
            found.append(read_checkpoint(client, mirror, clock))

    reader = threading.Thread(target=read)
    reader.start()
    waited = clock.waits.wait(5)
    neighbour.commit_transaction(30)
    reader.join(30)
    assert waited
    assert found[0] is not None
    assert found[0].next_offset == 20


def test_a_transaction_that_hangs_is_said(client: ClusterClient, mirror: Mirror, neighbour: object) -> None:
    """Waiting is bounded: longer than any transaction may last, and then one line with the remedy."""
    assert neighbour
    options = CopyOptions(transaction_timeout_ms=100)
    with pytest.raises(DestinationError, match="find-hanging") as failure:
        read_checkpoint(client, mirror, SystemClock(), options)
    assert "\n" not in str(failure.value)
    assert checkpoint.TOPIC in str(failure.value)


def test_a_copy_beside_an_open_transaction_doubles_nothing(mirror: Mirror, neighbour: confluent_kafka.Producer) -> None:
    """A run that starts while our last checkpoint is hidden waits, and then has nothing left to do."""
    outcomes: list[Outcome] = []
    clock = WatchedClock()
    thread = threading.Thread(target=lambda: outcomes.extend(copy_ranges(mirror.job, [mirror.range(10, 20)], clock)))
    thread.start()
    clock.waits.wait(5)
    neighbour.commit_transaction(30)
    thread.join(60)
    assert [outcome.records for outcome in outcomes] == [0]
    mirror.assert_equal()


def test_all_checkpoints_of_a_mirror(
    source_cluster: EmbeddedCluster, cluster: Cluster, client: ClusterClient, topic_name: str
) -> None:
    """Reading all brings the last checkpoint of each topic-partition of this mirror, and of no other, as reading one does."""
    mirrors = [Mirror(source_cluster.cluster(), cluster, f"{topic_name}-{n}", name=f"all-{topic_name[-8:]}") for n in range(3)]
    for number, mirror in enumerate(mirrors):
        mirror.write(numbered(10))
        for end in range(1, number + 2):
            mirror.try_copy(0, end)
    longer = Mirror(source_cluster.cluster(), cluster, f"{topic_name}-0", name=f"all-{topic_name[-8:]}-longer")
    longer.try_copy(0, 7)
    found, _ = until(lambda: _when_complete(client, mirrors[0].name, 3), "all checkpoints")
    assert {at: one.next_offset for at, one in found.items()} == {mirror.at: n + 1 for n, mirror in enumerate(mirrors)}
    for mirror in mirrors:
        assert read_checkpoint(client, mirror, SystemClock()) == found[mirror.at] == mirror.checkpoint()


def _when_complete(client: ClusterClient, mirror: str, last: int) -> tuple[dict[TopicPartition, Checkpoint], object] | None:
    # markers follow the answer to a commit
    found, ends = read_all(client, mirror, SystemClock())
    return (found, ends) if max((one.next_offset for one in found.values()), default=0) == last else None


def test_no_checkpoint(client: ClusterClient, cluster: Cluster, topic_name: str) -> None:
    """A mirror that never ran has none."""
    assert cluster
    assert read_own(client, topic_name, TopicPartition(topic_name, 0), (None, 0), OPTIONS, SystemClock()) is None
    assert read_all(client, topic_name, SystemClock())[0] == {}


def test_records_of_others_are_passed_over(client: ClusterClient, mirror: Mirror) -> None:
    """Tombstones and records without a key in the topic are not taken for checkpoints."""
    at = home(checkpoint.TOPIC, key_of(mirror.name, mirror.at))
    write(mirror.destination, at, [Record(b"some/one/0", b"else")], [Record(b"some/one/0", None)])
    found = read_checkpoint(client, mirror, SystemClock())
    assert found is not None
    assert found.next_offset == 10
    assert mirror.at in read_all(client, mirror.name, SystemClock())[0]


@pytest.mark.parametrize("own", [True, False], ids=["own", "all"])
def test_a_checkpoint_of_a_later_version(client: ClusterClient, mirror: Mirror, *, own: bool) -> None:
    """A checkpoint that a later release wrote is refused in one line that names both versions: guessing would lose records."""
    mirror.name = f"later-{uuid.uuid4().hex[:8]}"
    key = key_of(mirror.name, mirror.at)
    write(mirror.destination, home(checkpoint.TOPIC, key), [Record(key, json.dumps({"version": 99}).encode())])
    with pytest.raises(UnsupportedError, match=r"version 99.*version 1") as failure:
        read_checkpoint(client, mirror, SystemClock()) if own else read_all(client, mirror.name, SystemClock())
    assert "\n" not in str(failure.value)


def test_a_copy_refuses_a_checkpoint_of_a_later_version(mirror: Mirror) -> None:
    """The range fails at once with that line, and nothing is copied."""
    mirror.name = f"later-{uuid.uuid4().hex[:8]}"
    key = key_of(mirror.name, mirror.at)
    write(mirror.destination, home(checkpoint.TOPIC, key), [Record(key, json.dumps({"version": 99}).encode())])
    outcome = mirror.try_copy(10, 20)
    assert (outcome.error_kind, outcome.records) == ("UnsupportedError", 0)

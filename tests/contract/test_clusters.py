"""What a copy relies on of the cluster that it writes to: a real broker, or one in memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from relay_pipelines.errors import DestinationError, FencedError, RelayError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import Batch, BatchHeader
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.records import encode
from tests.contract.sources import account_read
from tests.copying import KEPT
from tests.support import independent
from tests.support.fake_cluster import FakeCluster, served
from tests.support.tables import titled

OPTIONS = CopyOptions(request_timeout_ms=10_000, give_up_after_ms=20_000)
AGAIN = ("again", 0, "acknowledged a batch at offset 0, and an earlier one")
AFTER_A_GAP = ("after a gap", 7, "OUT_OF_ORDER_SEQUENCE_NUMBER")
SEQUENCES = titled("sequence, said", [AGAIN, AFTER_A_GAP])


class ClusterContract:
    """A cluster in which topics can be made, and records be deleted as by retention."""

    def create(self, topic: str, partitions: int = 1) -> None:
        raise NotImplementedError

    def delete_before(self, at: TopicPartition, offset: int) -> None:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def cluster(self) -> Cluster:
        raise NotImplementedError

    @pytest.fixture
    def at(self, topic_name: str) -> TopicPartition:
        self.create(topic_name)
        return TopicPartition(topic_name, 0)

    @pytest.fixture
    def client(self, cluster: Cluster) -> Iterator[ClusterClient]:
        with ClusterClient(cluster, DestinationError, "m", options=OPTIONS) as client:
            yield client

    def test_commits_are_visible_together(self, client: ClusterClient, at: TopicPartition) -> None:
        """Before that, readers of committed records wait where the transaction begins."""
        other = TopicPartition(f"{at.topic}-other", 0)
        self.create(other.topic)
        producer = started(client, at)
        sent(producer, at, b"one")
        sent(producer, other, b"other")
        assert ends(client, at) == (0, 0, 1)
        producer.commit()
        independent.until(lambda: ends(client, at)[1:] == (2, 2), "the marker")
        independent.until(lambda: ends(client, other)[1:] == (2, 2), "the marker")
        assert account(client, at) == {0: "one", 1: "control"}
        assert account(client, other) == {0: "other", 1: "control"}

    def test_what_is_aborted_is_not(self, client: ClusterClient, at: TopicPartition) -> None:
        producer = started(client, at)
        sent(producer, at, b"one")
        producer.abort()
        independent.until(lambda: ends(client, at)[1:] == (2, 2), "the marker")
        assert account(client, at) == {0: "aborted", 1: "control"}

    def test_a_takeover_fences_the_first(self, client: ClusterClient, at: TopicPartition) -> None:
        """What that one has not committed is aborted; it can neither send nor commit."""
        first = started(client, at)
        sent(first, at, b"one")
        second = started(client, at)
        sent(second, at, b"two")
        for act in (first.commit, lambda: sent(first, at, b"late")):
            with pytest.raises(FencedError):
                act()
        second.commit()
        independent.until(lambda: ends(client, at)[1:] == (4, 4), "the markers")
        assert account(client, at) == {0: "aborted", 1: "control", 2: "two", 3: "control"}

    def test_an_emptied_log_keeps_its_end(self, client: ClusterClient, at: TopicPartition) -> None:
        """The next record has the offset after the last one that was deleted."""
        producer = started(client, at)
        for number in range(2):
            sent(producer, at, b"before")
            producer.commit()
            end = 2 * number + 2
            independent.until(lambda end=end: ends(client, at)[1] == end, "the marker")
        self.delete_before(at, 4)
        assert ends(client, at) == (4, 4, 4)
        sent(producer, at, b"after")
        assert producer.landed(at) == ((4, 5),)
        producer.commit()

    @SEQUENCES
    def test_sequences_count(
        self, client: ClusterClient, at: TopicPartition, sequence: int, said: str
    ) -> None:
        """A batch that is sent twice is there once; one that others are missing before, never."""
        producer = started(client, at)
        sent(producer, at, b"one")
        producer._targets[at].sequence = sequence
        with pytest.raises(RelayError, match=said):
            sent(producer, at, b"one")
        producer.abort()

    def test_a_corrupt_batch_is_refused(self, client: ClusterClient, at: TopicPartition) -> None:
        """By its CRC: nothing of it reaches a log."""
        producer = started(client, at)
        with pytest.raises(RelayError, match=r"CORRUPT_MESSAGE|INVALID_RECORD"):
            sent(producer, at, b"one", records=2)
        producer.abort()
        independent.until(lambda: ends(client, at)[1:] == (1, 1), "the marker")
        assert account(client, at) == {0: "control"}

    def test_a_topic_has_partitions(self, client: ClusterClient, topic_name: str) -> None:
        self.create(topic_name, 2)
        assert client.metadata([topic_name]).topics[topic_name].has_leader(1)


def started(client: ClusterClient, at: TopicPartition) -> TransactionalProducer:
    """Return a producer that has taken an id over; its witness is the topic-partition."""
    producer = TransactionalProducer(client, f"relay.{at.topic}", OPTIONS, at)
    client.retry(producer.start)  # a coordinator may have to be found first
    return producer


def sent(producer: TransactionalProducer, at: TopicPartition, value: bytes, **header: Any) -> None:
    made = encode(None, value, 1_700_000_000_000)
    changed: BatchHeader = made.header._replace(**header)
    producer.add([at])
    producer.send(at, Batch(changed, made.data))
    producer.drain()


def ends(client: ClusterClient, at: TopicPartition) -> tuple[int, int, int]:
    """Return where a log begins, where it is stable to, and where it ends."""
    asked = (EARLIEST, READ_COMMITTED), (LATEST, READ_COMMITTED), (LATEST, READ_UNCOMMITTED)
    begin, stable, end = (client.list_offsets([at], *each)[at] for each in asked)
    return begin, stable, end


def account(client: ClusterClient, at: TopicPartition) -> dict[int, str]:
    return account_read(client, OffsetRange(at, 0, ends(client, at)[1]))


class TestRealBroker(ClusterContract):
    """The shared destination."""

    @pytest.fixture(autouse=True)
    def cluster(self, destination_cluster: LocalCluster) -> Cluster:
        self._cluster = destination_cluster.cluster()
        return self._cluster

    def create(self, topic: str, partitions: int = 1) -> None:
        independent.create(self._cluster, topic, partitions, KEPT)

    def delete_before(self, at: TopicPartition, offset: int) -> None:
        independent.delete_before(self._cluster, at, offset)


class TestMemory(ClusterContract):
    """The cluster of the property tests."""

    @pytest.fixture(autouse=True)
    def cluster(self) -> Iterator[Cluster]:
        self._memory = FakeCluster()
        with served(memory=self._memory):
            yield Cluster("memory", ("fake:1",))

    def create(self, topic: str, partitions: int = 1) -> None:
        if partitions > 1:
            raise NotImplementedError
        self._memory.create(topic)

    def delete_before(self, at: TopicPartition, offset: int) -> None:
        self._memory.delete_before(at.topic, offset)

    @SEQUENCES
    @pytest.mark.xfail(strict=True, reason="it does not look at sequences")
    def test_sequences_count(
        self, client: ClusterClient, at: TopicPartition, sequence: int, said: str
    ) -> None:
        super().test_sequences_count(client, at, sequence, said)

    @pytest.mark.xfail(strict=True, reason="it does not look at records")
    def test_a_corrupt_batch_is_refused(self, client: ClusterClient, at: TopicPartition) -> None:
        super().test_a_corrupt_batch_is_refused(client, at)

    @pytest.mark.xfail(strict=True, raises=NotImplementedError, reason="its topics have one")
    def test_a_topic_has_partitions(self, client: ClusterClient, topic_name: str) -> None:
        super().test_a_topic_has_partitions(client, topic_name)

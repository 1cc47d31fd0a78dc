"""Brokers that fail and leaders that move while a range is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import CopyOptions, TopicPartition
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.metadata import Metadata
from tests.copying import OPTIONS, Mirror, numbered
from tests.support.at_failpoint import at_failpoint
from tests.support.independent import client, create, until

PATIENT = replace(OPTIONS, give_up_after_ms=-1, request_timeout_ms=5000)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers that are source and destination at once."""
    folder = tmp_path_factory.mktemp("three")
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    # who is back leads again, soon
    config = {
        "leader.imbalance.check.interval.seconds": 1,
        "leader.imbalance.per.broker.percentage": 0,
    }
    with LocalCluster(
        "three", brokers=3, folder=folder, jvm_options=options, config=config
    ) as cluster:
        yield cluster


def leader_of(cluster: LocalCluster, at: TopicPartition) -> int:
    """Return the broker that leads a topic-partition now."""
    admin = AdminClient(client(cluster.cluster()))
    return int(
        admin.list_topics(at.topic, timeout=30).topics[at.topic].partitions[at.partition].leader
    )


def in_three(three: LocalCluster, topic: str, options: CopyOptions = PATIENT) -> Mirror:
    cluster = three.cluster()
    mirror = Mirror(cluster, cluster, topic, to=TopicPartition(f"{topic}-copy", 0), options=options)
    mirror.write(*(numbered(10, 1000, first) for first in range(0, 600, 10)))
    return mirror.with_options(chunk_bytes=30_000, fetch_max_bytes=30_000, coalesce_below_bytes=0)


@pytest.mark.long
def test_a_copy_survives_leaders_that_move(
    three: LocalCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is complete although leaders are killed, and lead again, while it runs."""
    mirror = in_three(three, topic_name)
    assert mirror.to is not None
    brokers = {broker.node_id: broker for broker in three.brokers}
    ends = iter(range(150, 601, 150))
    for at in (mirror.at, mirror.to):
        leader = leader_of(three, at)
        at_failpoint(monkeypatch, Failpoint.MID_CHUNK, 5, brokers[leader].kill)
        end = next(ends)
        assert mirror.copy(0, end).next_offset == end
        assert leader_of(three, at) != leader

        def move_back(at: TopicPartition = at, leader: int = leader) -> None:
            brokers[leader].start()
            until(lambda: leader_of(three, at) == leader, "the preferred leader")

        at_failpoint(monkeypatch, Failpoint.MID_CHUNK, 5, move_back)
        end = next(ends)
        assert mirror.copy(0, end).next_offset == end
    mirror.assert_equal()


@pytest.mark.long
def test_a_copy_survives_a_restart_of_the_cluster(
    three: LocalCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same task completes the copy after all brokers were killed and started again."""
    mirror = in_three(three, topic_name)

    def restart() -> None:
        for broker in three.brokers:
            broker.kill()
        for broker in three.brokers:
            broker.launch()
        for broker in three.brokers:
            broker.wait_until_serving()

    at_failpoint(monkeypatch, Failpoint.BEFORE_END_TXN, 3, restart)
    outcome = mirror.copy()
    assert outcome.next_offset == 600
    mirror.assert_equal()


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

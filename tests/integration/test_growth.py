"""When a source topic gets more partitions, the destination gets them before the copy."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, TopicPartition
from relay_pipelines.prepare import prepared_snapshot, topics
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, ensure_homes, records_of
from tests.support import commands
from tests.support.independent import Record, client, create, delete, until, write

CLOCK = SystemClock()
OPTIONS = CopyOptions(request_timeout_ms=10_000)


@pytest.fixture
def clusters(
    source_cluster: LocalCluster, destination_cluster: LocalCluster
) -> tuple[Cluster, Cluster]:
    """Source and destination cluster."""
    ensure_homes(destination_cluster.cluster())
    return source_cluster.cluster(), destination_cluster.cluster()


def surveyed(clusters: tuple[Cluster, Cluster], topic: str) -> ClusterSnapshot:
    source, destination = clusters
    rename = {"rename": "copy.{topic}"}
    mirror = Mirror.model_validate(
        commands.mirror(source, destination, topic, topics=rename, start="latest")
    )
    return prepared_snapshot.prepare_snapshot(
        lambda: cluster_snapshot.take_snapshot(f"grow-{topic[-8:]}", mirror, CLOCK), mirror, CLOCK
    )


def copy(taken: ClusterSnapshot) -> None:
    topics.create(taken, None, OPTIONS, CLOCK)
    ranges = run_plan.plan(taken).ranges
    outcomes = list(
        copy_ranges(CopyJob(taken.mirror, "run", taken.node, taken.destination), ranges)
    )
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)


def grow(cluster: Cluster, topic: str, count: int) -> None:
    admin = AdminClient(client(cluster))
    for future in admin.create_partitions([NewPartitions(topic, count)]).values():
        future.result(150)
    until(
        lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == count,
        "the partitions",
    )


def test_new_partitions_are_copied_from_their_first_record(
    clusters: tuple[Cluster, Cluster], topic_name: str
) -> None:
    """New partitions are copied from their first record, even with `start: latest`."""
    source, destination = clusters
    create(source, topic_name, 1, KEPT)
    _written(source, topic_name, 0, 7)
    surveyed(clusters, topic_name)
    _written(source, topic_name, 0)
    copy(surveyed(clusters, topic_name))
    until(lambda: surveyed(clusters, topic_name).checkpoints, "the checkpoint")
    grow(source, topic_name, 3)
    for partition in (1, 2):
        until(lambda at=partition: _written(source, topic_name, at), "a leader that serves")

    taken = surveyed(clusters, topic_name)
    assert topics.to_grow(taken) == {f"copy.{topic_name}": 3}
    assert topics.too_few_partitions(taken) == []
    copy(taken)

    for partition in range(3):
        at = TopicPartition(f"copy.{topic_name}", partition)
        assert [record.value for record in records_of(destination, at)] == [b"%d" % partition]
    assert topics.to_grow(surveyed(clusters, topic_name)) == {}


def _written(cluster: Cluster, topic: str, partition: int, value: int | None = None) -> bool:
    write(
        cluster,
        TopicPartition(topic, partition),
        [Record(None, b"%d" % (partition if value is None else value))],
    )
    return True


@pytest.mark.newer_kafka
def test_a_topic_that_we_created_grows_while_it_is_empty(
    clusters: tuple[Cluster, Cluster], topic_name: str
) -> None:
    """It is ours before anything was copied; one that was made again under its name is not."""
    source, destination = clusters
    create(source, topic_name, 1, KEPT)
    copy(surveyed(clusters, topic_name))
    grow(source, topic_name, 3)

    taken = surveyed(clusters, topic_name)
    assert topics.to_grow(taken) == {f"copy.{topic_name}": 3}
    copy(taken)

    until(lambda: not topics.to_grow(surveyed(clusters, topic_name)), "the partitions")
    assert topics.too_few_partitions(surveyed(clusters, topic_name)) == []
    delete(destination, f"copy.{topic_name}")
    create(destination, f"copy.{topic_name}", 1, KEPT)
    taken = surveyed(clusters, topic_name)
    assert topics.to_grow(taken) == {}
    assert topics.too_few_partitions(taken) == [f"copy.{topic_name}"]


@pytest.mark.newer_kafka
def test_a_topic_is_ours_although_the_answer_was_lost(
    clusters: tuple[Cluster, Cluster], topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has created it, and we do not hear of it: it is ours, and grows."""
    create_topics, lost = topics.create_topics, iter([DestinationError("the answer was lost")])

    def create_and_lose(*given: Any, **more: Any) -> list[str]:
        created = create_topics(*given, **more)
        for error in lost:
            raise error
        return created

    monkeypatch.setattr(topics, "create_topics", create_and_lose)
    source, _ = clusters
    create(source, topic_name, 1, KEPT)
    copy(surveyed(clusters, topic_name))
    grow(source, topic_name, 3)
    assert topics.to_grow(surveyed(clusters, topic_name)) == {f"copy.{topic_name}": 3}


def test_topics_of_others_are_left_alone(
    clusters: tuple[Cluster, Cluster], topic_name: str
) -> None:
    """A topic that the mirror has never copied to is not altered; one line says what to do."""
    source, destination = clusters
    create(source, topic_name, 2, KEPT)
    create(destination, f"copy.{topic_name}", 1, KEPT)
    taken = surveyed(clusters, topic_name)
    assert topics.to_grow(taken) == {}
    refused = topics.create(taken, None, OPTIONS, CLOCK)
    assert list(refused) == [topic_name]
    assert str(refused[topic_name]).startswith(
        f"{topic_name}-0: topic 'copy.{topic_name}' has fewer partitions at the destination than"
        " its records need; add partitions to it"
    )

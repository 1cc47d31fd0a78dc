"""When a source topic gets more partitions, the destination gets them before the copy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from relay_pipelines.errors import DestinationError
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.prepare import topics
from relay_pipelines.protocol import admin
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, Clusters, ensure_homes, records_of
from tests.support import commands
from tests.support.independent import Record, create, delete, grow, until, write
from tests.support.planned_copy import copy_planned, prepared

CLOCK = SystemClock()
OPTIONS = CopyOptions(request_timeout_ms=10_000)


@pytest.fixture
def clusters(sides: Clusters) -> Clusters:
    ensure_homes(sides[1])
    return sides


def surveyed(clusters: Clusters, topic: str) -> ClusterSnapshot:
    rename = {"rename": "copy.{topic}"}
    made = commands.mirror(*clusters, topic, topics=rename, start="latest")
    return prepared(f"grow-{topic[-8:]}", Mirror.model_validate(made))


def copy(taken: ClusterSnapshot) -> None:
    topics.create(taken, None, OPTIONS, CLOCK)
    copy_planned(taken)


def test_new_partitions_are_copied_from_their_first_record(
    clusters: Clusters, topic_name: str
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
        until(partial(_written, source, topic_name, partition), "a leader that serves")

    taken = surveyed(clusters, topic_name)
    assert topics.to_grow(taken) == {f"copy.{topic_name}": 3}
    assert topics.too_few_partitions(taken) == []
    copy(taken)

    for partition in range(3):
        at = TopicPartition(f"copy.{topic_name}", partition)
        assert [record.value for record in records_of(destination, at)] == [b"%d" % partition]
    assert topics.to_grow(surveyed(clusters, topic_name)) == {}


def _written(cluster: Cluster, topic: str, partition: int, value: int | None = None) -> bool:
    number = partition if value is None else value
    write(cluster, TopicPartition(topic, partition), [Record(None, b"%d" % number)])
    return True


@pytest.mark.newer_kafka
def test_a_topic_that_we_created_grows_while_it_is_empty(
    clusters: Clusters, topic_name: str
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
    clusters: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has created it, and we do not hear of it: it is ours, and grows."""
    create_topics, lost = admin.create_topics, iter([DestinationError("the answer was lost")])

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


def test_topics_of_others_are_left_alone(clusters: Clusters, topic_name: str) -> None:
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

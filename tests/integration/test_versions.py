"""The oldest brokers that docs/versions.md lists, each as source and as destination.

`make versions` runs all tests of the copy against them; this is what finds most differences in
little time.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ResourceType

from relay_pipelines import settings
from relay_pipelines.compare.request import Align, Place
from relay_pipelines.errors import DestinationError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.protocol.admin import NewTopic, create_topics, grow_topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run as driver
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.chaos import source_data
from tests.contract.interleaved_transactions import InterleavedTransactions
from tests.copying import Clusters, Mirror, end_of, numbered, records_of
from tests.support import commands, comparing
from tests.support.compacted import COMPACTED, clean, keyed
from tests.support.comparing import Two
from tests.support.independent import (
    CREATE_TIME,
    assert_equal,
    configure,
    create,
    read,
    until,
    write,
)
from tests.support.odd_records import CODECS, ODD
from tests.support.old_kafka import OldKafka

OLDEST = "2.4.1"
VERSIONS = (pytest.param(OLDEST, marks=pytest.mark.long), "3.9.1")
CLOCK = SystemClock()


@pytest.fixture(scope="module", params=VERSIONS)
def old(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OldKafka]:
    cluster = OldKafka(request.param, tmp_path_factory.mktemp("old"))
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.fixture(scope="module", params=["source", "destination"])
def old_side(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def source_cluster(
    source_cluster: LocalCluster, old: OldKafka, old_side: str
) -> LocalCluster | OldKafka:
    """The older broker, or the current one."""
    return old if old_side == "source" else source_cluster


@pytest.fixture(scope="module")
def destination_cluster(
    destination_cluster: LocalCluster, old: OldKafka, old_side: str
) -> LocalCluster | OldKafka:
    """The current broker, or the older one."""
    return old if old_side == "destination" else destination_cluster


def run(config: Path, session: Any) -> RunResult:
    loaded = settings.load(config).mirror("versions")
    planned = run_plan.plan(read_clusters.take_snapshot(Sides("versions", loaded, CLOCK)))
    return driver.run(planned, lambda: session, [])


def test_three_runs_copy_everything_once(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    local_session: Any,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """The first run copies records of every kind, the second nothing, the third what is new."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    create(source, topic_name, source_data.PARTITIONS, {"retention.ms": "-1"})
    config = commands.configured(
        tmp_path, {"versions": commands.mirror(source, destination, topic_name)}
    )

    def copied() -> int:
        result = run(config, local_session)
        assert (result.exit_code, result.errors) == (0, [])
        return sum(outcome.records for outcome in result.outcomes)

    source_data.fill(source_cluster, topic_name)
    for codec in CODECS:
        write(source, TopicPartition(topic_name, 0), ODD, ODD, compression_type=codec)
    assert copied() == 40_000 + 2 * len(CODECS) * len(ODD)
    assert copied() == 0
    source_data.append(source_cluster, topic_name, 100, source_data.LARGE_BATCHES)
    assert copied() == 200
    for partition in range(source_data.PARTITIONS):
        at = TopicPartition(topic_name, partition)
        assert_equal(records_of(source, at), records_of(destination, at))


def test_a_compacted_source(
    eager_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> None:
    """What the cleaner left arrives, and the holes are counted."""
    mirror = Mirror(eager_cluster.cluster(), destination_cluster.cluster(), topic_name, COMPACTED)
    mirror.write(keyed(20, 2000), [*keyed(5, 2000), *keyed(15, 20, 1000, 100)])
    clean(mirror, 40, 35)
    end = end_of(mirror.source, mirror.at)
    outcome = mirror.copy(0, end)
    expected = [record for offset, record in read(mirror.source, mirror.at) if offset < end]
    assert mirror.copied() == expected
    assert outcome.skipped["compaction_gap"] == end - len(expected)


class TestInterleaved(InterleavedTransactions):
    """With the clusters of this module."""


def test_append_times_arrive(sides: Clusters, topic_name: str) -> None:
    """Timestamps set by the source's broker arrive as the records' own."""
    append, create = (
        {"message.timestamp.type": timestamp_type}
        for timestamp_type in ("LogAppendTime", "CreateTime")
    )
    mirror = Mirror(*sides, topic_name, append, create)
    mirror.write(numbered(3), numbered(3, 20_000, 3))
    mirror.copy()
    original, copied = mirror.original(), mirror.copied()
    assert [record[:3] for record in copied] == [record[:3] for record in original]
    assert [record.timestamp for record in copied] == [
        (CREATE_TIME, record.timestamp[1]) for record in original
    ]


@pytest.mark.parametrize("version", ["0.9.0", "0.10.2"])
def test_a_comparison_of_messages_of_an_old_format(
    old: OldKafka, old_side: str, sides: Clusters, version: str
) -> None:
    """They are not read, which is no verdict; what was written after them is compared."""
    if old.version != OLDEST:
        pytest.skip("it stores the newest format alone")
    two, side = Two(sides), ("source", "destination").index(old_side)
    stored = partial(configure, sides[side], ResourceType.TOPIC, two.topic)
    stored(message_format_version=version)
    for each in (0, 1):
        two.write(each, comparing.numbered(20), compression_type="gzip")
        two.write(each, comparing.numbered(20, 20))
    stored(message_format_version="2.4")
    for each in (0, 1):
        two.write(each, comparing.numbered(20, 40))
    for align in (Align.ORDER, Align.KEY):
        compared = two.compare(align=align)
        (found,) = compared.results
        assert (compared.exit_code, found.same, found.numbers) == (1, 0, {})
        assert f"message format v{int(version == '0.10.2')} (written before" in found.error
    later = two.compare(partition=0, start=Place(offset=40))
    assert (later.exit_code, later.results[0].same) == (0, 20), later.findings


@pytest.mark.long
def test_the_controller_creates_and_grows_topics(tmp_path: Path) -> None:
    """Before KRaft only the controller creates and grows topics: each broker leads to it."""
    old = OldKafka(OLDEST, tmp_path, count=2)
    try:
        for number, server in enumerate(old.start().bootstrap_servers):
            create_and_grow(Cluster("old", (server,)), f"topic-{number}")
    finally:
        old.close()


def create_and_grow(cluster: Cluster, topic: str) -> None:
    """Create a topic of one partition and add another one, as a run does."""
    options = CopyOptions(give_up_after_ms=20_000)
    with ClusterClient(cluster, DestinationError, options=options) as client:
        for ask in (
            partial(create_topics, client, [NewTopic(topic, 1)], 1),
            partial(grow_topics, client, {topic: 2}),
        ):
            client.retry(ask)
        until(
            lambda: len(client.metadata([topic]).topics[topic].leaders) == 2, f"growth of {topic}"
        )

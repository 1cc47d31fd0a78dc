"""A broker that advertises another cluster's address, and addresses of two clusters in one list."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import CreateTopicsRequest

from relay_pipelines import settings
from relay_pipelines.audit import audit
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import SourceError, WrongClusterError
from relay_pipelines.ledger import verified
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import CopyOptions, OffsetRange, Status, TopicPartition
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.protocol.client import source_client
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.resources import KafkaResource
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.windows.window_run import count_window
from tests.copying import KEPT, Clusters, Mirror, end_of, numbered
from tests.support import commands
from tests.support.address import Address
from tests.support.independent import create, write
from tests.support.planned_copy import copy_planned

OPTIONS = CopyOptions()


@pytest.fixture(scope="module")
def askew(
    source_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A cluster of one broker that advertises the address of another cluster's broker."""
    (address,) = source_cluster.bootstrap_servers
    with LocalCluster(
        "askew",
        folder=tmp_path_factory.mktemp("askew"),
        config={"advertised.listeners": f"PLAINTEXT://{address}"},
    ) as cluster:
        yield cluster


def fill(cluster: LocalCluster, topic: str, *, is_askew: bool) -> None:
    """Create a topic with records; an askew cluster only has the topic."""
    if not is_askew:
        create(cluster.cluster(), topic, 1, KEPT)
        write(cluster.cluster(), TopicPartition(topic, 0), numbered(3))
        return
    host, _, port = cluster.bootstrap_servers[0].rpartition(":")
    new = CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[new], timeout_ms=10_000, validate_only=False)
    connection = Connection(cluster.cluster(), (host, int(port)), "test", SourceError, 10.0)
    (created,) = connection.call(request, 4).topics
    connection.close()
    assert created.error_code == 0


def topics(*clusters: LocalCluster) -> list[set[str]]:
    """The topics of each cluster, as its own broker lists them."""
    admins = [AdminClient({"bootstrap.servers": each.bootstrap_servers[0]}) for each in clusters]
    return [set(admin.list_topics(timeout=10).topics) for admin in admins]


def assert_refused(config: Path, cluster: LocalCluster, advertised: LocalCluster) -> None:
    """`check` and `run` end with 1, and name both ids and the address that leads elsewhere."""
    for command in ("check", "run"):
        done = commands.relay_here(config, command)
        said = done.stdout + done.stderr
        assert done.returncode == 1, said
        (line,) = [line for line in said.splitlines() if cluster.cluster_id in line]
        assert f"broker {advertised.bootstrap_servers[0]} belongs to cluster" in line
        assert advertised.cluster_id in line
        assert "correct advertised.listeners" in line


@pytest.mark.parametrize(
    ("from_", "to"),
    [("source", "askew"), ("askew", "third")],
    ids=["the destination advertises the source", "the source advertises a third cluster"],
)
def test_no_broker_of_another_cluster_is_read_or_written(
    from_: str,
    to: str,
    askew: LocalCluster,
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
) -> None:
    """`check` and `run` end with 1 and name both ids and the address; nothing is written."""
    clusters = {"source": source_cluster, "third": destination_cluster, "askew": askew}
    fill(clusters[from_], topic_name, is_askew=from_ == "askew")
    mirror = commands.mirror(clusters[from_].cluster(), clusters[to].cluster(), topic_name)
    config = commands.configured(tmp_path, {"m": mirror})
    before = topics(*clusters.values())

    assert_refused(config, askew, source_cluster)
    assert topics(*clusters.values()) == before
    if from_ != "askew":
        assert end_of(clusters[from_].cluster(), TopicPartition(topic_name, 0)) == 3


def test_bootstrap_servers_of_two_clusters(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    """`check` and the first run refuse a list that names brokers of two clusters."""
    fill(source_cluster, topic_name, is_askew=False)
    servers = *destination_cluster.bootstrap_servers, *source_cluster.bootstrap_servers
    both = replace(destination_cluster.cluster(), bootstrap_servers=servers)
    mirror = commands.mirror(source_cluster.cluster(), both, topic_name)
    config = commands.configured(tmp_path, {topic_name: mirror})
    assert_refused(config, destination_cluster, source_cluster)


def test_a_task_refuses_a_cluster_that_the_driver_did_not_read(
    sides: Clusters, topic_name: str
) -> None:
    """The id comes from the driver; an upstream that leads elsewhere is as one that is away."""
    mirror, read = Mirror(*sides, topic_name), "the-cluster-that-the-driver-has-read"
    mirror.write(numbered(3))
    job = mirror.job
    for side in ("upstream", "destination"):
        meant = replace(getattr(job, side), id=read)
        (outcome,) = copy_ranges(replace(job, **{side: meant}), [mirror.range()])
        assert outcome.status is Status.FAILED
        assert outcome.error_kind == WrongClusterError.__name__
        assert f"cluster {read}" in outcome.error
    wrong = replace(mirror.source, name="wrong", id=read)
    job = replace(job, upstream=wrong, other_upstreams=(mirror.source,))
    (outcome,) = copy_ranges(job, [mirror.range()])
    assert (outcome.status, outcome.records, outcome.upstream) == (
        Status.DONE,
        3,
        mirror.source.name,
    )


def test_a_client_tells_the_next_one_which_cluster_it_has_read(
    source_cluster: LocalCluster, destination_cluster: LocalCluster
) -> None:
    """What is built from its cluster carries the id, whoever it is pickled to."""
    with source_client("m", source_cluster.cluster(), OPTIONS) as client:
        client.metadata([])
        read = client.cluster
    assert read.id == source_cluster.cluster_id
    elsewhere = replace(read, bootstrap_servers=destination_cluster.bootstrap_servers)
    with (
        source_client("m", elsewhere, OPTIONS) as client,
        pytest.raises(WrongClusterError, match=destination_cluster.cluster_id),
    ):
        client.metadata([])


def test_another_cluster_says_nothing_of_a_window(
    sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """Its checkpoints are not taken for those of the destination to which a run has copied."""
    mirror = Mirror(*sides, topic_name)
    mirror.write(numbered(3))
    config = commands.configured(tmp_path, {mirror.name: commands.mirror(*sides, topic_name)})
    kafka = KafkaResource(config_path=str(config))
    snapshot = read_clusters.take_snapshot(kafka.sides(mirror.name))
    copy_planned(snapshot)
    left = replace(snapshot, sides=snapshot.sides.at("left"))
    frozen = FrozenWindow("window", (OffsetRange(mirror.at, 0, 3),))
    (counted,) = count_window(kafka, left, frozen, [topic_name], None, run_id="run").topics
    assert "is cluster left; " in counted.failure
    assert "copied" not in counted.failure


def test_an_audit_looks_at_the_cluster_of_its_ledger(sides: Clusters, topic_name: str) -> None:
    """Topics of another cluster are not called replaced."""
    mirror = Mirror(*sides, topic_name)
    mirror.write(numbered(3))
    mirror.copy()
    read = verified.read_verified_ledger
    with Address(mirror.destination) as address:

        def replaced(*arguments: Any) -> Any:
            found = read(*arguments)
            address.lead_to(mirror.source)
            return found

        written = commands.mirror(mirror.source, address.cluster, topic_name)
        own = Sides(mirror.name, settings.Mirror.model_validate(written))
        with (
            patch.object(audit, "read_verified_ledger", replaced),
            pytest.raises(WrongClusterError, match=address.cluster.bootstrap_servers[0]),
        ):
            audit.begin(own, AuditRequest(level=Level.RECOUNT))


def test_two_upstreams_that_are_one_cluster(
    sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """`check` warns: the second upstream answers as long as the first one does, and no longer."""
    source, destination = sides
    create(source, topic_name, 1, KEPT)
    mirror = commands.mirror(source, destination, topic_name)
    mirror["source"]["upstreams"].append({"name": "two", **commands.at(source)})
    config = commands.configured(tmp_path, {"m": mirror})
    done = commands.relay_here(config, "check")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("warning")]
    assert line.startswith("warning m: upstream two (")
    assert "belongs to the cluster of upstream one, " in line

"""How long commands wait for a cluster that does not answer, and when they do not wait."""

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from relay_pipelines import settings
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.run import run_plan
from relay_pipelines.run.run import run
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.copying import KEPT, ensure_homes, numbered, records_of
from tests.support.commands import RELAY, configured, environment, error_line, mirror, relay_here
from tests.support.independent import client, create, write
from tests.support.planned_copy import no_spark

pytestmark = pytest.mark.usefixtures("local_session")


@pytest.fixture
def filled(own_cluster: LocalCluster, topic_name: str) -> TopicPartition:
    at = TopicPartition(topic_name, 0)
    create(own_cluster.cluster(), topic_name, 1, KEPT)
    write(own_cluster.cluster(), at, numbered(10))
    return at


@pytest.mark.parametrize(
    ("command", "side", "says"),
    [("plan", "source", " 10 "), ("ledger", "destination", "no ledger entries")],
)
def test_a_broker_that_restarts_is_waited_for(
    own_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    filled: TopicPartition,
    tmp_path: Path,
    command: str,
    side: str,
    says: str,
) -> None:
    """The command names the missing broker, and completes once it is back."""
    here, there = own_cluster.cluster(), destination_cluster.cluster()
    if side == "destination":
        create(there, filled.topic, 1, KEPT)
        write(there, filled, numbered(10))
        here, there = there, here
    config = configured(tmp_path, {"m": mirror(here, there, filled.topic)})
    (broker,) = own_cluster.brokers
    broker.kill()
    arguments: list[str | Path] = [RELAY, "--config", config, command]
    with subprocess.Popen(arguments, stdout=-1, stderr=-1, text=True, env=environment()) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        broker.start()
        output, rest = process.communicate(timeout=300)
    assert process.returncode == 0, first + rest
    assert re.fullmatch(r"m: .*cannot be reached.*; trying again for \d+ s\n", first), first
    assert "error" not in rest
    assert says in output


def test_a_broker_that_hangs_is_given_up_in_time(
    own_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    filled: TopicPartition,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It accepts connections and answers nothing: the command says so, and ends in time."""
    here, there = own_cluster.cluster(), destination_cluster.cluster()
    config = configured(tmp_path, {"m": mirror(here, there, filled.topic, give_up_after="12s")})
    (broker,) = own_cluster.brokers
    broker.pause()
    try:
        done = relay_here(config, "plan")
    finally:
        broker.resume()
    assert done.returncode == 1
    assert "no answer within 12 s" in error_line(done)
    (said,) = caplog.messages
    waiting = r"waiting for one broker \S+: no answer for 10 s; waiting [12] s more"
    assert re.fullmatch(waiting, said), said


def test_a_run_that_is_stopped_does_not_wait(
    own_cluster: LocalCluster, source_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> None:
    """A stopped run without a time limit ends, although the destination is away."""
    source = source_cluster.cluster()
    create(source, topic_name, 1, KEPT)
    write(source, TopicPartition(topic_name, 0), numbered(10))
    config = configured(
        tmp_path, {"m": mirror(source, own_cluster.cluster(), topic_name, give_up_after=-1)}
    )
    wanted = settings.load(config).mirror("m")
    planned = run_plan.plan(read_clusters.take_snapshot(Sides("m", wanted)))
    (broker,) = own_cluster.brokers
    broker.kill()
    try:
        result = run(planned, no_spark, [], stop=lambda: True)
    finally:
        broker.start()
    assert result.interrupted
    assert not result.outcomes


@pytest.mark.long
def test_new_topics_with_many_partitions_are_waited_for(
    own_cluster: LocalCluster, filled: TopicPartition, tmp_path: Path
) -> None:
    """A run waits until thousands of partitions, just created, have leaders."""
    cluster = own_cluster.cluster()
    ensure_homes(cluster)
    allow = (filled.topic, f"{filled.topic}-fresh.*")
    wanted = mirror(cluster, cluster, *allow, topics={"rename": "copy.{topic}"})
    config = configured(tmp_path, {"m": wanted}, spark={"master": "local[2]"})
    admin = AdminClient(client(cluster))
    fresh = [NewTopic(f"{filled.topic}-fresh-{number}", 10) for number in range(300)]
    for created in admin.create_topics(fresh, operation_timeout=60, request_timeout=60).values():
        created.result(300)
    done = relay_here(config, "run")
    assert done.returncode == 0, done.stderr
    assert len(records_of(cluster, TopicPartition(f"copy.{filled.topic}", 0))) == 10

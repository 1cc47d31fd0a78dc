"""Source and destination in one cluster: a mirror never copies its own copies."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.cli import main
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyJob, TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot
from tests.copying import KEPT, ensure_homes, numbered, records_of
from tests.support import commands
from tests.support.independent import create, write

CLOCK = SystemClock()


@pytest.fixture
def cluster(source_cluster: LocalCluster) -> Cluster:
    """The cluster."""
    ensure_homes(source_cluster.cluster())
    return source_cluster.cluster()


@pytest.fixture
def topic(cluster: Cluster, topic_name: str) -> str:
    """A topic with records."""
    create(cluster, topic_name, 1, KEPT)
    write(cluster, TopicPartition(topic_name, 0), numbered(3))
    return topic_name


def elsewhere(cluster: Cluster) -> Cluster:
    """The same cluster under another address: only its id tells that it is the same."""
    port = cluster.bootstrap_servers[0].rpartition(":")[2]
    return replace(cluster, bootstrap_servers=(f"localhost:{port}",))


def taken(cluster: Cluster, pattern: str, *more: Cluster, **topics: Any) -> list[str]:
    """Return the destination topics of a mirror within the cluster, and why others are refused."""
    given = commands.mirror(
        more[0] if more else cluster, elsewhere(cluster), pattern, topics=topics
    )
    given["source"]["nodes"] += [
        {"name": f"n{number}", **commands.at(node)} for number, node in enumerate(more[1:])
    ]
    given["on_record_error"] = "quarantine"
    mirror = Mirror.model_validate(given)
    snapshot = cluster_snapshot.take_snapshot("m", mirror, CLOCK, patient=False)
    assert {error.exit_code for error in snapshot.refused.values()} <= {2}
    return [
        *(to.topic for to in snapshot.accepted_targets.values()),
        *(error.what + "; " + error.remedy for error in snapshot.refused.values()),
    ]


def test_a_destination_that_is_a_source_too_is_refused(
    cluster: Cluster,
    destination_cluster: LocalCluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its name, before it exists, in every command; one line per topic says what to deny."""
    other, there = f"{topic}.b", f"{topic}.copy"

    def line(name: str) -> str:
        return (
            f"topic {topic!r} would be copied to {name!r}: this mirror reads {name!r}, too,"
            f" because a source node and the {replace(elsewhere(cluster), name='destination')} are"
            f" the same cluster; change topics.rename, or add {name!r} to topics.deny"
        )

    whole, quarantine = f"{topic}.*", f"{there}.quarantine"
    assert taken(cluster, whole, rename="{topic}.copy") == [line(there)]
    assert taken(cluster, whole, rename={topic: other}, deny=[r".*\.quarantine"]) == [line(other)]
    assert taken(cluster, whole, rename="{topic}.copy", deny=[r".*\.copy"]) == [line(quarantine)]
    denied = [r".*\.copy(\.quarantine)?"]
    assert taken(cluster, whole, rename="{topic}.copy", deny=denied) == [there]
    # another cluster may have topics of the same names
    away = destination_cluster.cluster()
    create(away, topic, 1, KEPT)
    assert taken(cluster, whole, away, rename="{topic}.copy") == [there]
    # any of the nodes may be read
    assert taken(cluster, whole, away, cluster, rename="{topic}.copy") == [line(there)]

    create(cluster, other, 1, KEPT)
    swapped = taken(cluster, whole, rename={topic: other, other: topic}, deny=[r".*\.quarantine"])
    assert [found.split(": ")[0] for found in swapped] == [
        f"topic {topic!r} would be copied to {other!r}",
        f"topic {other!r} would be copied to {topic!r}",
    ]
    config = commands.configured(
        tmp_path,
        {
            "m": commands.mirror(
                cluster, cluster, whole, topics={"rename": {topic: other, other: topic}}
            )
        },
    )
    for command in ("plan", "check", "status", "run"):
        assert main([command, "-c", str(config)]) == 2, command
        said = capsys.readouterr()
        assert f"would be copied to {other!r}" in said.out + said.err
    assert not records_of(cluster, TopicPartition(other, 0))


def test_copies_under_an_earlier_name_are_refused(cluster: Cluster, topic: str) -> None:
    """`topics.rename` names another topic now; the copies of this mirror still match a pattern."""
    there, later = f"{topic}.copy", f"later.{topic}"
    create(cluster, there, 1, KEPT)

    def snapshot(allow: str, rename: str, **topics: Any) -> cluster_snapshot.ClusterSnapshot:
        more = {"rename": rename, **topics}
        mirror = Mirror.model_validate(commands.mirror(cluster, cluster, allow, topics=more))
        return cluster_snapshot.take_snapshot(topic[-8:], mirror, CLOCK)

    first = snapshot(topic, "{topic}.copy")
    job = CopyJob(first.mirror, "run", first.node, first.destination)
    (outcome,) = copy_ranges(job, run_plan.plan(first).ranges)
    assert outcome.error == ""
    assert len(records_of(cluster, TopicPartition(there, 0))) == 3

    looped = snapshot(f"{topic}.*", "later.{topic}")
    assert [to.topic for to in looped.accepted_targets.values()] == [later], "the others go on"
    assert re.search(f"topic '{there}' at source .* is a copy of", str(looped.refused[there]))
    denied = snapshot(f"{topic}.*", "later.{topic}", deny=[there])
    assert [to.topic for to in denied.targets.values()] == [later]

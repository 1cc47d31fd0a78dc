"""Copies keep the timestamps of their source, whatever the destination's brokers default to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import ResourceType

from relay_pipelines.cli import main
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.run.run import run
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot
from tests.copying import KEPT, numbered
from tests.support import commands
from tests.support.independent import CREATE_TIME, LOG_APPEND_TIME, configure, create, read, write

CLOCK = SystemClock()
STAMPED = {"message.timestamp.type": "LogAppendTime"}


@pytest.fixture
def stamping_cluster(destination_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The destination, whose broker uses LogAppendTime by default for one test."""
    (broker,) = destination_cluster.brokers

    def use(timestamp_type: str) -> None:
        configure(
            destination_cluster.cluster(),
            ResourceType.BROKER,
            str(broker.node_id),
            log_message_timestamp_type=timestamp_type,
        )

    use("LogAppendTime")
    yield destination_cluster
    use("CreateTime")


def mirror_of(
    source: LocalCluster, destination: LocalCluster, topic: str, **topics: Any
) -> dict[str, Any]:
    """The settings of the mirror."""
    return commands.mirror(
        source.cluster(), destination.cluster(), topic, topics={"rename": "copy.{topic}", **topics}
    )


def copy(settings: dict[str, Any], name: str, session: Any) -> None:
    """Run the mirror once."""
    mirror = Mirror.model_validate(settings)
    plan = run_plan.plan(cluster_snapshot.take_snapshot(name, mirror, CLOCK))
    assert run(plan, mirror, lambda: session, [], CLOCK).failures == []


def test_source_timestamps_arrive(
    source_cluster: LocalCluster,
    stamping_cluster: LocalCluster,
    topic_name: str,
    local_session: Any,
) -> None:
    """Timestamps arrive unchanged, whether the producer or the source broker set them."""
    topics = {
        f"{topic_name}-{kind}": config for kind, config in (("stamped", STAMPED), ("created", {}))
    }
    for topic, config in topics.items():
        create(source_cluster.cluster(), topic, 1, KEPT | config)
        # small batches are merged, large ones are copied as they are
        for first, size in ((0, 20), (10, 20), (20, 10_000), (30, 10_000)):
            write(source_cluster.cluster(), TopicPartition(topic, 0), numbered(10, size, first))

    copy(mirror_of(source_cluster, stamping_cluster, f"{topic_name}-.*"), topic_name, local_session)

    for topic, config in topics.items():
        original = [
            record for _, record in read(source_cluster.cluster(), TopicPartition(topic, 0))
        ]
        copied = [
            record
            for _, record in read(stamping_cluster.cluster(), TopicPartition(f"copy.{topic}", 0))
        ]
        assert len(original) == 40
        assert {record.timestamp[0] for record in original} == {
            LOG_APPEND_TIME if config else CREATE_TIME
        }
        assert [record[:3] for record in copied] == [record[:3] for record in original]
        assert [record.timestamp for record in copied] == [
            (CREATE_TIME, record.timestamp[1]) for record in original
        ]


def test_a_destination_with_append_time_is_reported(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`check`, `plan` and `run` warn, however the destination topic came to LogAppendTime."""
    create(source_cluster.cluster(), topic_name, 1, KEPT | STAMPED)
    config = tmp_path / "relay.yaml"

    def said(command: str, **topics: Any) -> str:
        mirror = mirror_of(source_cluster, destination_cluster, topic_name, **topics)
        config.write_text(yaml.safe_dump({"mirrors": {topic_name: mirror}}))
        assert main([command, "-c", str(config)]) == 0
        shown = capsys.readouterr()
        return shown.out + shown.err

    warning = (
        f"copy.{topic_name}: message.timestamp.type=LogAppendTime, "
        "so the destination sets its own timestamps"
    )
    following = {"config_keys": ["message.timestamp.type"]}
    for command in ("check", "plan", "run"):
        assert warning not in said(command)
        assert warning in said(command, **following)
    create(destination_cluster.cluster(), f"copy.{topic_name}", 1, STAMPED)
    for command in ("check", "plan", "run"):
        assert f"{warning}; set it to CreateTime" in said(command)

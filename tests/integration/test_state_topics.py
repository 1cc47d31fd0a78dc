"""The topics of checkpoints and ledger, made beforehand by somebody who did not know how."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, ResourceType

from relay_pipelines.cli.entry import main
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.prepare.topics import STATE_TOPICS
from tests.copying import KEPT, numbered
from tests.support import commands, independent

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture
def config(
    source_cluster: LocalCluster, own_cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> Iterator[Path]:
    """A mirror of one topic into a cluster that has none of our topics, or those of a test."""
    at, source, to = TopicPartition(topic_name, 0), source_cluster.cluster(), own_cluster.cluster()
    independent.create(source, topic_name, 1, KEPT)
    independent.write(source, at, numbered(3))
    mirror = commands.mirror(source, to, re.escape(topic_name))
    yield commands.configured(tmp_path, {"m": mirror})
    for topic in AdminClient(independent.client(to)).list_topics(timeout=30).topics:
        if topic.startswith("__relay_"):
            independent.delete(to, topic)


def said(config: Path, command: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["--config", str(config), command])
    return code, " ".join("".join(capfd.readouterr()).split())


def test_a_wrong_policy_is_refused(
    own_cluster: LocalCluster, config: Path, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints that retention deletes, or a compacted ledger: exit 2, with the command."""
    to = own_cluster.cluster()
    independent.create(to, checkpoint.TOPIC, 1, {})
    servers = to.bootstrap_servers[0]

    for command in ("run", "check", "plan", "status"):
        code, text = said(config, command, capfd)
        assert code == 2, text
        assert (
            f"topic {checkpoint.TOPIC} of destination ({servers}) has 1 of the 8 partitions that"
            f" mirrors need; repair it: kafka-topics.sh --bootstrap-server {servers} --alter"
            f" --topic {checkpoint.TOPIC} --partitions 8"
        ) in text
    admin = AdminClient(independent.client(to))
    admin.create_partitions([NewPartitions(checkpoint.TOPIC, 8)])[checkpoint.TOPIC].result(150)
    independent.create(to, ledger_topic.TOPIC, 8, {"cleanup.policy": "compact"})

    repairs = [(checkpoint.TOPIC, "delete", "compact"), (ledger_topic.TOPIC, "compact", "delete")]
    for topic, wrong, right in repairs:
        for command in ("run", "check"):
            code, text = said(config, command, capfd)
            assert code == 2, text
            assert f"topic {topic} of destination ({servers}) has cleanup.policy={wrong}," in text
            assert (
                f"repair it: kafka-configs.sh --bootstrap-server {servers} --alter --entity-type"
                f" topics --entity-name {topic} --add-config cleanup.policy={right}"
            ) in text
        independent.configure(to, ResourceType.TOPIC, topic, cleanup_policy=right)
    assert topic_name not in admin.list_topics(timeout=30).topics, "nothing was created"
    assert said(config, "check", capfd)[0] == 0


def test_what_is_risky_is_a_warning(
    own_cluster: LocalCluster, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A ledger that forgets soon, small messages and too few replicas are no reason to stop."""
    to = own_cluster.cluster()
    risky = {"max.message.bytes": "100000", "min.insync.replicas": "2"}
    independent.create(to, checkpoint.TOPIC, 8, {"cleanup.policy": "compact", **risky})
    short = {"retention.ms": "3600000", "retention.bytes": "1000000"}
    independent.create(to, ledger_topic.TOPIC, 8, {"cleanup.policy": "delete", **short})

    code, text = said(config, "check", capfd)

    assert code == 0, text
    for warning in (
        f"topic {checkpoint.TOPIC} has fewer replicas (1) than min.insync.replicas=2: nobody",
        f"topic {checkpoint.TOPIC} has max.message.bytes=100000: a record",
        f"topic {ledger_topic.TOPIC} has retention.ms=3600000, less than 7 days: records",
        f"topic {ledger_topic.TOPIC} has retention.bytes=1000000: entries of any age may be gone",
    ):
        assert warning in text


def test_the_docs_say_how_to_make_them() -> None:
    """The commands of the docs make the topics that a mirror makes."""
    made = {}
    for command in DOCS.read_text().replace("\\\n", "").splitlines():
        if name := re.search(r"--create --topic (\S+) --partitions (\d+)", command):
            configs = dict(re.findall(r"--config ([a-z.]+)=(\S+)", command))
            configs.pop("min.insync.replicas")
            made[name[1]] = int(name[2]), configs
    assert made == {each.name: (each.partitions, dict(each.configs)) for each in STATE_TOPICS}

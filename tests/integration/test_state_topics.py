"""The topics of checkpoints and ledger, made beforehand by somebody who did not know how."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewPartitions, ResourceType

from relay_pipelines.cli.entry import main
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from relay_pipelines.prepare import permissions, topics
from relay_pipelines.prepare.topics import STATE_TOPICS
from relay_pipelines.protocol.admin import absent, create_topics
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.run.transaction_probe import _Scratch
from tests.copying import KEPT, Clusters, forget_homes, numbered
from tests.support import commands, independent

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture
def config(sides: Clusters, topic_name: str, tmp_path: Path) -> Iterator[Path]:
    """A mirror of one topic into a cluster that has none of our topics, or those of a test."""
    source, to = sides

    def delete_state() -> None:
        for topic in AdminClient(independent.client(to)).list_topics(timeout=30).topics:
            if topic.startswith("__relay_"):
                independent.delete(to, topic)

    delete_state()
    independent.create(source, topic_name, 1, KEPT)
    independent.write(source, TopicPartition(topic_name, 0), numbered(3))
    mirror = commands.mirror(source, to, re.escape(topic_name))
    yield commands.configured(tmp_path, {"m": mirror})
    delete_state()
    forget_homes(to)


def said(config: Path, command: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["--config", str(config), command])
    return code, " ".join("".join(capfd.readouterr()).split())


def test_a_wrong_policy_is_refused(
    sides: Clusters, config: Path, topic_name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints that retention deletes, or a compacted ledger: exit 2, with the command."""
    _, to = sides
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
    sides: Clusters, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A ledger that forgets soon, small messages and too few replicas are no reason to stop."""
    _, to = sides
    risky = {"max.message.bytes": "100000", "min.insync.replicas": "2"}
    independent.create(to, checkpoint.TOPIC, 8, {"cleanup.policy": "compact", **risky})
    short = {"retention.ms": "3600000", "retention.bytes": "1000000"}
    independent.create(to, ledger_topic.TOPIC, 8, {"cleanup.policy": "delete", **short})

    code, text = said(config, "check", capfd)

    assert code == 0, text
    for warning in (
        f"topic {checkpoint.TOPIC} has fewer replicas (1) than min.insync.replicas=2: no client",
        f"topic {checkpoint.TOPIC} has max.message.bytes=100000: a record",
        f"topic {ledger_topic.TOPIC} has retention.ms=3600000, less than 7 days: records",
        f"topic {ledger_topic.TOPIC} has retention.bytes=1000000: entries of any age may be gone",
    ):
        assert warning in text


@pytest.mark.parametrize("may_look", [True, False], ids=["seen before", "seen by a transaction"])
def test_a_transaction_timeout_that_the_destination_refuses(
    sides: Clusters,
    config: Path,
    topic_name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    may_look: bool,
) -> None:
    """It is found before a topic is created, unless nobody may see it; both values are named."""
    mirrors = yaml.safe_load(config.read_text())
    mirrors["mirrors"]["m"]["copy"] = {"transaction_timeout": "20m"}
    config.write_text(yaml.safe_dump(mirrors))
    if not may_look:
        monkeypatch.setattr(topics, "broker_configs", lambda *_: {})
    servers = sides[1].bootstrap_servers[0]
    refused = (
        f"destination ({servers}) refuses transactions of copy.transaction_timeout (1200000 ms):"
        f" transaction.max.timeout.ms of its brokers is {'900000' if may_look else 'less'}; set"
        " copy.transaction_timeout to no more, or raise transaction.max.timeout.ms"
    )
    for command in ("check", "run") if may_look else ("run",):
        code, text = said(config, command, capfd)
        assert (code, refused in text) == (2, True), text
    if may_look:
        shown = AdminClient(independent.client(sides[1])).list_topics(timeout=30)
        assert not {topic_name, checkpoint.TOPIC, ledger_topic.TOPIC} & shown.topics.keys()


def test_brokers_that_create_what_they_should_only_validate(
    config: Path,
    topic_name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`relay check` says which topics exist now."""

    def create(client: Any, new: Any, factor: int | None, *, validate_only: bool) -> list[str]:
        assert validate_only
        created = create_topics(client, new, factor)
        independent.until(lambda: not absent(client, new), "they are shown")
        return created

    monkeypatch.setattr(permissions, "create_topics", create)
    code, text = said(config, "check", capfd)
    assert code == 1
    created = f"{checkpoint.TOPIC}, {ledger_topic.TOPIC}, {topic_name}"
    assert f"has created {created}, although it was asked only whether it could" in text
    assert "; delete them if no mirror is to copy there" in text


def unfenced(scratch: _Scratch) -> Any:
    """Take the id once only."""
    if not hasattr(unfenced, "taken"):
        unfenced.taken = TAKE(scratch)  # type: ignore[attr-defined]
        return unfenced.taken  # type: ignore[attr-defined]
    return Mock()


TAKE = _Scratch._producer


PROBES: dict[str, tuple[type, str, Any, str]] = {
    "kept": (_Scratch, "_producer", TAKE, ""),
    "aborted": (
        TransactionalProducer,
        "abort",
        TransactionalProducer.commit,
        "it shows a record whose transaction was aborted",
    ),
    "committed": (
        TransactionalProducer,
        "commit",
        TransactionalProducer.abort,
        "it does not show just the one record that was committed",
    ),
    "fenced": (
        _Scratch,
        "_producer",
        unfenced,
        "it lets a producer commit whose transactional id another one has taken",
    ),
}


@pytest.mark.parametrize("kind", PROBES)
def test_a_probe_of_the_transactions(
    config: Path,
    sides: Clusters,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """It says what the destination does not keep, what it has created, and that this is gone."""
    *wrong, what = PROBES[kind]
    monkeypatch.setattr(*wrong)
    code = main(["--config", str(config), "check", "--probe"])
    text = " ".join(capfd.readouterr().out.split())
    assert code == (1 if what else 0), text
    assert (what or "it keeps transactions: it hides what is aborted, and fences a") in text
    assert re.search(r"the probe has created and deleted topic relay-probe-\w{8}", text)

    def left() -> list[str]:
        admin = AdminClient(independent.client(sides[1]))
        return [topic for topic in admin.list_topics(timeout=30).topics if "probe" in topic]

    independent.until(lambda: not left(), "the deletion")


def test_the_docs_say_how_to_make_them() -> None:
    """The commands of the docs make the topics that a mirror makes."""
    made = {}
    for command in DOCS.read_text().replace("\\\n", "").splitlines():
        if name := re.search(r"--create --topic (\S+) --partitions (\d+)", command):
            configs = dict(re.findall(r"--config ([a-z.]+)=(\S+)", command))
            configs.pop("min.insync.replicas")
            made[name[1]] = int(name[2]), configs
    assert made == {each.name: (each.partitions, dict(each.configs)) for each in STATE_TOPICS}

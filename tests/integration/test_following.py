"""The destination follows its source: configuration, new partitions, and deleted topics."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from relay_pipelines.errors import DestinationError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.move.gates import GateState
from relay_pipelines.move.rehearsal import topic_gate
from relay_pipelines.prepare import topic_configs, topics
from relay_pipelines.protocol import admin
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.config_requests import ConfigValue
from relay_pipelines.protocol.metadata import Metadata
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import run
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.topics import DEFAULT_CONFIG_KEYS
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import configs, read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, Clusters, ensure_homes, records_of
from tests.support import commands
from tests.support.independent import Record, client, configure, create, delete, grow, until, write
from tests.support.planned_copy import at_destination, copy_planned, no_spark, prepared

pytestmark = pytest.mark.usefixtures("local_session")

CLOCK = SystemClock()
CREATE_TIME = {"message.timestamp.type": "CreateTime"}
OPTIONS = CopyOptions(request_timeout_ms=10_000)


class Followed:
    """A topic `t` with one record, copied to `copy.t`."""

    def __init__(
        self, source: Cluster, destination: Cluster, topic: str, config: dict[str, str]
    ) -> None:
        self.source, self.destination = source, destination
        self.topic, self.copy_of = topic, f"copy.{topic}"
        self.name = f"follow-{topic[-8:]}"
        ensure_homes(destination)
        create(source, topic, 1, KEPT | config)
        self.write(b"first")
        self.copy()

    def write(self, value: bytes) -> None:
        write(self.source, TopicPartition(self.topic, 0), [Record(None, value)])

    def configure_source(self, **config: object) -> None:
        configure(self.source, ResourceType.TOPIC, self.topic, **config)

    def configure_copy(self, **config: object) -> None:
        configure(self.destination, ResourceType.TOPIC, self.copy_of, **config)

    def source_value(self, key: str) -> str | None:
        return self.surveyed().configs.source[self.topic][key].value

    def mirror(self, **more: Any) -> dict[str, Any]:
        topics = {"rename": "copy.{topic}", **more}
        return commands.mirror(
            self.source, self.destination, f"{self.topic}.*", upstream="only", topics=topics
        )

    def surveyed(self, **more: Any) -> ClusterSnapshot:
        sides = Sides(self.name, Mirror.model_validate(self.mirror(**more)), CLOCK)
        return configs.with_all(read_clusters.take_snapshot(sides))

    def copy(self) -> None:
        """Copy everything new, as tasks do."""
        taken = self.surveyed()
        at_destination(taken, topics.create)
        assert len(copy_planned(taken)) == 1

    def run(self, **more: Any) -> RunResult:
        """Run the mirror when there is nothing to copy."""
        mirror = Mirror.model_validate(self.mirror(**more))
        plan = run_plan.plan(read_clusters.take_snapshot(Sides(self.name, mirror, CLOCK)))
        return run(plan, no_spark, [])

    def differences(self, **more: Any) -> dict[str, tuple[str | None, str]]:
        """Return source and destination value per key that differs."""
        return {
            difference.key: (difference.here, difference.there)
            for difference in topic_configs.differences(self.surveyed(**more))
        }

    def config(self, folder: Path, **more: Any) -> Path:
        return commands.configured(folder, {self.name: self.mirror(**more)})


@pytest.fixture
def followed(sides: Clusters, topic_name: str) -> Followed:
    return Followed(*sides, topic_name, {"max.message.bytes": "2000000"})


def said(config: Path, *command: str) -> CompletedProcess[str]:
    done = commands.relay_here(config, *command)
    assert done.returncode == 0, done.stderr
    return done


def only_finding(config: Path, command: str) -> dict[str, Any]:
    (shown,) = json.loads(said(config, command, "--json").stdout)["mirrors"]
    (finding,) = shown["findings"]
    return dict(finding)


def described_configs(cluster: Cluster, topic: str) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(client(cluster))
    return dict(admin.describe_configs([resource])[resource].result(150))


def own_configs(cluster: Cluster, topic: str) -> dict[str, str]:
    """Return the topic's own configuration, as an independent client sees it."""
    described, own = described_configs(cluster, topic), ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: str(entry.value) for name, entry in described.items() if entry.source == own}


def applied(followed: Followed, topic: str) -> dict[str, str]:
    """Return what applies to a topic of the source, whoever sets it, of the keys that follow."""
    described = described_configs(followed.source, topic)
    known = described.keys() & described_configs(followed.destination, followed.copy_of)
    return {key: str(described[key].value) for key in DEFAULT_CONFIG_KEYS if key in known}


def configure_brokers(
    cluster: Cluster, brokers: Sequence[str], config: Mapping[str, str | None]
) -> None:
    set_, delete_ = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    entries = [
        ConfigEntry(key, value, incremental_operation=set_ if value else delete_)
        for key, value in config.items()
    ]
    kind = ResourceType.BROKER
    resources = [ConfigResource(kind, each, incremental_configs=entries) for each in brokers]
    admin = AdminClient(client(cluster))
    for altered in admin.incremental_alter_configs(resources).values():
        altered.result(30)


def test_a_run_applies_configuration_differences(followed: Followed) -> None:
    """A run sets, and removes, the listed keys before it copies; it keeps unlisted keys."""
    followed.configure_source(retention_ms=7_000_000, segment_bytes=2 << 20)
    kept = {"min_insync_replicas": 1, "file_delete_delay_ms": 1234}
    followed.configure_copy(min_compaction_lag_ms=5, **kept)
    expected = {
        "retention.ms": ("7000000", KEPT["retention.ms"]),
        "segment.bytes": (str(2 << 20), str(1 << 30)),
        "min.compaction.lag.ms": ("0", "5"),
    }
    until(lambda: followed.differences() == expected, "the configurations")

    assert followed.run().reconfigured == (), "nothing is set unless somebody asked for it"
    assert followed.differences() == expected
    done = followed.run(sync_configs=True)

    assert (done.failures, {change.key for change in done.reconfigured}) == ([], set(expected))
    assert own_configs(followed.destination, followed.copy_of) == {
        **CREATE_TIME,
        **applied(followed, followed.topic),
        "retention.ms": "7000000",
        "segment.bytes": str(2 << 20),
        "max.message.bytes": "2000000",
        "min.insync.replicas": "1",
        "file.delete.delay.ms": "1234",
    }
    assert followed.differences() == {}
    assert followed.run(sync_configs=True).reconfigured == []


def test_what_is_not_followed(followed: Followed) -> None:
    """Keys that are not listed, pinned topics, those of others; and no limit is lowered."""
    listed, other = ["max.message.bytes"], f"{followed.topic}-other"
    followed.configure_copy(retention_ms=9_000_000, cleanup_policy="compact")
    followed.configure_source(max_message_bytes=3_000_000)
    until(lambda: len(followed.differences()) == 3, "the configurations")
    assert followed.differences(rename={followed.topic: f"{followed.copy_of}:0"}) == {}
    assert followed.differences(config_keys=[]) == {}
    assert topics.limits(followed.surveyed(config_keys=[]), followed.topic).requires_keys
    taken = followed.surveyed(config_keys=listed)
    (new,) = topics.missing(replace(taken, at_destination=Metadata()))
    assert new.configs == {"max.message.bytes": "3000000", "message.timestamp.type": "CreateTime"}

    create(followed.source, other, 1, KEPT)
    create(followed.destination, f"copy.{other}", 1, {"max.message.bytes": "5000"})
    taken = followed.surveyed(config_keys=listed)
    found = {each.topic: each for each in topic_configs.differences(taken)}
    assert {topic: each.is_ours for topic, each in found.items()} == {
        followed.copy_of: True,
        f"copy.{other}": False,
    }
    remedy = found[f"copy.{other}"].finding(sync=True).remedy
    assert remedy == "it is left alone until the mirror has copied to the topic"
    assert topics.limits(taken, followed.topic).max_message_bytes == 2_000_000
    after, done, _ = at_destination(taken, topic_configs.sync)
    assert [(change.topic, change.key) for change in done] == [(followed.copy_of, *listed)]
    assert topics.limits(after, followed.topic).max_message_bytes == 3_000_000
    assert own_configs(followed.destination, f"copy.{other}") == {"max.message.bytes": "5000"}
    followed.configure_source(max_message_bytes=1_500_000)
    until(lambda: followed.source_value("max.message.bytes") == "1500000", "the configuration")
    assert followed.copy_of not in {
        each.topic for each in topic_configs.differences(followed.surveyed(config_keys=listed))
    }


@pytest.mark.parametrize(
    ("key", "value"), [("log.cleanup.policy", "compact"), ("log.retention.ms", "60000")]
)
def test_what_the_destinations_brokers_would_do_to_a_copy(
    followed: Followed, destination_cluster: LocalCluster, key: str, value: str
) -> None:
    """A copy gets what applies at the source; an old one that leaves it to brokers differs."""
    brokers = [str(broker.node_id) for broker in destination_cluster.brokers]
    own, old = f"{followed.topic}-own", f"{followed.topic}-old"
    for topic in (own, old):
        create(followed.source, topic, 1, {})
    followed.write(b"second")
    configure_brokers(followed.destination, brokers, {key: value})
    try:
        create(followed.destination, f"copy.{old}", 1, {})
        followed.copy()
        at_source = applied(followed, own)
        assert at_source["cleanup.policy"] == "delete"
        assert own_configs(followed.destination, f"copy.{own}") == at_source | CREATE_TIME

        key = key.removeprefix("log.")
        found = topic_configs.differences(followed.surveyed())
        # brokers of other versions have other defaults, which are differences, too
        changed = [each for each in found if each.key == key]
        assert [(each.topic, each.here, each.there) for each in changed] == [
            (f"copy.{old}", at_source[key], value)
        ]
    finally:
        configure_brokers(followed.destination, brokers, {key: None, f"log.{key}": None})


def test_more_partitions_than_at_the_source(followed: Followed, tmp_path: Path) -> None:
    """A keyed producer that moves there would write elsewhere: a warning, and a gate of a move."""
    other = f"{followed.topic}-other"
    create(followed.source, other, 1, KEPT)
    create(followed.destination, f"copy.{other}", 3, KEPT)
    warning = (
        f"copy.{other}: it has 3 partitions, and its source 1: producers that move there would"
        " write a key to another partition than its earlier records; copy to a topic with as many"
        " (topics.rename), or, before producers move, add partitions at the source:"
        f" kafka-topics.sh --alter --topic {other} --partitions 3"
    )
    checked = said(followed.config(tmp_path), "check").stdout
    assert f"warning {followed.name}: {warning}\n" in checked
    gate = topic_gate(followed.surveyed())
    assert ([str(reason) for reason in gate.reasons], gate.state) == ([warning], GateState.FAILS)
    pinned = followed.surveyed(rename={other: f"copy.{other}:0", followed.topic: followed.copy_of})
    assert list(topics.more_partitions(pinned)) == []


def test_a_destination_with_append_time_is_reported(
    sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """`check`, `plan` and `run` warn, however the destination topic came to LogAppendTime."""
    stamped, copied = {"message.timestamp.type": "LogAppendTime"}, f"copy.{topic_name}"
    create(sides[0], topic_name, 1, KEPT | stamped)

    def shown(command: str, **topics: Any) -> str:
        made = commands.mirror(*sides, topic_name, topics={"rename": "copy.{topic}", **topics})
        done = said(commands.configured(tmp_path, {topic_name: made}), command)
        return done.stdout + done.stderr

    warning = f"{copied}: message.timestamp.type=LogAppendTime, so the destination sets its own"
    for command in ("check", "plan", "run"):
        assert warning not in shown(command)
        assert warning in shown(command, config_keys=["message.timestamp.type"])
    create(sides[1], copied, 1, stamped)
    for command in ("check", "plan", "run"):
        assert f"{warning} timestamps; set it to CreateTime" in shown(command)


def test_keys_that_the_destination_does_not_know(followed: Followed) -> None:
    """What a newer source sets itself is sent, and refused; its defaults are left out."""
    taken = replace(followed.surveyed(), at_destination=Metadata())
    there = taken.configs.source[followed.topic]
    default, own = (ConfigValue("1", is_default=each) for each in (True, False))
    newer = {**there, "new.default": default, "new.own": own}
    taken = replace(taken, configs=replace(taken.configs, source={followed.topic: newer}))
    with destination_client(followed.name, followed.destination, OPTIONS, CLOCK) as client:
        (new,) = topics.missing(taken, topics.known_keys(client, taken))
    known = applied(followed, followed.topic)
    assert new.configs.keys() - {"new.own"} == {*known, *CREATE_TIME}
    (unknown,) = topics.missing(taken)
    assert unknown.configs.keys() == {
        *("new.own", "max.message.bytes", "retention.ms", "message.timestamp.type")
    }


@pytest.mark.newer_kafka
def test_a_refused_value_fails_its_topic(followed: Followed) -> None:
    """A value that the broker refuses is one line with a remedy; other topics are followed."""
    other = f"{followed.topic}-other"
    create(followed.source, other, 1, KEPT)
    write(followed.source, TopicPartition(other, 0), [Record(None, b"first")])
    followed.copy()
    configure(followed.source, ResourceType.TOPIC, other, retention_ms=7_000_000)
    until(followed.differences, "the configuration")
    followed.write(b"second")
    taken = followed.surveyed(sync_configs=True)
    bad = replace(taken.configs.source[followed.topic]["retention.ms"], value="-7")
    wrong = {followed.topic: {**taken.configs.source[followed.topic], "retention.ms": bad}}
    configs = replace(taken.configs, source={**taken.configs.source, **wrong})
    plan = run_plan.plan(replace(taken, configs=configs))
    assert [each.source.topic_partition.topic for each in plan.ranges] == [followed.topic]
    done = run(plan, no_spark, [])
    (failure,) = done.failures
    assert f"IncrementalAlterConfigs of topic {followed.copy_of} with INVALID_CONFIG" in failure
    assert failure.endswith("; correct the value, or remove the key from topics.config_keys")
    assert [change.topic for change in done.reconfigured] == [f"copy.{other}"]
    assert own_configs(followed.destination, f"copy.{other}")["retention.ms"] == "7000000"


def test_commands_report_differences(followed: Followed, tmp_path: Path) -> None:
    """`check`, `plan` and `run` say what differs and what a run does about it."""
    followed.configure_source(retention_ms=7_000_000)
    until(followed.differences, "the configuration")
    differs = f"{followed.copy_of}: retention.ms=-1, and the source has 7000000"
    hint = (
        "let runs set it with topics.sync_configs: true, or remove the key from topics.config_keys"
    )
    config = followed.config(tmp_path)

    assert f"warning {followed.name}: {differs}; {hint}\n" in said(config, "check").stdout
    for command in ("plan", "run"):
        assert f"warning: {followed.name}: {differs}; {hint}\n" in said(config, command).stderr
    differ = "keys of topics that are not as at the source: 1; see `relay plan`"
    assert f"note       {differ}\n" in said(config, "status").stdout
    finding = only_finding(config, "plan")
    assert (finding["kind"], finding["severity"]) == ("ConfigDifference", "warning")
    assert f"{finding['where']}: {finding['text']}" == differs
    assert finding["remedy"] == hint

    syncing = followed.config(tmp_path, sync_configs=True)
    assert f"{differs}; the next run sets it\n" in said(syncing, "check").stdout
    done = said(syncing, "run")
    was = f"{followed.copy_of}: set retention.ms=7000000 as at the source; it was -1\n"
    assert (was in done.stdout, done.stderr) == (True, "")
    assert own_configs(followed.destination, followed.copy_of)["retention.ms"] == "7000000"


def test_a_deleted_source_topic_is_reported(followed: Followed, tmp_path: Path) -> None:
    """Every command reports it and none fails; other topics are copied, and the copy stays."""
    other = f"{followed.topic}-other"
    create(followed.source, other, 1, KEPT)
    delete(followed.source, followed.topic)
    gone = (
        f"{followed.name}: {followed.topic}: it was copied, and upstream only no longer has it;"
        f" the copy {followed.copy_of} is kept;"
        " delete the copy when it is no longer needed, and add the topic to topics.deny"
    )
    config = followed.config(tmp_path)

    assert f"warning {gone}\n" in said(config, "check").stdout
    for command in ("plan", "run"):
        assert f"warning: {gone}\n" in said(config, command).stderr
    note = gone.removeprefix(f"{followed.name}: ")
    assert f"  note       {note}\n" in said(config, "status").stdout
    for command in ("plan", "status"):
        finding = only_finding(config, command)
        assert (finding["kind"], finding["where"]) == ("TopicDeleted", followed.topic)
    assert list(followed.surveyed().destinations) == [other]
    assert (
        followed.copy_of in AdminClient(client(followed.destination)).list_topics(timeout=30).topics
    )

    denying = followed.config(tmp_path, deny=[followed.topic])
    assert "note" not in said(denying, "status").stdout


@pytest.fixture
def growing(sides: Clusters) -> Clusters:
    ensure_homes(sides[1])
    return sides


def surveyed(clusters: Clusters, topic: str) -> ClusterSnapshot:
    rename = {"rename": "copy.{topic}"}
    made = commands.mirror(*clusters, topic, topics=rename, start="latest")
    return prepared(f"grow-{topic[-8:]}", Mirror.model_validate(made))


def copy(taken: ClusterSnapshot) -> None:
    at_destination(taken, topics.create)
    copy_planned(taken)


def test_new_partitions_are_copied_from_their_first_record(
    growing: Clusters, topic_name: str
) -> None:
    """New partitions are copied from their first record, even with `start: latest`."""
    source, destination = growing
    create(source, topic_name, 1, KEPT)
    _written(source, topic_name, 0, 7)
    surveyed(growing, topic_name)
    _written(source, topic_name, 0)
    copy(surveyed(growing, topic_name))
    until(lambda: surveyed(growing, topic_name).checkpoints, "the checkpoint")
    grow(source, topic_name, 3)
    for partition in (1, 2):
        until(partial(_written, source, topic_name, partition), "a leader that serves")

    taken = surveyed(growing, topic_name)
    assert topics.to_grow(taken) == {f"copy.{topic_name}": 3}
    assert topics.too_small(taken) == {}
    copy(taken)

    for partition in range(3):
        at = TopicPartition(f"copy.{topic_name}", partition)
        assert [record.value for record in records_of(destination, at)] == [b"%d" % partition]
    assert topics.to_grow(surveyed(growing, topic_name)) == {}


def _written(cluster: Cluster, topic: str, partition: int, value: int | None = None) -> bool:
    number = partition if value is None else value
    write(cluster, TopicPartition(topic, partition), [Record(None, b"%d" % number)])
    return True


@pytest.mark.newer_kafka
@pytest.mark.parametrize("answer", ["heard", "lost"])
def test_a_topic_that_we_created_grows_while_it_is_empty(
    growing: Clusters, topic_name: str, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """It is ours, even if the answer was lost; one that was made again under its name is not."""
    create_topics = admin.create_topics
    lost = [DestinationError("the answer was lost")] if answer == "lost" else []

    def create_and_lose(*given: Any, **more: Any) -> list[str]:
        created = create_topics(*given, **more)
        if lost:
            raise lost.pop()
        return created

    monkeypatch.setattr(topics, "create_topics", create_and_lose)
    source, destination = growing
    create(source, topic_name, 1, KEPT)
    copy(surveyed(growing, topic_name))
    grow(source, topic_name, 3)

    taken = surveyed(growing, topic_name)
    assert topics.to_grow(taken) == {f"copy.{topic_name}": 3}
    copy(taken)

    until(lambda: not topics.to_grow(surveyed(growing, topic_name)), "the partitions")
    assert topics.too_small(surveyed(growing, topic_name)) == {}
    delete(destination, f"copy.{topic_name}")
    create(destination, f"copy.{topic_name}", 1, KEPT)
    taken = surveyed(growing, topic_name)
    assert topics.to_grow(taken) == {}
    assert list(topics.too_small(taken)) == [f"copy.{topic_name}"]
    refused = at_destination(taken, topics.create)
    assert list(refused) == [topic_name]
    said = "has fewer partitions at the destination than its records need; add partitions to it"
    assert f"-0: topic 'copy.{topic_name}' {said}" in str(refused[topic_name])

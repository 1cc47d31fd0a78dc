"""What only looks writes nothing, and needs no permission to write."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclOperation, AdminClient
from dagster import DagsterInstance

from relay_pipelines import settings
from relay_pipelines.cli.entry import main
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.expectations.topic_window import from_ledger
from relay_pipelines.expectations.validation import Result, validate
from relay_pipelines.local_kafka import Listener, LocalCluster
from relay_pipelines.model import CopyJob, TopicPartition
from relay_pipelines.prepare import prepared_snapshot, topics
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.resources import spark_key
from relay_pipelines.run import run_plan
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.orchestration.in_process_environment import InProcessEnvironment, shared
from tests.support import commands, independent
from tests.support.acls import CLUSTER, GROUP, ID, acl, grant
from tests.support.exporter import exporting
from tests.support.ledgers import ledger_entries
from tests.support.planned_copy import at_destination

CLOCK = SystemClock()
GROUPS = "__consumer_offsets"
EXPECTATIONS = [{"size_below": "4KiB"}]
PASSWORD = "looks-only"
MAY = [
    acl("*", "looker", AclOperation.READ),
    acl("*", "looker", AclOperation.DESCRIBE_CONFIGS),
    acl("*", "looker", AclOperation.DESCRIBE, kind=GROUP),
    acl("*", "looker", AclOperation.DESCRIBE, kind=ID),
    acl("kafka-cluster", "looker", AclOperation.DESCRIBE, kind=CLUSTER),
]
COMMANDS = [
    ["check"],
    ["plan"],
    ["plan", "--why", "--json"],
    ["status"],
    ["status", "--all"],
    ["status", "--json"],
    ["upstreams"],
    ["ledger"],
    ["acls"],
    ["offsets", "translate", "--group-regex", "some.*"],
    *(["move", look] for look in ("plan", "rehearse", "status")),
    ["attest"],
    ["compare"],
    *(["audit", "--level", level] for level in ("ledger", "recount", "full", "sample")),
]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that was never mirrored to, with a user who may read everything, and no more."""
    folder = tmp_path_factory.mktemp("watched")
    with LocalCluster(
        "watched",
        listeners=[Listener.PLAINTEXT, Listener.SASL_PLAINTEXT],
        users={"looker": PASSWORD},
        authorizer=True,
        folder=folder,
    ) as cluster:
        admin = AdminClient(independent.client(cluster.cluster()))
        grant(cluster.cluster(), MAY)
        # as on any cluster: librdkafka asks for the coordinator of a group that it does not join,
        # and the first such question creates the topic of the groups
        somebody = Consumer(independent.client(cluster.cluster(), **{"group.id": "somebody"}))
        independent.until(lambda: GROUPS in admin.list_topics(timeout=30).topics, GROUPS)
        somebody.close()
        yield cluster


class Looker(InProcessEnvironment):
    """An environment whose relay.yaml has the user who may not write."""

    def write_as(self, username: str | None, topic: str, **mirror: Any) -> None:
        """Write a relay.yaml; without a user, for one who may do everything."""
        listener = Listener.SASL_PLAINTEXT if username else Listener.PLAINTEXT
        way = commands.at(self.source.cluster(listener, username=username))
        source = {"upstreams": [{"name": "a", **way}]}
        self.write([topic], source=source, destination=way, **mirror)

    def copy_as_owner(self, topic: str, **mirror: Any) -> None:
        """Copy all that is new, with a user who may write."""
        self.write_as(None, topic, **mirror)
        wanted = settings.load(self.config).mirror(self.name)
        taken = prepared_snapshot.prepare_snapshot(
            lambda: read_clusters.take_snapshot(Sides(self.name, wanted, CLOCK))
        )
        at_destination(taken, topics.create)
        job = CopyJob(self.name, "run", taken.upstream, taken.destination)
        outcomes = list(copy_ranges(job, run_plan.plan(taken).ranges))
        assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)

    def state(self) -> dict[TopicPartition, int]:
        """Every topic-partition of the cluster, internal ones too, with its end."""
        admin = AdminClient(independent.client(self.source.cluster()))
        wanted = [
            TopicPartition(name, number)
            for name, topic in admin.list_topics(timeout=30).topics.items()
            for number in topic.partitions
        ]
        return independent.ends(self.source.cluster(), wanted, stable=False)

    def all_checks(self) -> dict[str, dg.AssetCheckEvaluation]:
        """Run every check that a person can run from the UI, and return what each says."""
        defined = [key for each in self.definitions.asset_checks or () for key in each.check_keys]
        evaluated = self.check_all(*defined).get_asset_check_evaluations()
        return {found.check_name: found for found in evaluated}

    def scrape(self) -> str:
        with exporting(self.config) as exporter:
            up = partial(exporter.value, "up", mirror=self.name)
            independent.until(lambda: up() == 1, "a look", 60)
            return exporter.get("/metrics")

    def expect(self) -> list[Result]:
        """Run the expectations of what was copied."""
        sides = Sides(self.name, settings.load(self.config).mirror(self.name))
        found = ledger_entries(sides.mirror.destination_cluster, self.name)
        (window,) = from_ledger("all", found, lambda _entry: True)
        spark = self.resources[spark_key()]
        return validate(lambda: spark.spark_session, self.config, sides, window)


@pytest.fixture
def looker(watched: LocalCluster, tmp_path: Path, local_spark: Any) -> Iterator[Looker]:
    """A mirror within the cluster, and an empty Dagster instance."""
    (tmp_path / "dagster").mkdir()
    folder = str(tmp_path / "dagster")
    with DagsterInstance.local_temp(folder) as instance, shared(local_spark.session):
        yield Looker(tmp_path, "m", watched, watched, instance)


def look_everywhere(looker: Looker, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Do all that only looks, and return what each said; nothing may be written by it."""
    before = looker.state()
    said = {}
    for command in COMMANDS:
        main(["--config", str(looker.config), *command])
        said[" ".join(command)] = "".join(capfd.readouterr())
        assert looker.state() == before, command
    tick = looker.tick()
    assert tick.run_requests, "only a run decides where a mirror starts, or accepts a loss"
    said["planner"] = str(tick.skip_reason)
    assert looker.state() == before, "planner"
    said["health"] = str(looker.health().skip_reason)
    assert looker.state() == before, "health"
    for name, found in looker.all_checks().items():
        said[name] = str(found.description)
    assert looker.state() == before, "checks"
    said["exporter"] = looker.scrape()
    assert looker.state() == before, "exporter"
    return said


def test_what_looks_writes_nothing(
    looker: Looker, topic_name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Neither for a new mirror nor for a loss that a run would accept; and it needs no Write."""
    source, at = looker.source.cluster(), TopicPartition(topic_name, 0)
    independent.create(source, topic_name)
    looker.fill(topic_name, ["a", "b", "c"])
    looker.write_as("looker", topic_name, start="latest")

    new = look_everywhere(looker, capfd)

    assert_not_refused(new)
    looker.copy_as_owner(topic_name)
    looker.fill(topic_name, ["gone", "stays"])
    independent.delete_before(source, at, 4)
    looker.write_as("looker", topic_name, on_data_loss="continue", expectations=EXPECTATIONS)

    lost = look_everywhere(looker, capfd)

    assert_not_refused(lost)
    statement = tmp_path / "statement.json"
    statement.write_text(lost["attest"])
    before, copies = looker.state(), ["--offsets", "0:3", "--side", "destination"]
    again = ["replay", topic_name, "--to", "again"]
    for command, denied in (
        (["audit", "--against", str(statement)], False),
        # a replay says beforehand that this user may not do it
        ([*again, "--offsets", "4:5"], True),
        ([*again, *copies], True),
        (["reset", "--topic", topic_name, "--to-earliest"], False),
    ):
        code, shown = main(["--config", str(looker.config), *command]), capfd.readouterr()
        assert code == denied, shown
        assert ("grant the user Create" in shown.err) is denied
    assert [each.passed for each in looker.expect()] == [True]
    assert looker.state() == before
    for name in ("plan", "status", "lag", "lag_target"):
        assert "retention took the offsets [3, 4)" in lost[name], name


def assert_not_refused(said: dict[str, str]) -> None:
    """Only `relay check` speaks of permissions, which a run would need, and a move of its ACLs."""
    refused = [name for name, text in said.items() if "AUTHORIZATION_FAILED" in text]
    others = set(refused) - {"check", "move plan", "move rehearse"}
    assert {name: said[name] for name in others} == {}

"""A real `dagster dev` between real brokers, used by GraphQL, killed and wiped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines.demo.dagster import CONFIG_FOLDER, REPOSITORY, Dagster, running
from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import naming
from relay_pipelines.model import TopicPartition
from tests.orchestration import graphql
from tests.support.independent import Record, create, delete, read, records_of, until, write

pytestmark = pytest.mark.timeout(900)
KILLING = Path(__file__).parent / "killing"


class DevEnvironment:
    """A mirror of one topic with two partitions, and the folder that Dagster runs in."""

    def __init__(
        self, folder: Path, source: EmbeddedCluster, destination: EmbeddedCluster, topic: str
    ) -> None:
        self.folder = folder
        self.source = source.cluster()
        self.destination = destination.cluster()
        self.topic = topic
        self.name = f"m{uuid.uuid4().hex[:8]}"
        self.number = 0
        create(self.source, topic, 2, {"retention.ms": "-1"})
        self.configure()
        # find dead runs sooner than by default
        instance = (
            (CONFIG_FOLDER / "dagster.yaml")
            .read_text()
            .replace("poll_interval_seconds: 20", "poll_interval_seconds: 2")
        )
        (folder / "dagster.yaml").write_text(instance)

    def configure(self, **more: Any) -> None:
        """Write relay.yaml."""
        mirror = {
            "source": {
                "nodes": [{"name": "a", "bootstrap_servers": self.source.bootstrap_servers[0]}]
            },
            "destination": {"bootstrap_servers": self.destination.bootstrap_servers[0]},
            "topics": {"allow": [self.topic], "rename": f"{self.name}.{{topic}}"},
            "window": {"every": "1s"},
        }
        spark = {"master": "local[2]", "conf": {"spark.driver.memory": "512m"}}
        (self.folder / "relay.yaml").write_text(
            yaml.safe_dump({"spark": spark, "mirrors": {self.name: mirror | more}})
        )

    @contextmanager
    def dagster(self, **environment: str) -> Iterator[Dagster]:
        """Run Dagster within the context."""
        with running(self.folder, environment=environment) as dagster:
            yield dagster

    @property
    def planner(self) -> str:
        """The name of the planner sensor."""
        return f"plan_{naming.identifier(self.name, 'main')}"

    @property
    def asset(self) -> list[str]:
        """The asset key of the mirrored topic."""
        return [self.name, self.topic]

    @property
    def copies(self) -> list[TopicPartition]:
        """The topic-partitions at the destination."""
        return [TopicPartition(f"{self.name}.{self.topic}", partition) for partition in range(2)]

    def produce(self, batches: int, records: int = 20) -> None:
        """Write numbered records to both topic-partitions."""
        for partition in range(2):
            made = [
                [
                    Record(b"k", f"{partition}/{self.number + batch * records + number}".encode())
                    for number in range(records)
                ]
                for batch in range(batches)
            ]
            write(self.source, TopicPartition(self.topic, partition), *made)
        self.number += batches * records

    def copied(self) -> int:
        """The number of records at the destination."""
        try:
            return sum(len(read(self.destination, at)) for at in self.copies)
        except Exception:  # noqa: BLE001 - the topic is not there yet
            return 0

    def assert_equal(self) -> None:
        """Assert that the destination has every record once, in order."""
        for partition, copy in enumerate(self.copies):
            assert records_of(self.destination, copy) == records_of(
                self.source, TopicPartition(self.topic, partition)
            )

    def all_arrived(self, seconds: float = 120.0) -> None:
        """Wait until as many records have arrived as were produced, then compare."""
        until(
            lambda: self.copied() >= 2 * self.number,
            "the last record",
            seconds,
            graphql.PAUSE_SECONDS,
        )
        self.assert_equal()


@pytest.fixture
def dev(
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    tmp_path: Path,
    topic_name: str,
) -> DevEnvironment:
    """A mirror that has copied nothing, and a Dagster that has never run."""
    return DevEnvironment(tmp_path, source_cluster, destination_cluster, topic_name)


@pytest.mark.timeout(600)  # a dozen runs, each of which starts a Spark of its own
def test_from_end_to_end(dev: DevEnvironment) -> None:
    """Windows, a killed run and its retry, and backfills leave equal records at the destination.

    Then Dagster's database is wiped while records wait, and it resumes from the checkpoints.
    """
    dev.configure(copy={"chunk": "1kB", "coalesce_below": "0"})
    with dev.dagster() as dagster:
        dagster.start_sensor(dev.planner)
        dev.produce(3)
        dev.all_arrived()
        first = until(
            lambda: [run for run in graphql.runs(dagster) if run.status == "SUCCESS"],
            "a success",
            pause_seconds=graphql.PAUSE_SECONDS,
        )[-1]
        assert first.window == naming.window_key(dev.name, "main", 1)
        assert first.tags[naming.TAG_NODE] == "a"
        assert graphql.checks(dagster, dev.asset, naming.MESSAGE_COUNTS)[0]["success"]

        dev.produce(300)
        killed = kill_during_copy(dev, dagster)
        dev.all_arrived(240)

        def statuses() -> list[str]:
            return [run.status for run in graphql.runs(dagster) if run.window == killed.window]

        until(lambda: statuses()[0] == "SUCCESS", "the retry", pause_seconds=graphql.PAUSE_SECONDS)
        assert statuses()[-1] == "FAILURE"

        # the records may have been cut into two windows
        until(
            lambda: not graphql.partitions(dagster, dev.asset)["unmaterialized"],
            "all windows",
            pause_seconds=graphql.PAUSE_SECONDS,
        )
        stop_sensor(dagster, dev.planner)
        for _ in range(2):
            dev.produce(2)
            graphql.ended(dagster, graphql.launch(dagster, "replan"))
        missing = graphql.partitions(dagster, dev.asset)["unmaterialized"]
        assert len(missing) == 2
        assert (
            graphql.backfill_ended(dagster, graphql.backfill(dagster, [dev.asset], missing))
            == "COMPLETED_SUCCESS"
        )
        dev.all_arrived()
        assert not graphql.partitions(dagster, dev.asset)["unmaterialized"]

        # the records of the tests are of November 2023
        by_date = {"mirror": dev.name, "from": "2023-11-01", "to": "2023-12-01"}
        config = {"ops": {"freeze_and_backfill": {"config": by_date}}}
        before = set(graphql.backfills(dagster))
        assert (
            graphql.ended(dagster, graphql.launch(dagster, "backfill_by_date", config)).status
            == "SUCCESS"
        )
        (frozen,) = set(graphql.backfills(dagster)) - before
        assert graphql.backfill_ended(dagster, frozen) == "COMPLETED_SUCCESS"
        dev.assert_equal()
        assert all(
            evaluation["success"]
            for evaluation in graphql.checks(dagster, dev.asset, naming.MESSAGE_COUNTS)
        )

        dev.produce(2)
    shutil.rmtree(dev.folder / "var" / "dagster")
    with dev.dagster() as dagster:
        dagster.start_sensor(dev.planner)
        dev.all_arrived()
        assert not [run for run in graphql.runs(dagster) if run.status == "FAILURE"]


def kill_during_copy(dev: DevEnvironment, dagster: Dagster) -> graphql.Run:
    """Kill the process of the active run with SIGKILL after its first commit."""
    before = dev.copied()
    run: graphql.Run = until(
        lambda: next((run for run in graphql.runs(dagster) if run.status == "STARTED"), None),
        "a run",
        pause_seconds=graphql.PAUSE_SECONDS,
    )
    until(
        lambda: before < dev.copied() < 2 * dev.number,
        "the middle of the copy",
        pause_seconds=0.2,
    )
    started = " ".join(graphql.messages(dagster, run.id))
    found = re.search(r"\(pid: (\d+)\)", started)
    assert found, started
    os.kill(int(found[1]), signal.SIGKILL)
    assert dev.copied() < 2 * dev.number
    return run


def stop_sensor(dagster: Dagster, name: str) -> None:
    """Stop a sensor and wait for the run that it may have requested."""
    query = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor {
    sensorState { id } } } }"""
    state = dagster.ask(query, {"s": REPOSITORY | {"sensorName": name}})["sensorOrError"][
        "sensorState"
    ]["id"]
    dagster.ask("mutation($id: String!) { stopSensor(id: $id) { __typename } }", {"id": state})
    until(
        lambda: all(run.status in {"SUCCESS", "FAILURE"} for run in graphql.runs(dagster)),
        "the end of all runs",
        pause_seconds=graphql.PAUSE_SECONDS,
    )


def test_the_daemon_is_killed_in_the_middle_of_a_tick(dev: DevEnvironment) -> None:
    """Killed at three points of a tick, the daemon still cuts one window, and all is copied."""
    dev.produce(5)
    for point in ("after_events", "after_partition", "before_run"):
        token = dev.folder / point
        with dev.dagster(PYTHONPATH=str(KILLING), RELAY_KILL_DAEMON=f"{point}:{token}") as dagster:
            dagster.start_sensor(dev.planner)
            until(token.exists, f"the daemon's end {point}")
        assert dev.copied() == 0
    with dev.dagster() as dagster:
        dev.all_arrived()
        until(
            lambda: {run.status for run in graphql.runs(dagster)} == {"SUCCESS"},
            "the end of the run",
            pause_seconds=graphql.PAUSE_SECONDS,
        )
        found = graphql.partitions(dagster, dev.asset)
        assert found["materialized"] == [naming.window_key(dev.name, "main", 1)]
        assert not found["unmaterialized"]


def test_records_are_deleted_before_the_recount(dev: DevEnvironment) -> None:
    """Records deleted at the destination after the copy fail the check and the run."""
    dev.produce(5)
    token = dev.folder / "stopped"
    with dev.dagster(RELAY_FAULT=f"before_recount=SIGSTOP@1:{token}") as dagster:
        dagster.start_sensor(dev.planner)
        until(token.exists, "the end of the copy")
        delete(dev.destination, dev.copies[0].topic)
        create(dev.destination, dev.copies[0].topic, 2, {"retention.ms": "-1"})
        write(dev.destination, dev.copies[1], [Record(b"k", b"1/0")])
        (run,) = graphql.runs(dagster)
        found = re.search(r"\(pid: (\d+)\)", " ".join(graphql.messages(dagster, run.id)))
        assert found
        os.kill(int(found[1]), signal.SIGCONT)
        assert graphql.ended(dagster, run.id).status == "FAILURE"
        (check,) = graphql.checks(dagster, dev.asset, naming.MESSAGE_COUNTS)
        assert not check["success"]
        assert "100 records were committed, 0 are there" in check["description"]
        assert "100 records were committed, 1 are there" in check["description"]


def test_a_broken_configuration(dev: DevEnvironment) -> None:
    """Dagster shows the line of `relay check` first, above its own; validating it fails."""
    dev.configure(windw={"every": "10s"})
    with pytest.raises(RelayError) as refused, dev.dagster():
        pass
    config = dev.folder / "relay.yaml"
    number = config.read_text().splitlines().index("    windw:") + 1
    problem = f"mirrors.{dev.name}.windw: unknown key; did you mean 'window'?"
    error = "dagster._core.errors.DagsterInvalidDefinitionError"
    assert str(refused.value) == f"{error}: {config}:{number}: {problem}"

    config.write_text("mirrors:\n  - a\n  b: 1\n")
    validated = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate"],
        cwd=dev.folder,
        env=os.environ | {"RELAY_CONFIG": str(config)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert validated.returncode == 1
    _, _, shown = validated.stdout.partition("Validation failed for code location")
    assert shown.startswith(
        f" relay_pipelines:\n\n{error}: {config}:3:3: not YAML: expected <block end>"
    )

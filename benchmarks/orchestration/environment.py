"""A mirror of many topics between two brokers, and a Dagster instance in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import dagster as dg
import psutil
import yaml

from benchmarks import clusters, tree
from benchmarks.contenders.relay_process import COMMAND
from benchmarks.inputs import Input
from benchmarks.orchestration.figures import Spent
from benchmarks.seeding import seed
from relay_pipelines.definitions import build
from relay_pipelines.demo.dagster import CONFIG_FOLDER
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane, lanes_of
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.resources import kafka_key
from relay_pipelines.settings import load
from tests.support import commands

MIRROR = "orders"
_BY_COMMAND = "command"  # the mirror of `relay run`
_LIMIT_SECONDS = 600


@dataclass
class Environment:
    """The clusters, topics and folder of the benchmark.

    Args:
        folder: the folder of relay.yaml and of all data of Dagster.
        topics: the source topics.
        partitions: of each topic.
        cursor: what the planner has returned last.
    """

    folder: Path
    source: Cluster
    destination: Cluster
    topics: Sequence[str]
    partitions: int
    cursor: str | None = None

    @property
    def config(self) -> Path:
        """The relay.yaml that Dagster loads."""
        return self.folder / "relay.yaml"

    @property
    def planner(self) -> str:
        """The name of the planner sensor."""
        return naming.planner(MIRROR)

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes."""
        mirror = load(self.config).mirror(MIRROR)
        return lanes_of(MIRROR, mirror, Catalog.beside(self.config).known(MIRROR, mirror))

    @property
    def lane(self) -> Lane:
        """The only lane."""
        (lane,) = self.lanes
        return lane

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        """The Dagster instance in the folder."""
        return dg.DagsterInstance.from_config(str(self.folder))

    def configure(self, **window: str | int) -> None:
        """Write relay.yaml for Dagster and for the command."""
        for file, name in ((self.config, MIRROR), (self.folder / "command.yaml", _BY_COMMAND)):
            mirror = commands.mirror(
                self.source,
                self.destination,
                "topic[0-9]+",
                upstream="source",
                topics={"rename": f"{name}.{{topic}}"},
                window={"every": "1s", "session": 0, **window},
            )
            file.write_text(yaml.safe_dump({"mirrors": {name: mirror}}))

    def fill(self, topics: Sequence[str], records: int) -> None:
        """Write records of 1 KiB to each of these topics."""
        for topic in topics:
            seed(self.source, topic, Input(topic, topic, records, 1024, 128 << 10))

    def ticker(self) -> Ticker:
        """The planner as it would be loaded now."""
        return Ticker(self, build(self.config), self.planner)

    def newest(self) -> str:
        """The key of the newest window."""
        return max(self.windows())

    def windows(self) -> Sequence[str]:
        """The keys of all windows."""
        return self.instance.get_dynamic_partitions(naming.plans_name(MIRROR, self.lane.name))

    def run(self, job: str = naming.lane_job(MIRROR, naming.MAIN)) -> Spent:
        """Copy what is new with a job, that of the lane by default, in a process of its own."""
        dagster = [sys.executable, "-m", "dagster", "job", "execute"]
        return self._process("run", [*dagster, "-m", "relay_pipelines.definitions", "-j", job])

    @contextmanager
    def session(self) -> Iterator[Tree]:
        """Run a session of the only lane in a process."""
        job = naming.lane_job(MIRROR, naming.MAIN)
        dagster = [sys.executable, "-m", "dagster", "job", "execute"]
        with (
            (self.folder / "session.log").open("ab") as log,
            subprocess.Popen(
                [*dagster, "-m", "relay_pipelines.definitions", "-j", job],
                cwd=self.folder,
                env=process_variables(self.folder),
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                yield Tree(psutil.Process(process.pid))
            finally:
                process.terminate()

    def command(self) -> Spent:
        """Copy the same with `relay run`."""
        return self._process(
            "command", [str(COMMAND), "--config", "command.yaml", "run", "--stop-at-end"]
        )

    def _process(self, name: str, command: Sequence[str]) -> Spent:
        with (self.folder / f"{name}.log").open("ab") as log:
            seconds, cpu_seconds = tree.spent(
                command,
                self.folder / f"{name}.json",
                cwd=self.folder,
                env=process_variables(self.folder),
                stdout=log,
                stderr=log,
                timeout=_LIMIT_SECONDS,
            )
        return Spent(seconds, cpu_seconds)


class Tree:
    """A process with all below it."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root

    def cpu_seconds(self) -> float:
        """The CPU time that they have used so far."""
        processes = [self._root, *self._root.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


class Ticker:
    """Evaluates a planner in this process."""

    def __init__(self, environment: Environment, definitions: dg.Definitions, name: str) -> None:
        self._scene = environment
        self._sensor = definitions.get_repository_def().get_sensor_def(name)
        self._kafka = (definitions.resources or {})[kafka_key()]

    def tick(self) -> dg.SensorResult:
        """Evaluate the planner and apply its result as the daemon does."""
        instance, environment = self._scene.instance, self._scene
        context = dg.build_sensor_context(
            instance=instance,
            cursor=environment.cursor,
            resources={kafka_key(): self._kafka},
        )
        result = self._sensor(context)
        assert isinstance(result, dg.SensorResult)
        environment.cursor = result.cursor
        for event in result.asset_events:
            instance.report_runless_asset_event(event)
        return result


def process_variables(folder: Path) -> dict[str, str]:
    """The environment variables of a process that uses the folder."""
    variables = {name: value for name, value in os.environ.items() if name != "RELAY_CATALOG"}
    return variables | {"RELAY_CONFIG": str(folder / "relay.yaml")} | dagster_variables(folder)


def dagster_variables(folder: Path) -> dict[str, str]:
    """Variables for the Dagster instance and a cache of compiled modules, which saves seconds."""
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    return {"DAGSTER_HOME": str(folder)} | compiled


@contextmanager
def start_environment(folder: Path, topics: int, partitions: int = 2) -> Iterator[Environment]:
    """Start two brokers, create the topics, and prepare the folder for Dagster."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"topic{number:03}" for number in range(topics)]
    with clusters.embedded("source") as source, clusters.embedded("destination") as destination:
        environment = Environment(
            folder, source.cluster(), destination.cluster(), names, partitions
        )
        environment.configure()
        text = (
            (CONFIG_FOLDER / "dagster.yaml")
            .read_text()
            .replace("base_dir: var/dagster", f"base_dir: {folder}/var/dagster")
        )
        (folder / "dagster.yaml").write_text(text)
        clusters.create_topics(environment.source, names, partitions, {})
        Catalog.beside(environment.config).learn(MIRROR, names)
        try:
            yield environment
        finally:
            if "instance" in environment.__dict__:
                environment.instance.dispose()


def last_run(instance: dg.DagsterInstance) -> str:
    """The id of the newest run."""
    return instance.get_run_records(limit=1)[0].dagster_run.run_id


def mirrored(topic: str) -> dg.AssetKey:
    """The asset of a topic."""
    return naming.mirrored_asset(MIRROR, topic)

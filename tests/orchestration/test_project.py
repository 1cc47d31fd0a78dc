"""A Dagster project of a user's own, made with `dg`, with the package as installed from a wheel."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from pyarrow import dataset

import relay_pipelines as relay
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.demo.dagster import CONFIG_FOLDER, Dagster
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import CopyJob, TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.copying import records_of
from tests.orchestration import graphql
from tests.orchestration.in_process_environment import InProcessEnvironment, failure
from tests.support import wheel
from tests.support.commands import ran
from tests.support.independent import Record, create, write

DG = Path(sys.executable).parent / "dg"
PAGE = Path(__file__).parents[2] / "docs" / "api.md"
PROJECT = {
    "pyproject.toml": """
        [project]
        name = "shop"
        version = "0"
        [tool.dg]
        directory_type = "project"
        [tool.dg.project]
        root_module = "shop"
        code_location_name = "relay_pipelines"
    """,
    "src/shop/__init__.py": "",
    "src/shop/defs/__init__.py": "",
    "src/shop/definitions.py": """
        from pathlib import Path

        import dagster as dg

        class Printer(dg.ConfigurableResource):
            name: str = "laser"

        @dg.definitions
        def defs():
            return dg.Definitions.merge(
                dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
                dg.Definitions(
                    executor=dg.multiprocess_executor,
                    resources={"kafka": Printer(), "spark": Printer()},
                ),
            )
    """,
    "src/shop/components.py": """
        import relay_pipelines as relay

        class ShopMirror(relay.MirrorComponent):
            def get_asset_spec(self, spec, topic):
                spec = super().get_asset_spec(spec, topic)
                return spec.replace_attributes(owners=["team:shop"])
    """,
}


def documented_asset(topic: str, folder: Path) -> str:
    """The module of docs/api.md, with this topic, for a project with resources of its own."""
    (text,) = re.findall(r"```python\n(import dagster as dg\n.*?)```", PAGE.read_text(), re.DOTALL)
    for old, new in {
        '("orders", "orders.new")': f'("shop", "{topic}")',
        '"/var/lib/shop/invoices"': f'"{folder}"',
        "minimum_interval_seconds=60": "minimum_interval_seconds=15",
        # a resource of the project beside that of the definitions
        "relay_spark: relay": "kafka: dg.ResourceParam[object], relay_spark: relay",
        "    records =": "    assert kafka.name == 'laser'\n    records =",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return text.partition("defs = ")[0]


class Project:
    """The project, and the clusters that its mirror copies between."""

    def __init__(self, folder: Path, site: Path, topic: str) -> None:
        self.folder = folder
        self.topic = topic
        self.environment = wheel.environment(site, folder / "src") | {"TOPIC": topic}
        for name, text in PROJECT.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())
        written = documented_asset(topic, folder / "invoices")
        (folder / "src/shop/defs/invoices.py").write_text(written)
        shutil.copy(CONFIG_FOLDER / "dagster.yaml", folder)

    def dg(self, *arguments: str) -> str:
        done = ran(DG, *arguments, cwd=self.folder, env=self.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def dev(self) -> Iterator[Dagster]:
        (port,) = free_ports(1)
        with (self.folder / "dagster.log").open("ab") as log:
            process = subprocess.Popen(
                [DG, "dev", "--host", "127.0.0.1", "--port", str(port)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        dagster = Dagster(f"http://127.0.0.1:{port}", process)
        try:
            graphql.wait(lambda: serves(dagster), "dg dev")
            yield dagster
        finally:
            dagster.stop()


def serves(dagster: Dagster) -> bool:
    try:
        return bool(dagster.sensors())
    except OSError:
        assert dagster.process.poll() is None
        return False


@pytest.fixture
def project(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, tmp_path: Path, topic_name: str
) -> Project:
    """One with a component of its own for a mirror, scaffolded, and one topic at the source."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    made = Project(tmp_path / "project", wheel.unpacked(tmp_path), f"{topic_name}.orders")
    create(source, made.topic, 1, {"retention.ms": "-1"})
    servers = [cluster.bootstrap_servers[0] for cluster in (source, destination)]
    made.dg(
        *("scaffold", "defs", "relay_pipelines.MirrorComponent", "shop"),
        *("--source", servers[0], "--destination", servers[1]),
        *("--topics", rf"{topic_name}\..*"),
    )
    folder = made.folder / "src" / "shop" / "defs" / "shop"
    settings = yaml.safe_load((folder / "relay.yaml").read_text())
    settings["mirrors"]["shop"]["window"] = {"every": "1s"}
    spark = {"master": "local[2]", "conf": {"spark.driver.memory": "512m"}}
    (folder / "relay.yaml").write_text(
        yaml.safe_dump(settings | {"automation": True, "spark": spark})
    )
    component = yaml.safe_load((folder / "defs.yaml").read_text())
    component["type"] = "shop.components.ShopMirror"
    component["attributes"]["translation"] = {"description": "Orders of {{ mirror }}/{{ topic }}"}
    (folder / "defs.yaml").write_text(yaml.safe_dump(component))
    return made


def test_a_mirror_in_a_project_of_ones_own(project: Project) -> None:
    """A component is scaffolded, and its pattern's topics are there at once."""
    project.dg("check", "yaml")
    listed = json.loads(project.dg("list", "defs", "--json"))["assets"]
    key = f"shop/{project.topic}"
    (mirrored,) = (asset for asset in listed if asset["asset_key"] == key)
    assert mirrored["owners"] == [{"team": "shop"}]
    assert mirrored["description"] == f"Orders of {key}"


@pytest.mark.long
def test_an_asset_of_the_project_follows(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, project: Project
) -> None:
    """It gets every window once, several in one run if they have come between two ticks."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    at = TopicPartition(project.topic, 0)
    with project.dev() as dagster:
        # an automation condition looks at what comes after its first tick
        graphql.wait(lambda: ticked(dagster), "the first tick")
        # windows that come between two ticks are one run; on a busy machine three may not
        for first in range(0, 12, 3):
            for number in range(first, first + 3):
                write(source, at, [Record(b"k", b"%d" % number)])
                graphql.wait(
                    lambda number=number: len(windows(dagster, project)) == number + 1,
                    f"window {number}",
                )
            values = [record.value for record in records_of(source, at)]
            found = dict(zip(windows(dagster, project), values, strict=True))
            graphql.wait(lambda found=found: invoices(project) == found, "all invoices")
            if batches(dagster):
                break
        assert batches(dagster), "a run takes all windows that have come"
        assert records_of(destination, at) == records_of(source, at)
        (session,) = (run for run in graphql.runs(dagster) if run.job == "mirror_shop")
        assert session.status == "STARTED", "its windows are events of one run"

        again = graphql.materialize(dagster, [["shop", at.topic]], min(found))
        assert graphql.ended(dagster, again).status == "SUCCESS"
        said = " ".join(graphql.messages(dagster, again))
        assert "Launching subprocess" in said, "runs of assets have the executor of the project"
        assert "Launching subprocess" not in " ".join(graphql.messages(dagster, session.id))


def ticked(dagster: Dagster) -> bool:
    return not {"SKIPPED", "SUCCESS"}.isdisjoint(graphql.ticks(dagster, "invoicing"))


def windows(dagster: Dagster, project: Project) -> list[str]:
    """The windows of the topic that were copied, in order."""
    return sorted(graphql.partitions(dagster, ["shop", project.topic])["materialized"])


def batches(dagster: Dagster) -> list[graphql.Run]:
    """The runs of the project's asset with more than one window."""
    start = "dagster/asset_partition_range_start"
    return [
        run
        for run in graphql.runs(dagster)
        if run.tags.get(start, "") < run.tags.get("dagster/asset_partition_range_end", "")
    ]


def invoices(project: Project) -> dict[str, bytes]:
    folder = project.folder / "invoices"
    if not folder.exists():
        return {}
    found = dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    assert len({row["window"] for row in found}) == len(found), "each record is in one window"
    return {row["window"]: row["value"] for row in found}


def test_windows_that_failed_come_with_the_next(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """What a window has copied before it failed is read by whoever follows the next one."""
    topic = topics[0]
    environment.write([topic])
    earlier = environment.copy()
    (before,) = environment.windows(topic)
    environment.fill(topic, ["first"] * 20)
    environment.fill(topic, ["second"] * 30, partition=1)
    (failed,) = set(environment.freeze()) - {before}
    mirror, clock = load(environment.config).mirror(environment.name), SystemClock()
    taken = read_clusters.take_snapshot(Sides(environment.name, mirror, clock))
    (first, _) = run_plan.plan(taken).ranges
    job = CopyJob(
        environment.name, earlier.run_id, taken.upstream, taken.destination, window=failed
    )
    assert [one.error for one in copy_ranges(job, [first])] == [""]
    environment.copy()
    (completed,) = set(environment.windows(topic)) - {before, failed}
    environment.fill(topic, ["third"] * 5)
    environment.copy()

    @dg.asset(partitions_def=relay.partitions(environment.name, topic))
    def counted(context, relay_spark: relay.SparkResource) -> Any:
        found = relay_spark.records(context, columns=["window"]).groupBy("window").count()
        return dict(sorted(tuple(row) for row in found.collect()))

    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-01-01"))
    def daily(context, relay_spark: relay.SparkResource) -> None:
        relay_spark.records(context)

    def run(asset: dg.AssetsDefinition, key: str) -> dg.ExecuteInProcessResult:
        own: dict[str, Any] = {"instance": environment.instance, "raise_on_error": False}
        own["resources"] = environment.resources
        return dg.materialize_to_memory([asset], partition_key=key, **own)

    newest = max(environment.windows(topic))
    assert run(counted, completed).output_for_node("counted") == {failed: 20, completed: 30}
    assert run(counted, newest).output_for_node("counted") == {newest: 5}
    assert "asset daily does not have the windows of a topic" in failure(run(daily, "2026-01-01"))


def test_a_window_has_what_was_copied_for_none_since_it_was_cut(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """`relay run` copies what a killed run has left: whoever follows the window reads all of it."""
    topic = topics[0]
    environment.write([topic])
    environment.fill(topic, ["before"])
    with relay.load(environment.config) as mirrors:
        mirrors[environment.name].run()
    environment.fill(topic, ["first"] * 20)
    (window,) = environment.freeze()
    mirror = load(environment.config).mirror(environment.name)

    def copy(key: str, most: int) -> None:
        taken = read_clusters.take_snapshot(Sides(environment.name, mirror, SystemClock()))
        (planned,) = run_plan.plan(taken).ranges
        begin = planned.source.start
        part = replace(planned, source=replace(planned.source, end=begin + most))
        job = CopyJob(environment.name, "run", taken.upstream, taken.destination, window=key)
        assert [one.error for one in copy_ranges(job, [part])] == [""]

    copy(window, 12)
    environment.fill(topic, ["second"] * 5)
    copy("", 8)
    copy("", 5)

    @dg.asset(partitions_def=relay.partitions(environment.name, topic))
    def values(context, relay_spark: relay.SparkResource) -> Any:
        found = relay_spark.records(context, columns=["value", "window"]).collect()
        return [(bytes(value).decode(), key) for value, key in found]

    own: dict[str, Any] = {"instance": environment.instance, "resources": environment.resources}
    result = dg.materialize_to_memory([values], partition_key=window, **own)
    assert result.output_for_node("values") == [("first", window)] * 20

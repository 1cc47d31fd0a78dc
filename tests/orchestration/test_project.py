"""A Dagster project of a user's own, made with `dg`, with the package as installed from a wheel."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from relay_pipelines.demo.dagster import CONFIG_FOLDER, REPOSITORY, Dagster
from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.embedded.ports import free_ports
from relay_pipelines.model import TopicPartition
from tests.orchestration import graphql
from tests.support import wheel
from tests.support.independent import Record, create, records_of, until, write

pytestmark = pytest.mark.timeout(600)
DG = Path(sys.executable).parent / "dg"
TICKS = """query($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {
  ... on Sensor { sensorState { ticks(limit: 3) { status } } } } }"""
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
    "src/shop/defs/invoices.py": """
        import os
        from pathlib import Path

        import dagster as dg

        import relay_pipelines as relay

        TOPIC = os.environ["TOPIC"]

        @dg.asset(
            deps=[relay.asset_key("shop", TOPIC)],
            partitions_def=relay.partitions("shop", TOPIC),
            automation_condition=dg.AutomationCondition.eager(),
            required_resource_keys={"kafka"},
        )
        def invoices(context: dg.AssetExecutionContext):
            with Path("invoices.txt").open("a") as file:
                file.write(f"{context.partition_key} {context.resources.kafka.name}\\n")

        invoicing = dg.AutomationConditionSensorDefinition(
            "invoicing",
            target=[invoices],
            default_status=dg.DefaultSensorStatus.RUNNING,
            minimum_interval_seconds=2,
        )
    """,
}


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
        shutil.copy(CONFIG_FOLDER / "dagster.yaml", folder)

    def dg(self, *arguments: str) -> str:
        """Run `dg` and return its output."""
        done = subprocess.run(
            [DG, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def dev(self) -> Iterator[Dagster]:
        """Run `dg dev` within the context."""
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
            until(lambda: serves(dagster), "dg dev", 90, graphql.PAUSE_SECONDS)
            yield dagster
        finally:
            dagster.stop()


def serves(dagster: Dagster) -> bool:
    try:
        return bool(dagster.sensors())
    except OSError:
        assert dagster.process.poll() is None
        return False


def test_a_mirror_in_a_project_of_ones_own(
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    tmp_path: Path,
    topic_name: str,
) -> None:
    """A component is scaffolded, its pattern's topics are there at once, and an asset follows."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    at = TopicPartition(f"{topic_name}.orders", 0)
    create(source, at.topic, 1, {"retention.ms": "-1"})
    project = Project(tmp_path / "project", wheel.unpacked(tmp_path), at.topic)
    servers = [cluster.bootstrap_servers[0] for cluster in (source, destination)]
    project.dg(
        *("scaffold", "defs", "relay_pipelines.MirrorComponent", "shop"),
        *("--source", servers[0], "--destination", servers[1]),
        *("--topics", rf"{topic_name}\..*"),
    )
    folder = project.folder / "src" / "shop" / "defs" / "shop"
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

    project.dg("check", "yaml")
    project.dg("check", "defs")
    listed = json.loads(project.dg("list", "defs", "--json"))["assets"]
    (mirrored,) = (asset for asset in listed if asset["asset_key"] == f"shop/{at.topic}")
    assert (mirrored["owners"], mirrored["description"]) == (
        [{"team": "shop"}],
        f"Orders of shop/{at.topic}",
    )

    with project.dev() as dagster:
        # an automation condition looks at what comes after its first tick
        until(lambda: ticked(dagster), "the first tick", 90, graphql.PAUSE_SECONDS)
        for number in range(3):
            write(source, at, [Record(b"k", b"%d" % number)])
            until(
                lambda number=number: len(invoices(project)) == number + 1,
                f"the invoices of window {number}",
                90,
                graphql.PAUSE_SECONDS,
            )
        windows = graphql.partitions(dagster, ["shop", at.topic])["materialized"]
        assert invoices(project) == [f"{window} laser" for window in sorted(windows)]
        assert records_of(destination, at) == records_of(source, at)
        (session,) = (run for run in graphql.runs(dagster) if run.job == "mirror_shop")
        assert session.status == "STARTED", "its windows are events of one run"

        again = graphql.materialize(dagster, [["shop", at.topic]], windows[0])
        assert graphql.ended(dagster, again).status == "SUCCESS"
        said = " ".join(graphql.messages(dagster, again))
        assert "Launching subprocess" in said, "runs of assets have the executor of the project"
        assert "Launching subprocess" not in " ".join(graphql.messages(dagster, session.id))


def ticked(dagster: Dagster) -> bool:
    selector = REPOSITORY | {"sensorName": "invoicing"}
    found = dagster.ask(TICKS, {"selector": selector})["sensorOrError"]["sensorState"]["ticks"]
    return any(tick["status"] in {"SKIPPED", "SUCCESS"} for tick in found)


def invoices(project: Project) -> list[str]:
    try:
        return (project.folder / "invoices.txt").read_text().splitlines()
    except FileNotFoundError:
        return []

"""Takes the pictures of Dagster, and of pages, for the docs: `python -m scripts.screenshots`.

Needs Chromium: $CHROMIUM, or `chromium` on the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urljoin

from relay_pipelines.demo.dagster import Dagster
from relay_pipelines.demo.reporter import Reporter
from relay_pipelines.demo.shop import MIRROR, Environment, temporary_folder
from relay_pipelines.demo.ui import GRAPH, start_stack
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.output.formatting import stdout
from relay_pipelines.protocol.clock import SystemClock
from tests.orchestration import graphql
from tests.support.independent import Record, create, delete, until, write

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WINDOWS = 15  # the history, and some of what arrives
TOPIC, AGAIN, FOREIGN = "orders.events", "orders.payments", "orders.status"
_SENSORS = "locations/__repository__@relay_pipelines/sensors"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1500,1050",
    "--virtual-time-budget=20000",
)


def main() -> None:
    """Start clusters and Dagster, copy some windows, take screenshots."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("error: no Chromium found; install it or set CHROMIUM=/path/to/chromium")
    FOLDER.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    with temporary_folder(keep=False) as folder, ExitStack() as running:
        dagster, environment = start_stack(folder, 0, Reporter(stdout(), clock), clock, running)
        until(lambda: len(done(dagster)) >= WINDOWS, f"{WINDOWS} windows", 180)
        window = done(dagster)[-1]
        camera = Camera(chromium, dagster)
        topic, lane = f"assets/{MIRROR}/{TOPIC}", f"assets/{MIRROR}/main/windows"
        camera.take("asset-graph", GRAPH)
        camera.take("materialisation", f"{topic}?view=partitions&partition={window}")
        camera.take("topic", topic)
        camera.take("run", f"runs/{graphql.runs(dagster)[0].id}")
        camera.take("plan", f"{lane}?view=partitions&partition={window}")
        camera.take("checks", f"{lane}?view=checks&checkDetail={naming.LAG}")
        camera.take("planner", f"{_SENSORS}/{naming.planner(MIRROR)}")
        by_hand(camera, environment)
        at_night(camera, environment)
        pages(camera, environment)


def by_hand(camera: Camera, environment: Environment) -> None:
    """A backfill, and the list of runs."""
    dagster, keys = camera.dagster, [[MIRROR, topic] for topic in environment.partitions]
    graphql.materialize(dagster, keys, done(dagster)[-1])
    backfill = graphql.backfill(dagster, *((key, done(dagster)[:3]) for key in keys))
    graphql.backfill_ended(dagster, backfill)
    camera.take("backfill", f"runs/b/{backfill}")
    camera.take("runs", "runs")


def at_night(camera: Camera, environment: Environment) -> None:
    """What goes wrong: an upstream is away, a topic was created again, relay.yaml is none."""
    dagster, upstream = camera.dagster, environment.upstreams[0].name
    environment.kill(upstream)
    at = naming.upstream_asset(MIRROR, upstream).path
    until(partial(has_failed, dagster, at, naming.AVAILABLE), "an upstream that is away", 120)
    camera.take("upstream-away", _check(at, naming.AVAILABLE))
    environment.restart(upstream)
    delete(environment.destination, AGAIN)
    create(environment.destination, AGAIN, environment.partitions[AGAIN])
    at = naming.windows_asset(MIRROR, naming.MAIN).path
    until(partial(has_failed, dagster, at, naming.LAG), "a topic that is held back", 120)
    camera.take("held-back", _check(at, naming.LAG))
    text = (environment.folder / "relay.yaml").read_text()
    (environment.folder / "relay.yaml").write_text(text.replace("allow:", "alow:"))
    planner = naming.planner(MIRROR)
    until(lambda: "FAILURE" in graphql.ticks(dagster, planner), "a tick that fails", 120)
    camera.take("wrong-configuration", f"{_SENSORS}/{planner}")
    camera.take("automation", "automation")
    (environment.folder / "relay.yaml").write_text(text)


def pages(camera: Camera, environment: Environment) -> None:
    """The pages of an audit and of a comparison that find a record of somebody else."""
    foreign = Record(b"order-0000042", b"written by hand")
    write(environment.destination, TopicPartition(FOREIGN, 0), [foreign])
    for command in ("audit", "compare"):
        page = environment.folder / f"{command}.html"
        relay = (Path(sys.executable).with_name("relay"), "-c", environment.folder / "relay.yaml")
        subprocess.run(
            [*relay, command, "--mirror", MIRROR, "--html", page], check=False, timeout=300
        )
        camera.take(command, page.as_uri())


def has_failed(dagster: Dagster, asset: Sequence[str], check: str) -> bool:
    """Whether the last result of a check is a failure."""
    return not next((each["success"] for each in graphql.checks(dagster, asset, check)), True)


def _check(asset: Sequence[str], name: str) -> str:
    return f"assets/{'/'.join(asset)}?view=checks&checkDetail={name}"


def done(dagster: Dagster) -> list[str]:
    """The windows of a topic that were copied, oldest first."""
    return sorted(graphql.partitions(dagster, [MIRROR, TOPIC])["materialized"])


@dataclass(frozen=True)
class Camera:
    """Chromium, in front of a Dagster."""

    chromium: str
    dagster: Dagster

    def take(self, name: str, page: str) -> None:
        """Take a picture of a page: of Dagster, unless it is a whole address."""
        target = FOLDER / f"{name}.png"
        with tempfile.TemporaryDirectory() as profile:
            own = (f"--user-data-dir={profile}", f"--screenshot={target}")
            command = [self.chromium, *_FLAGS, *own, urljoin(f"{self.dagster.url}/", page)]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        print(f"{target.name}: {target.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()

"""Takes the screenshots of Dagster for docs/dagster.md: `python -m scripts.screenshots`.

Needs Chromium: $CHROMIUM, or `chromium` on the PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines.demo.dagster import Dagster
from relay_pipelines.demo.reporter import Reporter
from relay_pipelines.demo.shop import MIRROR, Environment, temporary_folder
from relay_pipelines.demo.ui import GRAPH, start_stack
from relay_pipelines.orchestration import naming
from relay_pipelines.output.formatting import stdout
from relay_pipelines.protocol.clock import SystemClock
from tests.orchestration import graphql
from tests.support.independent import until

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WINDOWS = 15  # the history, and some of what arrives
TOPIC = "orders.events"
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
        sensor = f"locations/__repository__@relay_pipelines/sensors/{naming.planner(MIRROR)}"
        topic, lane = f"assets/{MIRROR}/{TOPIC}", f"assets/{MIRROR}/main/windows"
        camera.take("asset-graph", GRAPH)
        camera.take("materialisation", f"{topic}?view=partitions&partition={window}")
        camera.take("topic", topic)
        camera.take("run", f"runs/{graphql.runs(dagster)[0].id}")
        camera.take("plan", f"{lane}?view=partitions&partition={window}")
        camera.take("checks", f"{lane}?view=checks&checkDetail={naming.LAG}")
        camera.take("planner", sensor)
        by_hand(camera, environment)


def by_hand(camera: Camera, environment: Environment) -> None:
    """A backfill, and the list of runs."""
    dagster, keys = camera.dagster, [[MIRROR, topic] for topic in environment.partitions]
    graphql.materialize(dagster, keys, done(dagster)[-1])
    backfill = graphql.backfill(dagster, *((key, done(dagster)[:3]) for key in keys))
    graphql.backfill_ended(dagster, backfill)
    camera.take("backfill", f"runs/b/{backfill}")
    camera.take("runs", "runs")


def done(dagster: Dagster) -> list[str]:
    """The windows of a topic that were copied, oldest first."""
    return sorted(graphql.partitions(dagster, [MIRROR, TOPIC])["materialized"])


@dataclass(frozen=True)
class Camera:
    """Chromium, in front of a Dagster."""

    chromium: str
    dagster: Dagster

    def take(self, name: str, page: str) -> None:
        """Take a picture of a page of Dagster."""
        target = FOLDER / f"{name}.png"
        with tempfile.TemporaryDirectory() as profile:
            own = (f"--user-data-dir={profile}", f"--screenshot={target}")
            command = [self.chromium, *_FLAGS, *own, f"{self.dagster.url}/{page}"]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        print(f"{target.name}: {target.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()

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
from pathlib import Path

from relay_pipelines.demo.dagster import Dagster
from relay_pipelines.demo.reporter import Reporter
from relay_pipelines.demo.shop import MIRROR, temporary_folder
from relay_pipelines.demo.ui import GRAPH, start_stack
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.output.formatting import stdout
from relay_pipelines.protocol.clock import SystemClock
from tests.orchestration import graphql
from tests.support.independent import Record, until, write

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
        sensor = naming.planner(MIRROR)
        pages = {
            "asset-graph": GRAPH,
            "materialisation": f"assets/{MIRROR}/{TOPIC}?view=partitions&partition={window}",
            "topic": f"assets/{MIRROR}/{TOPIC}",
            "run": f"runs/{graphql.runs(dagster)[0].id}",
            "plan": f"assets/{MIRROR}/main/windows?view=partitions&partition={window}",
            "checks": f"assets/{MIRROR}/main/windows?view=checks&checkDetail={naming.LAG}",
            "planner": f"locations/__repository__@relay_pipelines/sensors/{sensor}",
        }
        for name, page in pages.items():
            take(chromium, dagster, name, page)
        # last: the checks of further windows would fail as well
        copy = TopicPartition(TOPIC, 0)
        write(environment.destination, copy, [Record(b"order-1", b"by another producer")])
        graphql.ended(dagster, graphql.launch(dagster, "audit"))
        page = f"assets/{MIRROR}/{TOPIC}?view=checks&checkDetail={naming.AUDIT}"
        take(chromium, dagster, "audit", page)


def done(dagster: Dagster) -> list[str]:
    """The windows of a topic that were copied, oldest first."""
    return sorted(graphql.partitions(dagster, [MIRROR, TOPIC])["materialized"])


def take(chromium: str, dagster: Dagster, name: str, page: str) -> None:
    """Take one screenshot."""
    with tempfile.TemporaryDirectory() as profile:
        target = FOLDER / f"{name}.png"
        subprocess.run(
            [
                chromium,
                *_FLAGS,
                f"--user-data-dir={profile}",
                f"--screenshot={target}",
                f"{dagster.url}/{page}",
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

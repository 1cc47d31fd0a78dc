"""An asset of one's own that follows a topic: `python -m benchmarks.orchestration.following`.

It is the one of docs/api.md, on a Spark Connect server that it shares with the session that copies.
A queue that grows would show in the windows that wait for it.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import dagster as dg
import psutil
import yaml

from benchmarks import machine
from benchmarks.orchestration.environment import (
    Environment,
    dagster_variables,
    mirrored,
    start_environment,
)
from benchmarks.orchestration.latency import writing
from relay_pipelines.demo.dagster import running
from tests.integration.spark_processes import connect_process

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
_ASSET = dg.AssetKey("invoices")
_SAMPLE_SECONDS = 5.0
_WORKSPACE = """\
load_from:
  - python_file: {relative_path: project.py, location_name: relay_pipelines}
"""


class Sample(NamedTuple):
    """What was there at a moment.

    Args:
        copied, followed: windows that were copied, and those that the asset has.
        queued: runs that wait to start.
    """

    copied: int
    followed: int
    queued: int


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.following")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--per-second", type=int, default=100)
    parser.add_argument("--every", default="5s")
    given = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}; {machine.describe()['CPU']}")
    with (
        TemporaryDirectory(prefix="relay-following-") as folder,
        start_environment(Path(folder), 1) as environment,
        connect_process(Path(folder, "spark"), Path(sys.executable), {}, {}) as spark,
    ):
        _configure(environment, given.every, f"sc://127.0.0.1:{spark.port}")
        _measure(environment, spark.pid, 60 * given.minutes, given.per_second)
    return 0


def _configure(environment: Environment, every: str, remote: str) -> None:
    environment.configure(every=every, session="15m")
    settings = yaml.safe_load(environment.config.read_text())
    settings["spark"] = {"remote": remote}
    environment.config.write_text(yaml.safe_dump(settings))
    (text,) = re.findall(r"```python\n(import dagster as dg\n.*?)```", _PAGE.read_text(), re.DOTALL)
    for old, new in (
        ("orders.new", environment.topics[0]),
        ("/var/lib/shop/invoices", str(environment.folder / "invoices")),
    ):
        text = text.replace(old, new)
    (environment.folder / "project.py").write_text(text)
    (environment.folder / "workspace.yaml").write_text(_WORKSPACE)


def _measure(environment: Environment, spark: int, seconds: float, per_second: int) -> None:
    (topic,) = environment.topics
    variables = dagster_variables(environment.folder)
    with running(environment.folder, environment=variables) as dagster:
        dagster.start_sensor(environment.planner)
        used = {"Dagster and its runs": _Used(dagster.process.pid), "Spark": _Used(spark)}
        with writing(environment.source, topic, per_second):
            samples = list(_samples(environment, topic, seconds, used.values()))
        _print(environment, samples)
        for name, found in used.items():
            print(f"CPU of {name}: {found.seconds / seconds:.2f} cores")


class _Used:
    """CPU seconds of a process and all below it, those included that have ended."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._latest: dict[psutil.Process, float] = {}
        self.look()
        self._before = sum(self._latest.values())

    def look(self) -> None:
        """Take what they have used so far."""
        for process in [self._root, *self._root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                self._latest[process] = float(sum(process.cpu_times()[:2]))

    @property
    def seconds(self) -> float:
        """What they have used since the first look."""
        return sum(self._latest.values()) - self._before


def _samples(
    environment: Environment, topic: str, seconds: float, used: Collection[_Used]
) -> Iterator[Sample]:
    end, instance = time.monotonic() + seconds, environment.instance
    queued = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED])
    while time.monotonic() < end:
        time.sleep(_SAMPLE_SECONDS)
        for one in used:
            one.look()
        yield Sample(
            len(instance.get_materialized_partitions(mirrored(topic))),
            len(instance.get_materialized_partitions(_ASSET)),
            instance.get_runs_count(queued),
        )


def _print(environment: Environment, samples: Sequence[Sample]) -> None:
    runs = [
        record
        for record in environment.instance.get_run_records()
        if _ASSET in (record.dagster_run.asset_selection or ())
    ]
    spans = [(one.end_time or 0) - (one.start_time or 0) for one in runs if one.end_time]
    print(
        f"{samples[-1].copied} windows copied, {samples[-1].followed} followed in {len(runs)} runs"
    )
    print(f"a run: median {statistics.median(spans):.1f} s, slowest {max(spans):.1f} s")
    failed = [one for one in runs if one.dagster_run.status is dg.DagsterRunStatus.FAILURE]
    for record in failed:
        for entry in environment.instance.all_logs(record.dagster_run.run_id):
            if entry.dagster_event is not None and entry.dagster_event.is_failure:
                print(entry.message)
    print(
        f"failed runs: {len(failed)}; most runs in the queue: {max(one.queued for one in samples)}"
    )
    quarter = max(1, len(samples) // 4)
    for number, start in enumerate(range(0, 4 * quarter, quarter), 1):
        waiting = [one.copied - one.followed for one in samples[start : start + quarter]]
        if waiting:
            print(f"quarter {number}: windows that wait: {min(waiting)} to {max(waiting)}")


if __name__ == "__main__":
    sys.exit(main())

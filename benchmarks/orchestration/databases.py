"""What windows cost Dagster's database: SQLite beside PostgreSQL, and pruners beside each other.

`python -m benchmarks.orchestration.databases [--topics N ...]`: a run stores windows of so many
topics with news, and the oldest of them are deleted. No broker: the windows are made up. PostgreSQL
is a server of its own on this machine.
"""

# no `from __future__ import annotations`: Dagster looks at the annotation of an op's context

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
import yaml

from relay_pipelines.audit.coverage import CoverageMap
from relay_pipelines.audit.recount import DestinationCount, Recount
from relay_pipelines.audit.verdict import Tally
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.orchestration import naming, shortcuts, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.settings import WindowSettings
from relay_pipelines.windows import window_events
from relay_pipelines.windows.window_run import TopicReport, WindowReport
from tests.support.postgres import Postgres

_TOPICS = (1, 100, 1_000)
_WINDOWS = 12
_WARM = 2
_PRUNERS = 4
_NOBODY = Cluster("destination", ("127.0.0.1:1",))
_BEGAN_MS = 1_790_000_000_000


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.databases")
    parser.add_argument("--topics", type=int, nargs="+", default=_TOPICS)
    parser.add_argument("--prune", nargs=3, metavar=("FOLDER", "TOPICS", "LAST"))
    wanted = parser.parse_args()
    if wanted.prune:
        folder, topics, last = wanted.prune
        _prune(Path(folder), int(topics), int(last))
        return
    print(f"load average: {os.getloadavg()[0]:.1f}")
    titles = ("topics", "database", "a window: s", "CPU s", "kB a topic", "pruned: s", "CPU s")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}", flush=True)
    for topics in wanted.topics:
        with TemporaryDirectory(prefix="relay-database-") as folder:
            _measure("SQLite", Path(folder), topics, {"sqlite": {"base_dir": f"{folder}/var"}})
        with TemporaryDirectory(prefix="relay-database-") as folder, closing(Postgres()) as server:
            _measure("PostgreSQL", Path(folder), topics, _postgres(server), server)
    print(f"load average: {os.getloadavg()[0]:.1f}")


def _postgres(server: Postgres) -> dict[str, Any]:
    url = f"postgresql+psycopg2://dagster@127.0.0.1:{server.port}/dagster"
    return {"postgres": {"postgres_url": url}}


def _measure(
    name: str, folder: Path, topics: int, storage: dict[str, Any], server: Postgres | None = None
) -> None:
    (folder / "dagster.yaml").write_text(
        yaml.safe_dump({"storage": storage, "telemetry": {"enabled": False}})
    )
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        stored: list[tuple[float, float]] = []
        sizes: list[int] = []

        def run(context: dg.OpExecutionContext) -> Iterator[Any]:
            for number in range(_WINDOWS):
                began, cpu = time.monotonic(), time.process_time()
                yield from shortcuts.stored(context, _window(context, topics, number))
                stored.append((time.monotonic() - began, time.process_time() - cpu))
                sizes.append(_size(folder, server))

        op = dg.op(name="copy", out={})(run)
        job = dg.GraphDefinition("mirror", node_defs=[op]).to_job(
            executor_def=dg.in_process_executor
        )
        assert job.execute_in_process(instance=instance).success
        kept = stored[_WARM:]
        kilobytes = (sizes[-1] - sizes[_WARM - 1]) / len(kept) / topics / 1000
        pruned = []
        for number in range(_WARM):
            began, cpu = time.monotonic(), time.process_time()
            _delete(instance, topics, [number])
            pruned.append((time.monotonic() - began, time.process_time() - cpu))
        row = (
            *(
                f"{topics:,}",
                name,
                *(f"{sum(each) / len(kept):.2f}" for each in zip(*kept, strict=True)),
            ),
            f"{kilobytes:.1f}",
            *(f"{sum(each) / len(pruned):.2f}" for each in zip(*pruned, strict=True)),
        )
        print(f"| {' | '.join(row)} |", flush=True)
        if topics > 1:
            _prune_at_once(instance, folder, name, topics)


def _lane(topics: int) -> Lane:
    names = tuple(f"busy-{number:05}" for number in range(topics))
    return Lane("m", naming.MAIN, WindowSettings(), names)


def _window(context: dg.OpExecutionContext, topics: int, number: int) -> Iterator[Batch]:
    """A window in which each topic has one record."""
    lane = _lane(topics)
    ranges = tuple(
        OffsetRange(TopicPartition(topic, 0), number, number + 1) for topic in lane.topics
    )
    frozen = FrozenWindow(_key(number), ranges, "a", _BEGAN_MS)
    reports = [_topic(each) for each in ranges]
    result = RunResult(
        *("m", context.run_id, {}), spark="local-1 at http://127.0.0.1:4040", seconds=1.0
    )
    report = WindowReport(frozen, "a", reports, result, (), 0.1)
    yield from window_log.freeze(context.instance, lane, frozen, _NOBODY)
    yield list(window_events.of_window(context.run_id, lane, report))


def _topic(planned: OffsetRange) -> TopicReport:
    scanned = OffsetRange(planned.topic_partition, 2 * planned.start, 2 * planned.end)
    count = DestinationCount(planned, scanned, Tally(1, 1, 1))
    count.first_ms = count.last_ms = _BEGAN_MS
    found = Recount(CoverageMap(planned), [count])
    return TopicReport(
        planned.topic_partition.topic,
        ranges=[planned],
        totals=TopicTotals(records=1, size_bytes=80, upstreams={"a"}, latency_ms=2_500),
        recounts={planned.topic_partition: found},
        lag_before=1,
        end_offsets={planned.topic_partition: planned.end},
        copying_seconds=0.1,
        source_rate=0.2,
    )


def _key(number: int) -> str:
    return naming.window_key(_BEGAN_MS + 1000 * number, 0)


def _delete(instance: dg.DagsterInstance, topics: int, numbers: Sequence[int]) -> None:
    lane = _lane(topics)
    assets = [naming.mirrored_asset(lane.path, topic) for topic in lane.topics]
    shortcuts.delete_evaluations(instance, {_key(number): assets for number in numbers})
    names = [naming.windows_name(lane.path, topic) for topic in lane.topics]
    for number in numbers:
        shortcuts.delete_key(
            instance, [*names, naming.plans_name(lane.path, lane.name)], _key(number)
        )


def _prune_at_once(instance: dg.DagsterInstance, folder: Path, name: str, topics: int) -> None:
    """Let processes delete the same windows at once; each may find nothing left."""
    last = _WINDOWS - 2
    command = [sys.executable, "-m", "benchmarks.orchestration.databases", "--prune", str(folder)]
    began = time.monotonic()
    pruners = [
        subprocess.Popen([*command, str(topics), str(last)], stderr=subprocess.PIPE, text=True)
        for _ in range(_PRUNERS)
    ]
    errors = [pruner.communicate()[1] for pruner in pruners]
    failed = [error for pruner, error in zip(pruners, errors, strict=True) if pruner.returncode]
    plans = naming.plans_name("m", naming.MAIN)
    assert instance.get_dynamic_partitions(plans) == [_key(_WINDOWS - 1)], "a window is left"
    says = Counter(error.strip().splitlines()[-1] for error in failed)
    print(
        f"{name}, {topics} topics: {_PRUNERS} pruners of {last + 1 - _WARM} windows at once:"
        f" {time.monotonic() - began:.1f} s, {len(failed)} failed {dict(says) or ''}",
        flush=True,
    )


def _prune(folder: Path, topics: int, last: int) -> None:
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        _delete(instance, topics, range(last + 1))


def _size(folder: Path, server: Postgres | None) -> int:
    if server is None:
        return sum(path.stat().st_size for path in (folder / "var").rglob("*.db*"))
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size('dagster')")
        return int(cursor.fetchone()[0])


if __name__ == "__main__":
    main()

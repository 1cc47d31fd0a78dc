"""A database with very many old windows: ticks, and queries of the asset page."""

from __future__ import annotations

import datetime as dt
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import dagster as dg

from benchmarks.orchestration.environment import (
    MIRROR,
    Environment,
    dagster_variables,
    last_run,
    mirrored,
)
from benchmarks.orchestration.figures import Crowded, Kept, slowest, spent
from benchmarks.orchestration.idle import ticks
from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.orchestration import naming
from relay_pipelines.sensors.pruning import WINDOWS_PER_TICK
from relay_pipelines.settings import WindowSettings

_TOPICS = 2
_REPEATED = 5
_DAEMON_SECONDS = 45.0
_STATUSES = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  id partitionKeysByDimension { name type partitionKeys }
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions materializingPartitions failedPartitions unmaterializedPartitions } } } }
    }"""
_LATEST = """query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
  assetMaterializations(limit: 100) { runId partition timestamp description tags { key value }
    metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }"""
_ONE = """query($key: AssetKeyInput!, $window: String!) { assetNodeOrError(assetKey: $key) { ... on
  AssetNode { latestRunForPartition(partition: $window) { id status endTime }
  assetMaterializations(partitions: [$window], limit: 1) { runId timestamp metadataEntries { label }
  } } } }"""


def measure(environment: Environment, windows: int, progress: Callable[[str], None]) -> Crowded:
    """Multiply the newest window, then measure with all windows and with the default `keep`."""
    began, default = time.monotonic(), min(WindowSettings().keep, windows // 5)
    written = _multiply(environment, windows)
    progress(f"{windows:,} windows written in {time.monotonic() - began:.0f} s")
    whole = _kept(environment, windows, progress)
    runs = (_run_id(default + 1), _run_id(windows))
    _prune(environment, written[0], written[windows - default - 1], runs)
    return Crowded(windows, whole, _kept(environment, default, progress))


def _kept(environment: Environment, windows: int, progress: Callable[[str], None]) -> Kept:
    environment.configure(keep=10 * windows)
    size_bytes = sum(
        file.stat().st_size for file in (_events_file(environment), _runs_file(environment))
    )
    found = {"nothing new": slowest([spent(environment.ticker().tick) for _ in range(_REPEATED)])}
    environment.fill(environment.topics[:_TOPICS], 200)
    found["a run is requested"] = spent(environment.ticker().tick)
    before = environment.newest()
    environment.run()
    assert environment.newest() > before
    environment.configure(keep=windows // 2)
    ticker, present = environment.ticker(), len(environment.windows())
    found[f"{WINDOWS_PER_TICK} old windows are pruned"] = slowest(
        [spent(ticker.tick) for _ in range(_REPEATED)]
    )
    assert present - len(environment.windows()) == WINDOWS_PER_TICK * _REPEATED
    for name, figures in found.items():
        progress(f"tick, {name}: {figures.seconds:.2f} s, {figures.cpu_seconds:.2f} CPU-s")
    with running(environment.folder, environment=dagster_variables(environment.folder)) as dagster:
        dagster.sensors()  # a browser requests the workspace before it can show an asset
        queries = _queries(environment, dagster)
        progress(f"queries: {queries}")
        dagster.start_sensor(environment.planner)
        began = time.time()
        time.sleep(_DAEMON_SECONDS)
        daemon_ticks = ticks(dagster, environment.planner, began)
    progress(f"ticks of the daemon: {daemon_ticks}")
    return Kept(windows, size_bytes, found, daemon_ticks, queries)


def _queries(environment: Environment, dagster: Dagster) -> dict[str, tuple[float, float]]:
    topic, plan, window = (
        mirrored(environment.topics[0]),
        naming.windows_asset(MIRROR, environment.lane.name),
        environment.newest(),
    )
    return {
        "a topic: windows and their statuses": _asked(dagster, _STATUSES, topic),
        "the plan: windows and their statuses": _asked(dagster, _STATUSES, plan),
        "a topic: the last 100 materialisations": _asked(dagster, _LATEST, topic),
        "the plan: the last 100 materialisations": _asked(dagster, _LATEST, plan),
        "a topic: one window, its run and materialisation": _asked(
            dagster, _ONE, topic, window=window
        ),
    }


def _asked(dagster: Dagster, query: str, key: dg.AssetKey, **more: str) -> tuple[float, float]:
    variables: Mapping[str, Any] = {"key": {"path": list(key.path)}, **more}
    found = [spent(lambda: dagster.ask(query, variables)).seconds for _ in range(1 + _REPEATED)]
    return found[0], median(found[1:])


def _events_file(environment: Environment) -> Path:
    return environment.folder / "var" / "dagster" / "history" / "runs" / "index.db"


def _runs_file(environment: Environment) -> Path:
    return environment.folder / "var" / "dagster" / "history" / "runs.db"


def _multiply(environment: Environment, windows: int) -> list[str]:
    """Copy the newest window: key, plan, run, and the events of a few topics.

    This writes directly into SQLite, because Dagster's own interface would take half an hour.
    """
    window, lane = environment.newest(), environment.lane
    run_id = last_run(environment.instance)
    newest_ms = int(dt.datetime.fromisoformat(naming.planned_at(window)).timestamp() * 1000)
    copies = [
        (naming.window_key(newest_ms - 1000 * number, 0), _run_id(number))
        for number in range(windows, 0, -1)
    ]
    written = [key for key, _ in copies]
    sets = [naming.windows_name(MIRROR, topic) for topic in environment.topics[:_TOPICS]]
    for name in (naming.plans_name(MIRROR, lane.name), *sets):
        environment.instance.add_dynamic_partitions(name, written)
    texts = [naming.windows_asset(MIRROR, lane.name).to_string(), *_few(environment)]
    with closing(sqlite3.connect(_events_file(environment))) as database, database:
        for table in ("event_logs", "asset_check_executions"):
            _copy(
                database,
                table,
                f"partition = ? and asset_key in ({_marks(texts)})",
                [window, *texts],
                window,
                run_id,
                copies,
            )
    with closing(sqlite3.connect(_runs_file(environment))) as database, database:
        for table in ("runs", "run_tags"):
            _copy(database, table, "run_id = ?", [run_id], window, run_id, copies)
    return written


def _run_id(number: int) -> str:
    """A run's id; those of older windows are larger."""
    return str(uuid.UUID(int=number))


def _prune(environment: Environment, first: str, last: str, runs: tuple[str, str]) -> None:
    """Delete what pruning deletes of these windows and runs, directly in SQLite."""
    between = (first, last)
    with closing(sqlite3.connect(_events_file(environment))) as database, database:
        for topic in _few(environment):
            database.execute(
                "delete from event_logs where asset_key = ? and partition between ? and ?",
                (topic, *between),
            )
        database.execute("delete from dynamic_partitions where partition between ? and ?", between)
    with closing(sqlite3.connect(_runs_file(environment))) as database, database:
        for table in ("runs", "run_tags"):
            database.execute(f"delete from {table} where run_id between ? and ?", runs)


def _few(environment: Environment) -> list[str]:
    """The topics with events in the copied windows."""
    return [mirrored(topic).to_string() for topic in environment.topics[:_TOPICS]]


def _copy(
    database: sqlite3.Connection,
    table: str,
    where: str,
    values: Sequence[str],
    window: str,
    run_id: str,
    copies: Sequence[tuple[str, str]],
) -> None:
    # in order of id: Dagster regards a window as incomplete if its plan is after its
    # materialisation
    cursor = database.execute(f"select * from {table} where {where} order by id", values)
    names = [column[0] for column in cursor.description if column[0] != "id"]
    at = [number for number, one in enumerate(cursor.description) if one[0] != "id"]
    rows = [[row[number] for number in at] for row in cursor]
    statement = f"insert into {table} ({', '.join(names)}) values ({_marks(names)})"
    for key, new_run in copies:
        changed = [
            [
                value.replace(window, key).replace(run_id, new_run)
                if isinstance(value, str)
                else value
                for value in row
            ]
            for row in rows
        ]
        database.executemany(statement, changed)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" for _ in values)

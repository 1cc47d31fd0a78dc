"""A database that holds very many old windows: ticks, and the queries of the asset page."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import dagster as dg

from benchmarks.orchestration.figures import Crowded, slowest, spent
from benchmarks.orchestration.idle import ticks
from benchmarks.orchestration.scene import MIRROR, Scene, mirrored, run_of, surroundings
from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.lanes import keys

_TOPICS = 2
_REPEATED = 5
_DAEMON_SECONDS = 45.0
_STATUSES = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  id partitionKeysByDimension { name type partitionKeys }
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions materializingPartitions failedPartitions unmaterializedPartitions } } } } }"""
_LATEST = """query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
  assetMaterializations(limit: 100) { runId partition timestamp description tags { key value }
    metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }"""
_ONE = """query($key: AssetKeyInput!, $window: String!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  latestRunForPartition(partition: $window) { id status endTime }
  assetMaterializations(partitions: [$window], limit: 1) { runId timestamp metadataEntries { label } } } } }"""


def measure(scene: Scene, windows: int, progress: Callable[[str], None]) -> Crowded:
    """Multiply the newest window, then tick and ask."""
    began = time.monotonic()
    _multiply(scene, windows)
    scene.configure(keep=10 * windows)
    progress(f"{windows:,} windows written in {time.monotonic() - began:.0f} s")
    size_bytes = sum(one.stat().st_size for one in (_events_file(scene), _runs_file(scene)))
    found = {"nothing new": slowest([spent(scene.ticker().tick) for _ in range(_REPEATED)])}
    scene.fill(scene.topics[:_TOPICS], 200)
    time.sleep(1.1)  # a window is cut once a second at most
    ticker, before = scene.ticker(), scene.newest()
    found["a new window is cut"] = spent(ticker.tick)
    assert scene.newest() > before
    scene.run(scene.newest())
    scene.configure(keep=windows // 2)
    ticker, present = scene.ticker(), len(_present(scene))
    found["20 old windows are pruned"] = slowest([spent(ticker.tick) for _ in range(_REPEATED)])
    assert present - len(_present(scene)) == 20 * _REPEATED
    for name, one in found.items():
        progress(f"tick, {name}: {one.seconds:.2f} s, {one.cpu_seconds:.2f} CPU-s")
    with running(scene.folder, environment=surroundings(scene.folder)) as dagster:
        dagster.sensors()  # a browser asks for the workspace before it can show an asset
        queries = _queries(scene, dagster)
        progress(f"queries: {queries}")
        dagster.start_sensor(scene.planner)
        began = time.time()
        time.sleep(_DAEMON_SECONDS)
        daemon_ticks = ticks(dagster, scene.planner, began)
    progress(f"ticks of the daemon: {daemon_ticks}")
    return Crowded(windows, size_bytes, found, daemon_ticks, queries)


def _present(scene: Scene) -> Sequence[str]:
    return scene.instance.get_dynamic_partitions(scene.lane.partitions_name)


def _queries(scene: Scene, dagster: Dagster) -> dict[str, tuple[float, float]]:
    topic, plan, window = mirrored(scene.topics[0]), keys.windows(MIRROR, scene.lane.name), scene.newest()
    return {
        "a topic: windows and their statuses": _asked(dagster, _STATUSES, topic),
        "the plan: windows and their statuses": _asked(dagster, _STATUSES, plan),
        "a topic: the last 100 materialisations": _asked(dagster, _LATEST, topic),
        "the plan: the last 100 materialisations": _asked(dagster, _LATEST, plan),
        "a topic: one window, its run and materialisation": _asked(dagster, _ONE, topic, window=window),
    }


def _asked(dagster: Dagster, query: str, key: dg.AssetKey, **more: str) -> tuple[float, float]:
    variables: Mapping[str, Any] = {"key": {"path": list(key.path)}, **more}
    found = [spent(lambda: dagster.ask(query, variables)).seconds for _ in range(1 + _REPEATED)]
    return found[0], median(found[1:])


def _events_file(scene: Scene) -> Path:
    return scene.folder / "var" / "dagster" / "history" / "runs" / "index.db"


def _runs_file(scene: Scene) -> Path:
    return scene.folder / "var" / "dagster" / "history" / "runs.db"


def _multiply(scene: Scene, windows: int) -> None:
    """Write old windows as copies of the newest: their keys and plans, their runs, and what these say of a few topics.

    Straight into SQLite: through Dagster's own interface it would take half an hour.
    """
    window, lane = scene.newest(), scene.lane
    run_id = run_of(scene.instance, window)
    copies = [
        (keys.window(MIRROR, lane.name, number), str(uuid.uuid4()))
        for number in range(keys.number(window) + 1, keys.number(window) + 1 + windows)
    ]
    scene.instance.add_dynamic_partitions(lane.partitions_name, [key for key, _ in copies])
    assets = [keys.windows(MIRROR, lane.name), *(mirrored(topic) for topic in scene.topics[:_TOPICS])]
    texts = [one.to_string() for one in assets]
    with closing(sqlite3.connect(_events_file(scene))) as database, database:
        for table in ("event_logs", "asset_check_executions"):
            _copy(database, table, f"partition = ? and asset_key in ({_marks(texts)})", [window, *texts], window, run_id, copies)
    with closing(sqlite3.connect(_runs_file(scene))) as database, database:
        for table in ("runs", "run_tags"):
            _copy(database, table, "run_id = ?", [run_id], window, run_id, copies)


def _copy(
    database: sqlite3.Connection,
    table: str,
    where: str,
    values: Sequence[str],
    window: str,
    run_id: str,
    copies: Sequence[tuple[str, str]],
) -> None:
    # in their order: Dagster takes a window for unfinished if it was planned after it was materialised
    cursor = database.execute(f"select * from {table} where {where} order by id", values)
    names = [one[0] for one in cursor.description if one[0] != "id"]
    at = [number for number, one in enumerate(cursor.description) if one[0] != "id"]
    rows = [[row[number] for number in at] for row in cursor]
    statement = f"insert into {table} ({', '.join(names)}) values ({_marks(names)})"
    for key, new_run in copies:
        changed = [
            [one.replace(window, key).replace(run_id, new_run) if isinstance(one, str) else one for one in row] for row in rows
        ]
        database.executemany(statement, changed)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" for _ in values)

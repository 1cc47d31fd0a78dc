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

from benchmarks.orchestration.figures import Crowded, Kept, slowest, spent
from benchmarks.orchestration.idle import ticks
from benchmarks.orchestration.scene import MIRROR, Scene, mirrored, run_of, surroundings
from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.lanes import naming
from relay_pipelines.sensors.attempts import PARTITION
from relay_pipelines.sensors.planner import PRUNED_PER_TICK
from relay_pipelines.settings.windows import WindowSettings

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


def measure(scene: Scene, windows: int, progress: Callable[[str], None]) -> Crowded:
    """Multiply the newest window, then tick and ask: with all in view, then as pruning leaves it with the default of `keep`."""
    began, default = time.monotonic(), min(WindowSettings().keep, windows // 5)
    written = _multiply(scene, windows)
    progress(f"{windows:,} windows written in {time.monotonic() - began:.0f} s")
    whole = _kept(scene, windows, progress)
    _forget(scene, written[0], written[windows - default - 1])
    return Crowded(windows, whole, _kept(scene, default, progress))


def _kept(scene: Scene, windows: int, progress: Callable[[str], None]) -> Kept:
    scene.configure(keep=10 * windows)
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
    found[f"{PRUNED_PER_TICK} old windows are pruned"] = slowest(
        [spent(ticker.tick) for _ in range(_REPEATED)]
    )
    assert present - len(_present(scene)) == PRUNED_PER_TICK * _REPEATED
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
    return Kept(windows, size_bytes, found, daemon_ticks, queries)


def _present(scene: Scene) -> Sequence[str]:
    return scene.instance.get_dynamic_partitions(scene.lane.partitions_name)


def _queries(scene: Scene, dagster: Dagster) -> dict[str, tuple[float, float]]:
    topic, plan, window = (
        mirrored(scene.topics[0]),
        naming.windows(MIRROR, scene.lane.name),
        scene.newest(),
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


def _events_file(scene: Scene) -> Path:
    return scene.folder / "var" / "dagster" / "history" / "runs" / "index.db"


def _runs_file(scene: Scene) -> Path:
    return scene.folder / "var" / "dagster" / "history" / "runs.db"


def _multiply(scene: Scene, windows: int) -> list[str]:
    """Write old windows as copies of the newest: their keys and plans, their runs, and what these say of a few topics.

    Straight into SQLite: through Dagster's own interface it would take half an hour.
    """
    window, lane = scene.newest(), scene.lane
    run_id = run_of(scene.instance, window)
    copies = [
        (naming.window(MIRROR, lane.name, number), str(uuid.uuid4()))
        for number in range(naming.number(window) + 1, naming.number(window) + 1 + windows)
    ]
    written = [key for key, _ in copies]
    scene.instance.add_dynamic_partitions(lane.partitions_name, written)
    texts = [naming.windows(MIRROR, lane.name).to_string(), *_few(scene)]
    with closing(sqlite3.connect(_events_file(scene))) as database, database:
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
    with closing(sqlite3.connect(_runs_file(scene))) as database, database:
        for table in ("runs", "run_tags"):
            _copy(database, table, "run_id = ?", [run_id], window, run_id, copies)
    return written


def _forget(scene: Scene, first: str, last: str) -> None:
    """Leave of the windows from the first to the last what pruning leaves; its way would take half an hour, too."""
    between = (first, last)
    with closing(sqlite3.connect(_events_file(scene))) as database, database:
        for topic in _few(scene):
            database.execute(
                "delete from event_logs where asset_key = ? and partition between ? and ?",
                (topic, *between),
            )
        database.execute("delete from dynamic_partitions where partition between ? and ?", between)
    with closing(sqlite3.connect(_runs_file(scene))) as database, database:
        runs = "select run_id from run_tags where key = ? and value between ? and ?"
        database.execute(f"delete from runs where run_id in ({runs})", (PARTITION, *between))
        database.execute(f"delete from run_tags where run_id in ({runs})", (PARTITION, *between))


def _few(scene: Scene) -> list[str]:
    """The topics of which runs said something."""
    return [mirrored(topic).to_string() for topic in scene.topics[:_TOPICS]]


def _copy(
    database: sqlite3.Connection,
    table: str,
    where: str,
    values: Sequence[str],
    window: str,
    run_id: str,
    copies: Sequence[tuple[str, str]],
) -> None:
    # in their order: Dagster takes a window for unfinished if it was planned after it was
    # materialised
    cursor = database.execute(f"select * from {table} where {where} order by id", values)
    names = [one[0] for one in cursor.description if one[0] != "id"]
    at = [number for number, one in enumerate(cursor.description) if one[0] != "id"]
    rows = [[row[number] for number in at] for row in cursor]
    statement = f"insert into {table} ({', '.join(names)}) values ({_marks(names)})"
    for key, new_run in copies:
        changed = [
            [
                one.replace(window, key).replace(run_id, new_run) if isinstance(one, str) else one
                for one in row
            ]
            for row in rows
        ]
        database.executemany(statement, changed)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" for _ in values)

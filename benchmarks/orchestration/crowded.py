"""A database that holds very many old windows: ticks, and the queries of the asset page."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import dagster as dg

from benchmarks.orchestration.figures import Crowded, Kept, slowest, spent
from benchmarks.orchestration.idle import ticks
from benchmarks.orchestration.scene import MIRROR, Scene, mirrored, run_of, surroundings
from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.lanes import keys
from relay_pipelines.sensors.planner import PRUNED_PER_TICK
from relay_pipelines.settings.windows import WindowSettings

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
    """Multiply the newest window, then tick and ask: as pruning leaves it with the default of `keep`, then with all in view."""
    began, copying = time.monotonic(), _Copying.of(scene.newest(), scene)
    first = keys.number(copying.window) + 1
    default = WindowSettings().keep if windows > WindowSettings().keep else windows // 5
    old, last = _numbered(scene, first, first + windows - default), _numbered(scene, first + windows - default, first + windows)
    copying.plans([*old, *last])
    copying.runs(last)
    progress(f"{windows:,} windows written, {len(last):,} of them in view, in {time.monotonic() - began:.0f} s")
    pruned = _kept(scene, len(last), progress)
    copying.runs(old)
    whole = _kept(scene, windows, progress)
    return Crowded(windows, pruned, whole)


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
    found[f"{PRUNED_PER_TICK} old windows are pruned"] = slowest([spent(ticker.tick) for _ in range(_REPEATED)])
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


def _numbered(scene: Scene, start: int, end: int) -> list[tuple[str, str]]:
    """Window keys, each with the id of its run."""
    return [(keys.window(MIRROR, scene.lane.name, number), str(uuid.uuid4())) for number in range(start, end)]


@dataclass(frozen=True, slots=True)
class _Copying:
    """Old windows as copies of one: straight into SQLite, as through Dagster's own interface it would take half an hour."""

    scene: Scene
    window: str
    run_id: str

    @staticmethod
    def of(window: str, scene: Scene) -> _Copying:
        return _Copying(scene, window, run_of(scene.instance, window))

    def plans(self, copies: Sequence[tuple[str, str]]) -> None:
        """What stays of every window: its plan, and what the checks of a few topics found."""
        topics = [mirrored(topic).to_string() for topic in self.scene.topics[:_TOPICS]]
        plan = keys.windows(MIRROR, self.scene.lane.name).to_string()
        with closing(sqlite3.connect(_events_file(self.scene))) as database, database:
            self._copy(database, "event_logs", "partition = ? and asset_key = ?", [self.window, plan], copies)
            wanted = f"partition = ? and asset_key in ({_marks(topics)})"
            self._copy(database, "asset_check_executions", wanted, [self.window, *topics], copies)

    def runs(self, copies: Sequence[tuple[str, str]]) -> None:
        """What is pruned: its key, its run, and what that said of a few topics."""
        self.scene.instance.add_dynamic_partitions(self.scene.lane.partitions_name, [key for key, _ in copies])
        topics = [mirrored(topic).to_string() for topic in self.scene.topics[:_TOPICS]]
        with closing(sqlite3.connect(_events_file(self.scene))) as database, database:
            wanted = f"partition = ? and asset_key in ({_marks(topics)})"
            self._copy(database, "event_logs", wanted, [self.window, *topics], copies)
        with closing(sqlite3.connect(_runs_file(self.scene))) as database, database:
            for table in ("runs", "run_tags"):
                self._copy(database, table, "run_id = ?", [self.run_id], copies)

    def _copy(
        self, database: sqlite3.Connection, table: str, where: str, values: Sequence[str], copies: Sequence[tuple[str, str]]
    ) -> None:
        # in their order: Dagster takes a window for unfinished if it was planned after it was materialised
        cursor = database.execute(f"select * from {table} where {where} order by id", values)
        names = [one[0] for one in cursor.description if one[0] != "id"]
        at = [number for number, one in enumerate(cursor.description) if one[0] != "id"]
        rows = [[row[number] for number in at] for row in cursor]
        statement = f"insert into {table} ({', '.join(names)}) values ({_marks(names)})"
        for key, new_run in copies:
            changed = [
                [one.replace(self.window, key).replace(self.run_id, new_run) if isinstance(one, str) else one for one in row]
                for row in rows
            ]
            database.executemany(statement, changed)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" for _ in values)

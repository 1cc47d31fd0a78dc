"""New data in some of many topics: the planner's tick, the run, and `relay run`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from dagster import DagsterEventType, EventLogEntry

from benchmarks.orchestration.environment import (
    Environment,
    last_run,
    mirrored,
    process_variables,
)
from benchmarks.orchestration.figures import Busy, Spent, middle, spent
from tests.support.independent import until

_RECORDS = 2_000
_FIRST_RECORDS = 200
_IDLE_TICKS = 5
_SESSION_EVERY_SECONDS = 60
_DEFINITIONS = """\
import json, time, dagster
wall, cpu = time.perf_counter(), time.process_time()
from relay_pipelines.definitions import defs
defs().get_repository_def()
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""


def measure(environment: Environment, busy_topics: int, progress: Callable[[str], None]) -> Busy:
    """Mirror everything once, then measure one window."""
    environment.fill(environment.topics, _FIRST_RECORDS)
    result = environment.ticker().tick()
    assert result.run_requests, result.skip_reason
    first = environment.run()
    progress(
        f"first window, {len(environment.topics)} topics: {first.seconds:.1f} s,"
        f" {first.cpu_seconds:.1f} CPU-s"
    )
    environment.command()
    ticker = environment.ticker()
    ticker.tick()
    busy = environment.topics[:: len(environment.topics) // busy_topics]
    idle = [spent(ticker.tick) for _ in range(_IDLE_TICKS)]
    environment.fill(busy, _RECORDS)
    tick = spent(ticker.tick)
    began = time.time()
    run = environment.run()
    records = environment.instance.all_logs(last_run(environment.instance))
    phases = _phases(records, began, began + run.seconds)
    progress(
        f"window, {len(busy)} of {len(environment.topics)} topics: {run.seconds:.1f} s,"
        f" {run.cpu_seconds:.1f} CPU-s; {phases}"
    )
    command = environment.command()
    progress(f"command: {command.seconds:.1f} s, {command.cpu_seconds:.1f} CPU-s")
    return Busy(
        topics=len(environment.topics),
        busy_topics=len(busy),
        records=len(busy) * _RECORDS,
        definitions=_definitions(environment),
        tick=tick,
        idle_tick=middle(idle),
        run=run,
        phases=phases,
        events=len(records),
        command=command,
        session=_session(environment, busy, progress),
    )


def _session(
    environment: Environment, busy: Sequence[str], progress: Callable[[str], None]
) -> Spent:
    """Measure the second window of a session, from its plan to its last materialisation."""
    environment.configure(session="10m", every=f"{_SESSION_EVERY_SECONDS}s")
    environment.fill(busy, _FIRST_RECORDS)
    earlier = last_run(environment.instance)

    def windows(count: int) -> Callable[[], bool]:
        def written() -> bool:
            run = last_run(environment.instance)
            return run != earlier and _written(environment, run) == count * len(busy)

        return written

    with environment.session() as session:
        until(windows(1), "the first window", 120)
        began = time.monotonic()
        environment.fill(busy, _RECORDS)
        assert time.monotonic() - began < _SESSION_EVERY_SECONDS / 2, "too slow to write a window"
        before = session.cpu_seconds()
        until(windows(2), "the second window", 120)
        cpu_seconds = session.cpu_seconds() - before
        materialised = environment.instance.all_logs(
            last_run(environment.instance), DagsterEventType.ASSET_MATERIALIZATION
        )
    plan = materialised[len(busy) + 1]  # of the second window
    found = Spent(materialised[-1].timestamp - plan.timestamp, cpu_seconds)
    environment.configure()
    progress(f"window of a session: {found.seconds:.1f} s, {found.cpu_seconds:.1f} CPU-s")
    return found


def _written(environment: Environment, run: str) -> int:
    """The number of materialisations of topics by a run."""
    records = environment.instance.all_logs(run, DagsterEventType.ASSET_MATERIALIZATION)
    topics = {mirrored(topic) for topic in environment.topics}
    found = [record.asset_materialization for record in records]
    return sum(event is not None and event.asset_key in topics for event in found)


def _definitions(environment: Environment) -> Spent:
    found = subprocess.run(
        [sys.executable, "-c", _DEFINITIONS],
        cwd=environment.folder,
        env=process_variables(environment.folder),
        capture_output=True,
        check=True,
    )
    return Spent(*json.loads(found.stdout))


def _phases(records: Sequence[EventLogEntry], began: float, ended: float) -> dict[str, float]:
    """The phases of a run, by its events."""
    step = _when(records, lambda record: record.dagster_event_type is DagsterEventType.STEP_START)
    snapshot = _when(records, lambda record: record.user_message.startswith("copying "))
    spark = _when(records, lambda record: record.user_message.startswith("Spark's start"))
    copied = _when(records, lambda record: record.user_message.startswith("copied "))
    found = [
        record
        for record in records
        if record.dagster_event_type is DagsterEventType.ASSET_MATERIALIZATION
    ][1:]  # the first one is the plan
    last = max(record.timestamp for record in records)
    return {
        "start: Python, Dagster, definitions, the run's first events": step - began,
        "Spark's start": spark - step,
        "snapshot and plan": snapshot - spark,
        "copy": copied - snapshot,
        "recount": found[0].timestamp - copied,
        "materialisations, checks and the other events": last - found[0].timestamp,
        "end: Spark, Python": ended - last,
    }


def _when(records: Sequence[EventLogEntry], wanted: Callable[[EventLogEntry], bool]) -> float:
    return next(record.timestamp for record in records if wanted(record))

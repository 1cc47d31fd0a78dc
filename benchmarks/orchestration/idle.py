"""`dagster dev` with nothing to do."""

from __future__ import annotations

import time

import psutil

from benchmarks.orchestration.environment import MIRROR, Environment, dagster_variables
from benchmarks.orchestration.figures import Idle
from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.orchestration import naming

_SETTLING_SECONDS = 25.0
_TICKS = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { __typename ... on
  Sensor { sensorState { ticks(limit: 30) { timestamp endTimestamp status } } } ... on PythonError {
  message } } }"""
_DONE = {"SKIPPED", "SUCCESS"}


def measure(environment: Environment, seconds: float) -> Idle:
    """Start a planner and a health sensor, and measure the CPU time of all processes."""
    with running(environment.folder, environment=dagster_variables(environment.folder)) as dagster:
        dagster.start_sensor(environment.planner)
        dagster.start_sensor(f"health_{naming.group(MIRROR)}")
        time.sleep(_SETTLING_SECONDS)
        since, began, before = time.time(), time.monotonic(), _cpu_seconds(dagster.process.pid)
        time.sleep(seconds)
        used, lasted = _cpu_seconds(dagster.process.pid) - before, time.monotonic() - began
        return Idle(lasted, used / lasted, ticks(dagster, environment.planner, since))


def ticks(dagster: Dagster, sensor: str, since: float) -> list[float]:
    """The durations of a sensor's ticks in seconds, as the daemon recorded them.

    Args:
        since: seconds since the epoch; earlier ticks are ignored.

    Raises:
        RuntimeError: a tick failed.
    """
    selector = {
        "repositoryName": "__repository__",
        "repositoryLocationName": "relay_pipelines",
        "sensorName": sensor,
    }
    found = dagster.ask(_TICKS, {"s": selector})["sensorOrError"]["sensorState"]["ticks"]
    ended = [tick for tick in found if tick["status"] != "STARTED" and tick["timestamp"] >= since]
    if any(tick["status"] not in _DONE for tick in ended):
        raise RuntimeError(f"a tick of {sensor} failed: {ended}")
    return [tick["endTimestamp"] - tick["timestamp"] for tick in ended]


def _cpu_seconds(pid: int) -> float:
    """The CPU time of a process and its descendants, also of those that have ended."""
    root = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:4]) for process in [root, *root.children(recursive=True)])

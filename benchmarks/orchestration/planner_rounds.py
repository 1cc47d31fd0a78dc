"""Ticks of all planners of a mirror: `planner_rounds.py <folder>`, in the Python of any checkout.

It loads relay.yaml in the folder, whose Dagster instance it makes, ticks once to learn the topics,
and loads it again, as a person does. Then each line of its input, the number of rounds, makes it
tick that often, and answer with a line of JSON: seconds, CPU seconds, requests and connections of
each round. It starts no run. It imports nothing of the benchmarks: those of another checkout
differ.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg

from relay_pipelines.definitions import build
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.resources import kafka_key

_METHODS = {"send": "requests", "call": "requests", "_connect": "connections"}


def main(folder: Path) -> None:
    """Answer the lines of the input until it ends."""
    (home := folder / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        cursors: dict[str, str | None] = {}
        _tick_all(instance, build(folder / "relay.yaml"), cursors)
        loaded = build(folder / "relay.yaml")
        print(json.dumps({"planners": len(_planners(loaded))}), flush=True)
        for line in sys.stdin:
            found = [_measure(instance, loaded, cursors) for _ in range(int(line))]
            print(json.dumps(found), flush=True)


def _measure(
    instance: dg.DagsterInstance, loaded: dg.Definitions, cursors: dict[str, str | None]
) -> dict[str, float]:
    with _counted() as counts:
        began, cpu = time.perf_counter(), time.process_time()
        _tick_all(instance, loaded, cursors)
        spent = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    return {**spent, **counts}


def _tick_all(
    instance: dg.DagsterInstance, loaded: dg.Definitions, cursors: dict[str, str | None]
) -> None:
    """Evaluate all planners one after the other, and apply their results as the daemon does."""
    kafka = (loaded.resources or {})[kafka_key()]
    for sensor in _planners(loaded):
        result = sensor(
            dg.build_sensor_context(
                instance=instance, cursor=cursors.get(sensor.name), resources={kafka_key(): kafka}
            )
        )
        assert isinstance(result, dg.SensorResult)
        cursors[sensor.name] = result.cursor
        for event in result.asset_events:
            instance.report_runless_asset_event(event)


def _planners(loaded: dg.Definitions) -> list[dg.SensorDefinition]:
    sensors = loaded.get_repository_def().sensor_defs
    return [sensor for sensor in sensors if sensor.name.startswith("plan_")]


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count the requests and the connections of this process."""
    counts: Counter[str] = Counter(dict.fromkeys(_METHODS.values(), 0))

    def counted(name: str) -> Any:
        real = getattr(Connection, name)

        def method(self: Connection, *arguments: Any) -> Any:
            counts[_METHODS[name]] += 1
            return real(self, *arguments)

        return patch.object(Connection, name, method)

    with counted("send"), counted("call"), counted("_connect"):
        yield counts


if __name__ == "__main__":
    main(Path(sys.argv[1]))

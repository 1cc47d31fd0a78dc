"""What a suite costs: `python -m benchmarks.expectations [--quick]`.

Five aggregate expectations over a window of a million records, with the Spark session and Great
Expectations warm, must take at most 15 s of Spark's time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import clusters
from benchmarks.inputs import Input
from benchmarks.values import Extent
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.expectations.validation import great_expectations, validate
from relay_pipelines.model import LedgerEntry, Side, Skipped
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from relay_pipelines.spark.session import connect, end
from tests.support import commands

_INPUT = Input("checked", "1 M x 1 KiB, 128 KB batches", 1_000_000, 1024, 128 << 10, partitions=2)
_QUICK_FACTOR = 0.02
_MOST_SECONDS = 15.0
_TOPIC = "checked"
_SUITES: dict[str, list[Any]] = {
    "five aggregates of numbers": [
        {"expect_column_values_to_be_between": {"column": "partition", "min_value": 0}},
        {"expect_column_values_to_not_be_null": {"column": "offset"}},
        {"expect_column_min_to_be_between": {"column": "timestamp_ms", "min_value": 1}},
        {"expect_column_max_to_be_between": {"column": "offset", "min_value": 1}},
        {"expect_column_mean_to_be_between": {"column": "partition", "max_value": 1}},
    ],
    "five aggregates of keys and values": [
        "keys_not_null",
        {"size_below": "1MiB"},
        {"no_pii": ["[0-9]{40}"]},
        {"expect_column_max_to_be_between": {"column": "size", "min_value": 1}},
        {"expect_column_values_to_be_between": {"column": "partition", "min_value": 0}},
    ],
}


def main(arguments: list[str]) -> int:
    """Print the table; 1 if the first suite takes longer than it may."""
    spec = _INPUT.scaled(_QUICK_FACTOR) if "--quick" in arguments else _INPUT
    with clusters.embedded("source") as source, tempfile.TemporaryDirectory() as folder:
        extents = clusters.make_input(source.cluster(), _TOPIC, spec)
        chunks = tuple(map(_entry, extents))
        window = TopicWindow(_TOPIC, "benchmark", chunks, SystemClock().now_ms())
        began = time.monotonic()
        session = connect("local[2]")
        print(f"Spark starts in {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        great_expectations()
        print(f"Great Expectations is imported in {time.monotonic() - began:.1f} s")
        try:
            print(f"| suite, {spec.title} | first: s | warm: s |\n|---|---|---|")
            slowest = 0.0
            for name, suite in _SUITES.items():
                entries = [
                    {**({each: None} if isinstance(each, str) else each), "side": Side.SOURCE.value}
                    for each in suite
                ]
                section = commands.mirror(source.cluster(), source.cluster(), _TOPIC)
                config = Path(folder) / "relay.yaml"
                mirrors = {"checked": section | {"expectations": entries}}
                config.write_text(yaml.safe_dump({"mirrors": mirrors}))
                first, warm = (_spent(session, config, window) for _ in range(2))
                print(f"| {name} | {first:.1f} | {warm:.1f} |", flush=True)
                slowest = max(slowest, warm)
        finally:
            end(session)
    return int(slowest > _MOST_SECONDS)


def _entry(extent: Extent) -> LedgerEntry:
    """Return what the ledger would have of records that are all in the source."""
    whole, lost = extent.range, len(extent.range) - extent.records
    skipped = {str(Skipped.CONTROL): lost} if lost else {}
    return LedgerEntry(
        *("checked", whole, whole, extent.records, 0, 0, 0, skipped),
        *("", -1, "", "", "", 0),
    )


def _spent(session: Any, config: Path, window: TopicWindow) -> float:
    mirror = load(config).mirror("checked")
    began = time.monotonic()
    results = validate(lambda: session, config, Sides("checked", mirror), window)
    for result in results:
        assert result.passed, result
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

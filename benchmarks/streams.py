"""What a stream costs beside a batch read: `python -m benchmarks.streams [--quick]`.

Both read a million records with the columns of a query that counts, in a warm Spark session; the
stream up to the end of the topic, all at once and in ten micro-batches.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks import clusters
from benchmarks.inputs import Input
from relay_pipelines.dataframe import register
from relay_pipelines.spark.session import connect, end
from tests.support import commands

_INPUT = Input("streamed", "1 M x 1 KiB, 128 KB batches", 1_000_000, 1024, 128 << 10, partitions=2)
_QUICK_FACTOR = 0.02
_TOPIC = "streamed"
_SCHEMA = "offset long, value binary"
_MICRO_BATCHES = 10
_REPETITIONS = 3


def main(arguments: list[str]) -> int:
    """Print the table."""
    spec = _INPUT.scaled(_QUICK_FACTOR) if "--quick" in arguments else _INPUT
    with clusters.embedded("source") as source, tempfile.TemporaryDirectory() as folder:
        extents = clusters.make_input(source.cluster(), _TOPIC, spec)
        records = sum(extent.records for extent in extents)
        config = Path(folder) / "relay.yaml"
        section = commands.mirror(source.cluster(), source.cluster(), _TOPIC)
        config.write_text(yaml.safe_dump({"mirrors": {"streamed": section}}))
        options = {"config": str(config), "topic": _TOPIC}
        session = connect("local[2]")
        register(session)
        part = -(-records // _MICRO_BATCHES)
        reads: dict[str, Callable[[], None]] = {
            "batch": lambda: _batch(session, options),
            "stream, one micro-batch": lambda: _stream(session, options),
            f"stream, {_MICRO_BATCHES} micro-batches": lambda: _stream(
                session, options | {"max_offsets": str(part)}
            ),
        }
        try:
            _batch(session, options)  # starts Python workers
            seconds = {name: statistics.median(_times(read)) for name, read in reads.items()}
        finally:
            end(session)
    print(f"| {spec.title} | s | k records/s | to batch |\n|---|---|---|---|")
    for name, spent in seconds.items():
        rate = records / spent / 1000
        print(f"| {name} | {spent:.1f} | {rate:,.0f} | {spent / seconds['batch']:.2f}x |")
    return 0


def _times(read: Callable[[], None]) -> list[float]:
    found = []
    for _ in range(_REPETITIONS):
        began = time.monotonic()
        read()
        found.append(time.monotonic() - began)
    return found


def _batch(session: Any, options: dict[str, str]) -> None:
    read = session.read.format("relay").options(**options).schema(_SCHEMA)
    read.load().write.format("noop").mode("overwrite").save()


def _stream(session: Any, options: dict[str, str]) -> None:
    read = session.readStream.format("relay").options(**options).schema(_SCHEMA)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = read.load().writeStream.format("noop").trigger(availableNow=True)
        started = query.option("checkpointLocation", checkpoint).start()
        started.awaitTermination()
        assert started.exception() is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

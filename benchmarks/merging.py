"""What a small batch costs: in a produce request of its own, or decoded and merged with others.

Run with `python -m benchmarks.merging`. It copies the same topic-partition in both ways, in turn,
with one broker on each side, and prints medians. The limits in `relay_pipelines/copy/batching.py`
follow from the table: merging is worth it where both ratios are below 1.
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid

from benchmarks.clusters import create_own_topics, create_topics, embedded, make_input
from benchmarks.inputs import CODEC_NAMES, Input
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, CopyRange, TopicPartition
from relay_pipelines.protocol.batch import CODEC_MASK

_REPETITIONS = 3
_BYTES = 32 << 20
_SIZES = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10]
_VALUES = [100, 1024]
_MERGED = 1 << 20


def main(codecs: list[str]) -> None:
    """Print a table row per codec, batch size and value size."""
    numbers = {name: number for number, name in CODEC_NAMES.items()}
    print(
        "codec  batch  value  records  merged/own: CPU  time   CPU us/batch own  merged", flush=True
    )
    with embedded("source") as source, embedded("destination") as destination:
        create_own_topics(destination.cluster())
        for codec in codecs or list(numbers):
            for size in _SIZES:
                for value in _VALUES:
                    _compare(source.cluster(), destination.cluster(), numbers[codec], size, value)


def _compare(source: Cluster, destination: Cluster, codec: int, size: int, value: int) -> None:
    assert codec <= CODEC_MASK
    name = f"{CODEC_NAMES[codec]}-{size}-{value}"
    spec = Input(name, name, _BYTES // (value + 40) // 2 * 2, value, size, codec)
    extent, _ = make_input(source, name, spec)
    costs: dict[int, list[tuple[float, float]]] = {0: [], _MERGED: []}
    for _ in range(_REPETITIONS):
        for below, found in costs.items():
            topic = f"{name}-{uuid.uuid4().hex[:6]}"
            create_topics(destination, [topic], spec.partitions, {})
            options = CopyOptions(coalesce_below_bytes=below)
            job = CopyJob(topic, "run", source, destination, options)
            began, cpu = time.monotonic(), time.process_time()
            (outcome,) = copy_ranges(job, [CopyRange(extent.range, TopicPartition(topic, 0))])
            assert not outcome.error
            found.append((time.process_time() - cpu, time.monotonic() - began))
    own, merged = (
        tuple(statistics.median(each) for each in zip(*found, strict=True))
        for found in costs.values()
    )
    print(
        f"{CODEC_NAMES[codec]:6} {size >> 10:3} KiB {value:5} {extent.records // extent.batches:7}"
        f" {merged[0] / own[0]:16.2f} {merged[1] / own[1]:5.2f}"
        f" {own[0] / extent.batches * 1e6:18.0f} {merged[0] / extent.batches * 1e6:7.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])

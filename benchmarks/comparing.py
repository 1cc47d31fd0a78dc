"""What `relay compare` costs beside the copy: `python -m benchmarks.comparing [SCALE]`.

A million records of 1 KiB, and ten million of 100 bytes, in batches of 128 KB: copied as they are,
and batched anew in 16 KB as another tool may do; the first also with other times in all records.
Each comparison runs in a process of its own, whose CPU time and most memory it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import clusters
from benchmarks.inputs import Input
from benchmarks.markdown import table
from benchmarks.seeding import send
from relay_pipelines.api import compare_clusters
from relay_pipelines.audit.comparison import Side
from relay_pipelines.compare.reading import readers
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.model import Cluster, CopyJob, CopyRange, OffsetRange
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.records import BatchBuilder, Record

_SMALL_BYTES = 16 << 10
_MOST_DIFFERING = 1_000_000
_INPUTS = (
    Input("1k-128k", "1 M x 1 KiB", 1_000_000, 1024, 128 << 10),
    Input("100b-128k", "10 M x 100 B", 10_000_000, 100, 128 << 10),
)


def main(arguments: list[str]) -> None:
    """Print a table."""
    if arguments[:1] == ["--alone"]:
        print(json.dumps(_alone(*arguments[1:])))
        return
    scale = float(arguments[0]) if arguments else 1.0
    rows: list[list[str]] = []
    with clusters.embedded("source") as source, clusters.embedded("destination") as destination:
        clusters.create_own_topics(destination.cluster())
        for spec in _INPUTS:
            rows += _measured(source.cluster(), destination.cluster(), spec.scaled(scale))
    print(
        "\n".join(
            table(["records", "destination", "copy", "compare", "beside it", "most memory"], rows)
        )
    )


def _measured(source: Cluster, destination: Cluster, spec: Input) -> Iterator[list[str]]:
    spec, topic = replace(spec, partitions=1), f"comparing-{spec.name}"
    (extent,) = clusters.make_input(source, topic, spec)
    tp = extent.range.topic_partition
    kinds = ["as it is", "batched anew"]
    # what differs is found record by record, which takes a while
    kinds += ["other times"] if spec.records <= _MOST_DIFFERING else []
    for kind in kinds:
        clusters.create_topics(destination, [tp.topic], 1, spec.configs)
        if kind == "as it is":
            job = CopyJob(topic, "run", source, destination)
            copy_seconds = _cpu(partial(_copied, job, [CopyRange(extent.range, tp)]))
        else:
            later = int(kind == "other times")
            with ClusterClient(destination, DestinationError) as client:
                send(client, tp, _anew(source, extent.range, later))
        servers = [",".join(each.bootstrap_servers) for each in (source, destination)]
        alone = [sys.executable, "-m", "benchmarks.comparing", "--alone", *servers, tp.topic]
        found = json.loads(subprocess.run(alone, check=True, capture_output=True).stdout)
        assert found["records"] == extent.records, found
        yield [
            spec.title,
            kind,
            f"{copy_seconds:.1f} s",
            f"{found['cpu_seconds']:.1f} s",
            f"{found['cpu_seconds'] / copy_seconds:.2f}x",
            f"{found['rss_mb']:,} MB",
        ]
        clusters.delete_topics(destination, tp.topic)
    clusters.delete_topics(source, tp.topic)


def _copied(job: CopyJob, ranges: list[CopyRange]) -> None:
    assert not any(outcome.error for outcome in copy_ranges(job, ranges))


def _anew(source: Cluster, offsets: OffsetRange, later_ms: int) -> Iterator[Batch]:
    """Yield the records of a range in other batches."""
    with (
        ClusterClient(source, SourceError) as client,
        closing(readers(client, client, 0)[0].fetches(offsets)) as got,
    ):
        side, builder = Side(got), BatchBuilder(0, _SMALL_BYTES)
        while side.fill():
            for timestamp, key, value, headers in side.contents:
                record = Record(0, timestamp + later_ms, key, value, list(headers))
                if not builder.append(record):
                    yield builder.build()
                    builder = BatchBuilder(0, _SMALL_BYTES)
                    builder.append(record)
            side.at = len(side.contents)
        yield builder.build()


def _alone(source: str, destination: str, topic: str) -> dict[str, Any]:
    """Compare in this process, which does nothing else; Spark would start for so much."""
    from relay_pipelines.audit import spark_job

    spark_job._WITHOUT_SPARK_BYTES = 1 << 62  # noqa: SLF001 - one process, one figure
    request = CompareRequest(source, destination, (topic,))
    found: Any = None

    def run() -> None:
        nonlocal found
        found = compare_clusters(request)

    cpu_seconds = _cpu(run)
    # `ru_maxrss` would begin with what the parent has
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    rss_kb = int(status["VmHWM"].split()[0])
    return {
        "cpu_seconds": cpu_seconds,
        "records": found.tally.records,
        "exit_code": found.exit_code,
        "rss_mb": rss_kb // 1024,
    }


def _cpu(measured: Callable[[], Any]) -> float:
    began = time.process_time()
    measured()
    return time.process_time() - began


if __name__ == "__main__":
    main(sys.argv[1:])

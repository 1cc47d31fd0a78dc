"""What is needed as the work grows: `python -m benchmarks.growth [part ...]`.

`topics` copies 1, 10, 100 and 1,000 topics of one small batch each in one task, and counts its
requests and connections; then it runs `relay run` and `relay plan` for the same. `executors` copies
the same topic on Spark standalone with 1, 2 and 4 executors of a core each, in turn; on a machine
with fewer cores this shows what executors cost, not how much faster they are. `looks`, `attest`,
`offsets`, `schemas`, `moves` and `definitions` are modules of their own. The model in docs/cost.md
takes its constants from these tables.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
import yaml

from benchmarks import attestations, clusters, group_offsets, looks, moves, schema_ids, tree
from benchmarks.contenders.relay_process import COMMAND
from benchmarks.contenders.relay_spark import cpu_by_process
from benchmarks.inputs import Input
from benchmarks.looks import counted, fill
from benchmarks.values import Extent
from benchmarks.workers import peak_memory_bytes
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.demo import spark_cluster
from relay_pipelines.demo.spark_cluster import SparkCluster
from relay_pipelines.model import (
    Cluster,
    CopyJob,
    CopyRange,
    OffsetRange,
    Outcome,
    TopicPartition,
)
from relay_pipelines.plan.owners import with_owners
from relay_pipelines.protocol import idle_connections
from relay_pipelines.spark.defaults import SMALL_JVM
from relay_pipelines.spark.job import submit
from relay_pipelines.spark.session import cluster_size, connect, end
from tests.support import commands

_PARTS = [
    *("topics", "executors", "looks", "attest", "offsets", "schemas", "moves", "definitions"),
]
_TOPICS = (1, 10, 100, 1_000)
_EXECUTORS = (1, 2, 4)
_ROUNDS = 3
_POLL_SECONDS = 0.2
_ON_LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
}
_FETCH, _PRODUCE = 1, 0
_LARGE = Input("large", "1 GB", 1_000_000, 1024, 128 << 10, partitions=4)


class _Copy(NamedTuple):
    """What a copy has used.

    Args:
        start_cpu_seconds: until all executors had run a task, without this process.
        cpu_seconds: of the copy, in all processes but brokers, master and worker.
        alone_cpu_seconds: of the same copy in as many processes without Spark.
    """

    start_cpu_seconds: float
    seconds: float
    task_cpu_seconds: float
    cpu_seconds: float
    alone_cpu_seconds: float = 0.0


def main(parts: list[str]) -> None:
    """Print the tables."""
    if "definitions" in parts:
        from benchmarks import definitions  # Dagster would count in the memory of the others

        definitions.measure()
    measures = {
        "topics": _topics,
        "executors": _executors,
        "looks": looks.measure,
        "attest": attestations.measure,
        "offsets": group_offsets.measure,
        "schemas": schema_ids.measure,
        "moves": moves.measure,
    }
    if not (asked := [measures[part] for part in parts if part in measures]):
        return
    with clusters.embedded("source") as source, clusters.embedded("destination") as destination:
        clusters.create_own_topics(destination.cluster())
        for measure in asked:
            measure(source.cluster(), destination.cluster())


def _topics(source: Cluster, destination: Cluster) -> None:
    print(
        "| topics | task: s | CPU s | fetches | produces | others | connections | memory MB |",
        end="",
    )
    print(" run: s | CPU s | nothing new: s | CPU s | plan: s | CPU s |")
    print(f"|{'---|' * 14}")
    for count in _TOPICS:
        names = [f"growth-{count}-{number:04}" for number in range(count)]
        for cluster in (source, destination):
            clusters.create_topics(cluster, names, 1, {})
        fill(source, names)
        task = _task(source, destination, names)
        with tempfile.TemporaryDirectory(prefix="relay-growth-") as folder:
            config = Path(folder) / "relay.yaml"
            mirror = commands.mirror(
                source, destination, f"growth-{count}-.*", topics={"rename": "run-{topic}"}
            )
            config.write_text(yaml.safe_dump({"mirrors": {"growth": mirror}}))
            runs = [
                figure
                for command in ("run", "run", "plan")
                for figure in _command(command, config, Path(folder) / "figures.json")
            ]
        print(
            f"| {count:,} | {' | '.join([*task, *(f'{seconds:.1f}' for seconds in runs)])} |",
            flush=True,
        )


def _task(source: Cluster, destination: Cluster, names: list[str]) -> list[str]:
    ranges = [
        CopyRange(OffsetRange(TopicPartition(name, 0), 0, 1), TopicPartition(name, 0))
        for name in names
    ]
    job = CopyJob(f"growth{len(names)}", "run", source, destination)
    owned = with_owners(job.mirror, "", ranges, {})
    idle_connections.close_all()  # as a new process
    with counted() as traffic:
        began, cpu = time.monotonic(), time.process_time()
        outcomes = list(copy_ranges(job, owned))
        used = time.monotonic() - began, time.process_time() - cpu
    assert not any(outcome.error for outcome in outcomes)
    requests = traffic.requests
    fetches, produces = requests.pop(_FETCH), requests.pop(_PRODUCE)
    counts = fetches, produces, requests.total(), traffic.connections.total()
    memory = f"{peak_memory_bytes() / 1e6:.0f}"
    return [*(f"{number:.2f}" for number in used), *(f"{number:,}" for number in counts), memory]


def _executors(source: Cluster, destination: Cluster) -> None:
    topic = "growth-large"
    extents = clusters.make_input(source, topic, _LARGE)
    found: dict[int, list[_Copy]] = {executors: [] for executors in _EXECUTORS}
    with tempfile.TemporaryDirectory(prefix="relay-growth-") as folder:
        for attempt in range(_ROUNDS):
            for executors in _EXECUTORS:
                wanted = f"growth-large-{executors}-{attempt}"
                alone = f"{wanted}-alone"
                clusters.create_topics(destination, [wanted, alone], len(extents), {})
                job, ranges = _work(wanted, source, destination, extents)
                with spark_cluster.running(
                    Path(folder) / wanted, 1, cores=max(_EXECUTORS), memory="4g"
                ) as spark:
                    copied = _copied(spark, executors, job, ranges)
                job, ranges = _work(alone, source, destination, extents)
                used = _copied_without_spark(executors, job, ranges)
                found[executors].append(copied._replace(alone_cpu_seconds=used))
                for name in (wanted, alone):
                    clusters.delete_topics(destination, name)
    _print_executors(found)


def _print_executors(found: dict[int, list[_Copy]]) -> None:
    print("| executors | start and first job: CPU s | copy of 1 GB: s | CPU s of all | ", end="")
    print("CPU s of tasks | to one | the same without Spark: CPU s | to one |")
    print(f"|{'---|' * 8}")
    medians = {
        executors: _Copy(*(median(figures) for figures in zip(*copies, strict=True)))
        for executors, copies in found.items()
    }
    one = medians[_EXECUTORS[0]]
    for executors, copy in medians.items():
        figures = [
            *(f"{executors}", f"{copy.start_cpu_seconds:.1f}", f"{copy.seconds:.1f}"),
            *(f"{copy.cpu_seconds:.2f}", f"{copy.task_cpu_seconds:.2f}"),
            f"{copy.task_cpu_seconds / one.task_cpu_seconds:.2f}",
            f"{copy.alone_cpu_seconds:.2f}",
            f"{copy.alone_cpu_seconds / one.alone_cpu_seconds:.2f}",
        ]
        print(f"| {' | '.join(figures)} |", flush=True)


def _work(
    topic: str, source: Cluster, destination: Cluster, extents: Sequence[Extent]
) -> tuple[CopyJob, list[CopyRange]]:
    ranges = [CopyRange(one.range, _same(one.range, topic)) for one in extents]
    return CopyJob(topic, "run", source, destination), ranges


def _copied_without_spark(processes: int, job: CopyJob, ranges: Sequence[CopyRange]) -> float:
    """Copy with so many processes beside each other; return their CPU seconds.

    What the machine adds when more of them share its cores is here, too.
    """
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        outcomes = [*chain(*pool.map(_one_range, repeat(job), ranges))]
    assert not any(outcome.error for outcome in outcomes)
    return sum(outcome.cpu_seconds for outcome in outcomes)


def _one_range(job: CopyJob, copied: CopyRange) -> list[Outcome]:
    return list(copy_ranges(job, [copied]))


def _same(copied: OffsetRange, topic: str) -> TopicPartition:
    return TopicPartition(topic, copied.topic_partition.partition)


def _copied(
    spark: SparkCluster, executors: int, job: CopyJob, ranges: Sequence[CopyRange]
) -> _Copy:
    """Copy with so many executors of one core each on one worker."""
    conf = {"spark.executor.cores": "1", "spark.cores.max": str(executors)}
    session = connect(spark.address, None, _ON_LOOPBACK | conf)
    try:
        # until all executors have registered
        while cluster_size(session).executors < executors:
            time.sleep(_POLL_SECONDS)
        submit(session, job, [[]] * executors, "first")
        started = _cpu_by_process(session, spark)
        began = time.monotonic()
        outcomes = submit(session, job, [[one] for one in ranges], "copy")
        seconds = time.monotonic() - began
        assert not any(outcome.error for outcome in outcomes)
        used = _cpu_by_process(session, spark)
    finally:
        end(session)
    return _Copy(
        start_cpu_seconds=sum(started.values()) - started[os.getpid()],
        seconds=seconds,
        task_cpu_seconds=sum(outcome.cpu_seconds for outcome in outcomes),
        cpu_seconds=sum(each - started.get(process, 0.0) for process, each in used.items()),
    )


def _cpu_by_process(session: Any, spark: SparkCluster) -> dict[int, float]:
    """CPU seconds so far of the driver, its JVM, the executors and their Python workers."""
    used = cpu_by_process(session)
    for worker in spark.workers.values():
        for process in psutil.Process(worker.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                used[process.pid] = sum(process.cpu_times()[:2])
    return used


def _command(command: str, config: Path, figures: Path) -> tuple[float, float]:
    called = [str(COMMAND), "--config", str(config), command]
    return tree.spent(called, figures, capture_output=True)


if __name__ == "__main__":
    main(sys.argv[1:] or _PARTS)

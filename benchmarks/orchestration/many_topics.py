"""A mirror of very many topics that all have news, under `dagster dev`: does it keep up?

Nothing is killed. A reader reads every copy as a consumer would, so that the latency of a record
ends when it is readable.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.clusters import create_topics
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster
from tests.chaos.storm.background import BackgroundThread
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.soak.operator import Operator
from tests.orchestration.soak.sampling import Deployment, Role, Sample, Sampler
from tests.support.independent import client, until

_SAMPLE_SECONDS = 10.0
_PATIENCE_SECONDS = 600.0
_KEEP = 30
SETTLED_SECONDS = 120.0
"""So long is left out of what is judged: the backlog of the start."""


@dataclass(frozen=True, slots=True)
class BusySample:
    """One measurement of ten seconds.

    Args:
        usage: of the processes and files.
        cpu_seconds: of each role since the start, also of processes that have ended.
        waiting: records that were written and that nobody can read at the destination yet.
        latencies: seconds from written to read: median, 99th percentile and highest of those read
            since the sample before; none if nothing was.
    """

    usage: Sample
    cpu_seconds: dict[str, float]
    waiting: int
    latencies: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class BusyReport:
    """What was measured.

    Args:
        every: `window.every`.
        records_a_second: that were written to all topics together.
        missing: records that never arrived.
    """

    topics: int
    every: str
    records_a_second: float
    seconds: float
    records: int
    missing: int
    samples: Sequence[BusySample]


@dataclass
class Records:
    """What was written and read; a record's value is when it was written."""

    source: Cluster
    destination: Cluster
    names: Sequence[str]
    prefix: str
    every_seconds: float
    written: int = 0
    read: int = 0
    _latencies: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, over: threading.Event) -> None:
        """Write a record to each topic in each `window.every`, evenly over the time."""
        sender = Producer(client(self.source) | {"linger.ms": 50})
        began, number = time.monotonic(), 0
        while not over.is_set():
            sender.produce(self.names[number % len(self.names)], f"{time.time():.3f}".encode())
            self.written += 1
            number += 1
            due = began + number * self.every_seconds / len(self.names)
            sender.poll(max(0.0, due - time.monotonic()))
        sender.flush(60)

    def follow(self, over: threading.Event) -> None:
        """Read the copies from their beginning, as a read_committed consumer."""
        settings = client(self.destination) | {
            "group.id": "soak",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(f"{self.prefix}.{name}", 0, 0) for name in self.names])
        while not over.is_set():
            messages = consumer.consume(1000, 0.2)
            now = time.time()
            values = [m.value() for m in messages if m.error() is None]
            with self._lock:
                self.read += len(values)
                self._latencies += [now - float(value or b"0") for value in values]
        consumer.close()

    def latencies(self) -> tuple[float, float, float] | None:
        """Median, 99th percentile and highest since the last call."""
        with self._lock:
            found, self._latencies = sorted(self._latencies), []
        if not found:
            return None
        return statistics.median(found), found[int(0.99 * len(found))], found[-1]


@dataclass
class Cpu:
    """CPU seconds by role, also of processes that have ended."""

    deployment: Deployment
    _seconds: dict[int, tuple[Role, float]] = field(default_factory=dict)

    def by_role(self) -> dict[str, float]:
        """Return what each role has used since it began."""
        for role, process in self.deployment.processes():
            with suppress(psutil.Error):
                self._seconds[process.pid] = role, sum(process.cpu_times()[:2])
        found: dict[str, float] = {}
        for role, seconds in self._seconds.values():
            found[role] = found.get(role, 0.0) + seconds
        return found


def soak(
    topics: int, every: str, minutes: float, folder: Path, tell: Callable[[str], None]
) -> BusyReport:
    """Write a record to each topic in each `every`, and measure.

    Args:
        folder: for the data of the brokers and of Dagster, which stay there.
        tell: receives progress lines.
    """
    names = [f"busy-{number:05}" for number in range(topics)]
    with ExitStack() as stack:
        source, destination = (
            stack.enter_context(LocalCluster(name, folder=folder / name))
            for name in ("source", "destination")
        )
        create_topics(source.cluster(), names, 1, {})
        dev = DevEnvironment(folder, source, destination, "busy")
        dev.configure(
            topics={"allow": ["busy-.*"], "rename": "copy.{topic}"},
            window={"every": every, "keep": _KEEP},
        )
        operator = Operator(folder)
        stack.callback(operator.stop)
        began = time.monotonic()
        operator.keep_running()
        tell(f"`dagster dev` serves after {time.monotonic() - began:.0f} s")
        records = Records(
            source.cluster(), destination.cluster(), names, "copy", float(every.rstrip("s"))
        )
        seed(records)
        until(lambda: has_all(records), "the first copies", _PATIENCE_SECONDS, 1.0)
        tell(f"all topics have a copy after {time.monotonic() - began:.0f} s")
        reading = stack.enter_context(BackgroundThread("reader", records.follow))
        writing = stack.enter_context(BackgroundThread("writer", records.write))
        samples = list(
            _samples(
                minutes * 60, records, Sampler(dev, destination.folder), operator, folder, tell
            )
        )
        writing.stop()
        with suppress(AssertionError):
            until(lambda: records.read >= records.written, "the last records", 120, 1.0)
        reading.stop()
    return BusyReport(
        topics,
        every,
        topics / records.every_seconds,
        minutes * 60,
        records.written,
        records.written - records.read,
        samples,
    )


def _samples(
    seconds: float,
    records: Records,
    sampler: Sampler,
    operator: Operator,
    folder: Path,
    tell: Callable[[str], None],
) -> Iterator[BusySample]:
    cpu = Cpu(operator.deployment)
    before = cpu.by_role()
    while sampler.seconds < seconds:
        time.sleep(_SAMPLE_SECONDS)
        now = cpu.by_role()
        sample = BusySample(
            sampler.sample(),
            {role: spent - before.get(role, 0.0) for role, spent in now.items()},
            records.written - records.read,
            records.latencies(),
        )
        with (folder / "busy.jsonl").open("a") as file:
            file.write(f"{json.dumps(asdict(sample))}\n")
        tell(_line(sample))
        yield sample


def _line(sample: BusySample) -> str:
    usage = sample.usage
    pss = sum(of.pss for of in usage.roles.values()) / (1 << 30)
    cores = sum(sample.cpu_seconds.values()) / usage.seconds
    latencies = " ".join(f"{each:.1f}" for each in sample.latencies or ())
    database = sum(size for name, size in usage.files.items() if "SQLite" in name) / (1 << 20)
    return (
        f"{usage.seconds:5.0f} s  {usage.windows} windows  PSS {pss:.2f} GiB  {cores:.2f} cores"
        f"  {sample.waiting} waiting  latency {latencies} s  {database:.0f} MiB"
        f"  load {os.getloadavg()[0]:.1f}"
    )


def seed(records: Records) -> None:
    """Write the first record of each topic: its copy is created with it."""
    sender = Producer(client(records.source))
    for name in records.names:
        sender.produce(name, f"{time.time():.3f}".encode())
        sender.poll(0)
    sender.flush(60)
    records.written += len(records.names)


def has_all(records: Records) -> bool:
    """Whether all copies exist."""
    consumer = Consumer(client(records.destination) | {"group.id": "look"})
    try:
        found = consumer.list_topics(timeout=20).topics
    finally:
        consumer.close()
    return all(f"{records.prefix}.{name}" in found for name in records.names)

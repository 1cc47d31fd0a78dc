"""From produced to readable at the destination, while Dagster mirrors a topic all the time."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer, Producer

from benchmarks.orchestration.environment import MIRROR, Environment, dagster_variables
from benchmarks.orchestration.figures import Latency
from relay_pipelines.demo.dagster import running
from relay_pipelines.model import Cluster
from tests.support.independent import client

_RECORDS_PER_SECOND = 1_000
_LITTLE_PER_SECOND = 10
_RECORD = b"x" * 1024
_SAMPLED = 200
_WARM_SECONDS = 60.0
_SETTLING_SECONDS = 15.0
_SAMPLE_SECONDS = 0.5


def measure(environment: Environment, seconds: float, session: str | int) -> Latency:
    """Mirror the only topic in windows of 5 s, with 1,000 records/s, with 10 a second, and idle.

    Args:
        seconds: of each of the three.
        session: as `window.session`.
    """
    (topic,) = environment.topics
    environment.configure(every="5s", session=session)
    with (
        running(environment.folder, environment=dagster_variables(environment.folder)) as dagster,
        _reading(environment.destination, f"{MIRROR}.{topic}") as latencies,
    ):
        dagster.start_sensor(environment.planner)
        with writing(environment.source, topic, _RECORDS_PER_SECOND):
            time.sleep(_WARM_SECONDS)
            latencies.clear()
            time.sleep(seconds)
            found = list(latencies)
        used = _Used(environment, dagster.process.pid)
        with writing(environment.source, topic, _LITTLE_PER_SECOND):
            time.sleep(_SETTLING_SECONDS)
            little = used.during(seconds)
        time.sleep(_SETTLING_SECONDS)
        idle = used.during(seconds)
    return Latency(
        median_seconds=statistics.median(found),
        worst_seconds=max(random.Random(1).sample(found, min(_SAMPLED, len(found)))),
        worst_of_all_seconds=max(found),
        records=len(found),
        windows=little.windows,
        cpu_seconds=little.runs / max(1, little.windows),
        all_cpu_seconds=little.all / max(1, little.windows),
        idle_share=idle.runs / seconds,
        all_idle_share=idle.all / seconds,
    )


class _Spent(NamedTuple):
    """Windows, and CPU seconds of runs and of all processes."""

    windows: int
    runs: float
    all: float


class _Used:
    """Samples what Dagster's processes use: those of runs, and all."""

    def __init__(self, environment: Environment, pid: int) -> None:
        self._environment = environment
        self._root = psutil.Process(pid)
        self._of_runs: set[psutil.Process] = set()

    def during(self, seconds: float) -> _Spent:
        """Return windows and CPU seconds of this span."""
        windows, end = len(self._environment.windows()), time.monotonic() + seconds
        before = self._cpu_seconds()
        latest = dict(before)
        while time.monotonic() < end:
            time.sleep(_SAMPLE_SECONDS)
            latest |= self._cpu_seconds()  # keeps those that have ended
        used = {process: cpu - before.get(process, 0.0) for process, cpu in latest.items()}
        return _Spent(
            len(self._environment.windows()) - windows,
            sum(cpu for process, cpu in used.items() if process in self._of_runs),
            sum(used.values()),
        )

    def _cpu_seconds(self) -> dict[psutil.Process, float]:
        found = {}
        for process in [self._root, *self._root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                found[process] = float(sum(process.cpu_times()[:2]))
                if "java" in process.name() and (run := process.parent()):
                    self._of_runs |= {run, *run.children(recursive=True)}
        return found


@contextmanager
def writing(cluster: Cluster, topic: str, per_second: int) -> Iterator[None]:
    """Write so many records a second, with their times."""
    over = threading.Event()
    sender = Producer(client(cluster, linger_ms=5))

    def write() -> None:
        began, sent = time.monotonic(), 0
        while not over.wait(0.01):
            due = int((time.monotonic() - began) * per_second)
            for number in range(sent, due):
                sender.produce(topic, _RECORD, partition=number % 2)
            sent = max(sent, due)
            sender.poll(0)
        sender.flush(30)

    with _thread(write, over):
        yield


@contextmanager
def _reading(cluster: Cluster, topic: str) -> Iterator[list[float]]:
    """Yield a list that grows by the age of every record when a committed reader gets it."""
    over = threading.Event()
    ages: list[float] = []
    reader = Consumer(
        client(
            cluster,
            group_id="latency",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            topic_metadata_refresh_interval_ms=1000,
            fetch_wait_max_ms=50,
        )
    )
    reader.subscribe([topic])

    def read() -> None:
        while not over.is_set():
            found = reader.consume(10_000, 0.1)
            now = time.time()
            ages.extend(
                now - record.timestamp()[1] / 1000 for record in found if not record.error()
            )

    try:
        with _thread(read, over):
            yield ages
    finally:
        reader.close()


@contextmanager
def _thread(target: Callable[[], None], over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

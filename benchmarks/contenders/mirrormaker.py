"""MirrorMaker 2 with exactly-once, from its published jars: a dedicated node with two tasks.

All else is as MirrorMaker has it by default. What is not copying is off: heartbeats, checkpoints of
consumer groups, syncing of offsets, topic configurations and ACLs, refreshing of topics and groups.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.clusters import delete_topics, scan
from benchmarks.values import Case, Cost
from relay_pipelines.embedded import guardian, jars, java, server_properties
from relay_pipelines.errors import DestinationError
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient

COORDINATES = (f"org.apache.kafka:connect-mirror:{jars.KAFKA_VERSION}", jars.BROKER_JARS[1])
# the JVM options of Kafka's start script
_JVM = (
    "-Xms256m",
    "-Xmx2g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
_POLL_SECONDS = 0.01
_SETTLED_SECONDS = 2.0


@dataclass(slots=True)
class _Seen:
    """Arrivals at the destination, in wall time and CPU time of MirrorMaker."""

    began: float
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    ends: list[int] = field(default_factory=list)


class MirrorMaker:
    """One JVM per copy, killed when all records have arrived, because it never ends itself."""

    name = "MirrorMaker 2"
    guarantee = "exactly once"
    inputs: tuple[str, ...] = ()
    copies = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._classpath = jars.resolve(COORDINATES, f"mirrormaker-{jars.KAFKA_VERSION}")

    def copy(self, case: Case) -> Cost:
        """Run it until all records arrived; the copy phase is from first to last arrival."""
        command = self._command(case)
        seen = _Seen(began=time.monotonic())
        try:
            with _running(command, self._folder / f"{case.attempt}.log") as process:
                return _cost(seen, process, _watch(seen, case, process))
        finally:
            delete_topics(case.destination, f".{case.attempt}.internal", f"-{case.attempt}")
            delete_topics(case.source, f"-{case.attempt}")

    def close(self) -> None:
        """Do nothing: no process remains after a copy."""

    def _command(self, case: Case) -> list[str]:
        logging = self._folder / "log4j2.properties"
        logging.write_text(server_properties.LOG4J2)
        config = self._folder / f"{case.attempt}.properties"
        config.write_text(server_properties.render(_properties(case)))
        return [
            *(
                java.tool("java"),
                *_JVM,
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                self._classpath,
            ),
            *("org.apache.kafka.connect.mirror.MirrorMaker", str(config)),
        ]


def _properties(case: Case) -> dict[str, object]:
    # aliases are part of the name of the destination topic and of all state of MirrorMaker
    source, target = case.attempt, f"target-{case.attempt}"
    flow = f"{source}->{target}"
    return {
        "clusters": f"{source},{target}",
        f"{source}.bootstrap.servers": ",".join(case.source.bootstrap_servers),
        f"{target}.bootstrap.servers": ",".join(case.destination.bootstrap_servers),
        f"{flow}.enabled": True,
        f"{flow}.topics": case.topic.replace(".", "\\."),
        f"{target}.exactly.once.source.support": "enabled",
        f"{source}.consumer.isolation.level": "read_committed",
        "tasks.max": 2,
        "replication.factor": 1,
        # it creates this topic even without heartbeats; the offset-syncs setting is refused if
        # those are off
        "heartbeats.topic.replication.factor": 1,
        "offset.storage.replication.factor": 1,
        "status.storage.replication.factor": 1,
        "config.storage.replication.factor": 1,
        "emit.heartbeats.enabled": False,
        "emit.checkpoints.enabled": False,
        "emit.offset-syncs.enabled": False,
        "sync.topic.configs.enabled": False,
        "sync.topic.acls.enabled": False,
        "refresh.topics.enabled": False,
        "refresh.groups.enabled": False,
    }


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[psutil.Process]:
    """Run it under the guardian of the brokers, so that it always ends with this process."""
    with log.open("wb") as output:
        watched = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
        assert watched.stdin
        assert watched.stdout
        try:
            yield psutil.Process(int(watched.stdout.readline()))
        finally:
            watched.stdin.close()
            watched.wait()
            watched.stdout.close()


def _watch(seen: _Seen, case: Case, process: psutil.Process) -> str:
    """Poll the end offsets until all records have arrived; return an error if they have not."""
    targets = [destination for _, destination in case.pairs]
    with ClusterClient(case.destination, DestinationError, "watching") as client:
        while True:
            isolation = READ_UNCOMMITTED if seen.first is None else READ_COMMITTED
            found = client.list_offsets(targets, LATEST, isolation)
            error = _take(seen, [found[target] for target in targets], process, case)
            if error or _has_all(seen, case):
                return error
            time.sleep(_POLL_SECONDS)


def _take(seen: _Seen, ends: list[int], process: psutil.Process, case: Case) -> str:
    """Record changes; return an error if waiting longer makes no sense."""
    try:
        now = (time.monotonic(), sum(process.cpu_times()[:2]))
    except psutil.NoSuchProcess:
        return "MirrorMaker ended by itself"
    if seen.first is None:
        seen.first = now if any(ends) else None
    elif ends != seen.ends:
        seen.last, seen.ends = now, ends
    return (
        f"not finished within {case.limit_seconds:g} s"
        if now[0] - seen.began > case.limit_seconds
        else ""
    )


def _has_all(seen: _Seen, case: Case) -> bool:
    """Whether all records arrived; counts them, because offsets include transaction markers."""
    enough = len(seen.ends) == len(case.extents) and all(
        end >= extent.records for end, extent in zip(seen.ends, case.extents, strict=True)
    )
    if not enough or seen.last is None or time.monotonic() - seen.last[0] < _SETTLED_SECONDS:
        return False
    return (
        sum(extent.records for extent in scan(case.destination, case.destination_topic))
        >= case.records
    )


def _cost(seen: _Seen, process: psutil.Process, error: str) -> Cost:
    if error or seen.first is None or seen.last is None:
        return Cost(error=error or "nothing arrived")
    return Cost(
        copy_seconds=seen.last[0] - seen.first[0],
        copy_cpu_seconds=seen.last[1] - seen.first[1],
        whole_seconds=seen.last[0] - seen.began,
        whole_cpu_seconds=seen.last[1],
        peak_memory_bytes=process.memory_info().rss,
    )

"""A mirror under test, whose tasks and runs are processes that tests kill or stop."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.fencing import fence
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import (
    Cluster,
    CopyJob,
    CopyOptions,
    CopyRange,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol.client import ClusterClient
from tests.chaos import compare, source_data
from tests.copying import records_of
from tests.support.independent import Record, assert_equal, create, read

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0
KEPT = {"retention.ms": "-1"}  # the records are from years ago
OPTIONS = CopyOptions(chunk_bytes=1 << 20, fetch_max_bytes=512 << 10)


@dataclass(frozen=True)
class Source:
    """A topic to copy, with its records and their offsets as an independent client reads them."""

    cluster: LocalCluster
    topic: str
    records: dict[int, list[Record]]
    offsets: dict[int, list[int]]

    @classmethod
    def of(cls, cluster: LocalCluster, topic: str) -> "Source":
        """Read the current records of the topic."""
        records, offsets = {}, {}
        for partition in range(source_data.PARTITIONS):
            at = TopicPartition(topic, partition)
            records[partition] = records_of(cluster.cluster(), at)  # waits until all are there
            offsets[partition] = [offset for offset, _ in read(cluster.cluster(), at)]
        return cls(cluster, topic, records, offsets)

    @classmethod
    def filled(cls, cluster: LocalCluster) -> "Source":
        """Create and fill a topic."""
        topic = f"chaos-{uuid.uuid4().hex[:8]}"
        create(cluster.cluster(), topic, source_data.PARTITIONS, KEPT)
        source_data.fill(cluster, topic)
        return cls.of(cluster, topic)

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """The last stable offsets."""
        return compare.ends(self.cluster, [(self.topic, partition) for partition in self.records])


@dataclass
class Process:
    """A task or a run, with its output in files, because a pipe could fill up."""

    popen: subprocess.Popen[bytes]
    output: Path
    errors: Path
    token: Path
    """The file that appears when it reaches its failpoint."""

    @property
    def stopped(self) -> bool:
        """Whether it is stopped by SIGSTOP."""
        return psutil.Process(self.popen.pid).status() == psutil.STATUS_STOPPED

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition while the process runs."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.popen.poll() is None, (
                f"ended with {self.popen.returncode} before {what}:"
                f" {self.errors.read_text()[-2000:]}"
            )
            assert time.monotonic() < deadline, f"not {what} within {PATIENCE_SECONDS:g} s"
            time.sleep(0.02)

    def wait_until_stopped(self) -> None:
        self.wait_until(lambda: self.stopped, "stopped")

    def send(self, sent: signal.Signals) -> None:
        self.popen.send_signal(sent)

    def end(self) -> int:
        """Wait for the end; return the exit code, or the negative number of the signal."""
        return self.popen.wait(PATIENCE_SECONDS)

    def said(self) -> list[dict[str, Any]]:
        """The outcomes that a task has printed."""
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def statuses(self) -> list[str]:
        """The statuses of the outcomes of a task, with their errors."""
        assert self.end() == 0, self.errors.read_text()[-2000:]
        return [
            ": ".join(filter(None, [outcome["status"], outcome["error"]]))
            for outcome in self.said()
        ]


@dataclass
class Mirror:
    """A mirror of one topic, with its own name, destination topic, and more keys of relay.yaml."""

    source: Source
    destination: LocalCluster
    folder: Path
    options: CopyOptions = OPTIONS
    name: str = field(default_factory=lambda: f"m{uuid.uuid4().hex[:8]}")
    processes: list[Process] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.name}.{self.source.topic}"

    def prepare(self) -> None:
        """Create the topics, as a run does before its first task."""
        to = self.destination.cluster()
        create(to, self.topic, len(self.source.records), KEPT)
        create(to, checkpoint.TOPIC, checkpoint.PARTITIONS, checkpoint.CONFIGS)
        create(to, ledger_topic.TOPIC, checkpoint.PARTITIONS, ledger_topic.CONFIGS)

    def job(self, run_id: str = "run") -> tuple[CopyJob, list[CopyRange]]:
        """The job and ranges of a task: both partitions, from the beginning to the current end."""
        clusters = (
            Cluster("upstream", self.source.cluster.bootstrap_servers),
            Cluster("destination", self.destination.bootstrap_servers),
        )
        ranges = [
            CopyRange(OffsetRange(TopicPartition(*at), 0, stop), TopicPartition(self.topic, at[1]))
            for at, stop in self.source.ends.items()
        ]
        return CopyJob(self.name, run_id, *clusters, self.options), ranges

    def fence(self) -> None:
        """Take over the ids of the topic-partitions, as the next run does."""
        _, ranges = self.job()
        own = {own_id(self.name, each.source.topic_partition) for each in ranges}
        with ClusterClient(self.destination.cluster(), DestinationError) as client:
            fence(client, own)

    def start_task(self, fault: str = "") -> Process:
        """Start a task; `fault` is `<point>=<signal>@<pass>` and occurs once."""
        job = self.folder / f"{self.name}-{len(self.processes)}.job"
        job.write_bytes(pickle.dumps(self.job(f"run{len(self.processes)}")))
        return self._start([sys.executable, "-m", "tests.chaos.one_task", str(job)], fault)

    def start_run(
        self, fault: str = "", spark: dict[str, Any] | None = None, *options: str
    ) -> Process:
        """Start `relay run`, Spark's session included."""
        path = self.folder / f"{self.name}.yaml"
        path.write_text(
            yaml.safe_dump(
                {"spark": spark or {"master": "local[2]"}, "mirrors": {self.name: self._settings()}}
            )
        )
        return self._start(
            [str(Path(sys.executable).with_name("relay")), "run", "--config", str(path), *options],
            fault,
        )

    def copy(self) -> None:
        """Run a task and expect it to succeed."""
        assert self.start_task().statuses() == ["done"] * source_data.PARTITIONS

    def assert_all_arrived(self) -> None:
        """Assert a complete copy, a complete ledger and no open transaction."""
        for partition, expected in self.source.records.items():
            assert_equal(expected, self.arrived(partition))
        counts = {
            (self.source.topic, partition): len(expected)
            for partition, expected in self.source.records.items()
        }
        compare.assert_ledger_covers(self.destination, self.name, self.source.ends, counts)
        compare.assert_maps(self.destination, self.name, self.source.offsets, self.topic)
        assert self.held_back() == []

    def arrived(self, partition: int) -> list[Record]:
        """All committed records of a partition at the destination."""
        return records_of(self.destination.cluster(), TopicPartition(self.topic, partition))

    def held_back(self) -> list[str]:
        """Topic-partitions of the destination where an open transaction blocks readers."""
        return compare.held_back(
            self.destination, [self.topic, checkpoint.TOPIC, ledger_topic.TOPIC]
        )

    def close(self) -> None:
        """Kill all remaining processes and their children, stopped or not."""
        for process in self.processes:
            if process.popen.poll() is None:
                kill(family(process.popen.pid))
                process.popen.wait()

    def _start(self, command: list[str], fault: str) -> Process:
        output, errors, token = (
            self.folder / f"{self.name}-{len(self.processes)}.{kind}"
            for kind in ("out", "err", "token")
        )
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | ({"RELAY_FAULT": f"{fault}:{token}"} if fault else {}),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # else whoever ends the shell of the test run wakes it: a group that loses its last
                # parent is sent SIGCONT
                start_new_session=True,
            )
        self.processes.append(Process(popen, output, errors, token))
        return self.processes[-1]

    def _settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "source": {
                "upstreams": [
                    {
                        "name": "upstream",
                        "bootstrap_servers": list(self.source.cluster.bootstrap_servers),
                    }
                ]
            },
            "destination": {"bootstrap_servers": list(self.destination.bootstrap_servers)},
            "topics": {
                "allow": [self.source.topic],
                "rename": f"{self.name}.{{topic}}",
                # with settings of its own, a range has an id of its own, as in a task of `job`
                "overrides": {self.source.topic: {"copy": {"parallelism": 2}}},
            },
            "copy": {"chunk": options.chunk_bytes, "fetch_max": options.fetch_max_bytes},
            **self.more,
        }


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes that still run; psutil detects pids that were reused."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue

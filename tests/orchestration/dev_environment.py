"""A folder in which a real `dagster dev` mirrors a topic between real brokers."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from relay_pipelines.demo.dagster import CONFIG_FOLDER, Dagster, running
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from tests.copying import records_of
from tests.orchestration import graphql
from tests.support import commands
from tests.support.independent import Record, assert_equal, create, ends, read, write

_PROCESSES = Path(__file__).parent / "processes"


class DevEnvironment:
    """A mirror of one topic with two partitions, and the folder that a `dagster dev` runs in.

    A test waits for what the processes do. What sensors and jobs return is quicker to see in
    `InProcessEnvironment`.
    """

    def __init__(
        self, folder: Path, source: LocalCluster, destination: LocalCluster, topic: str
    ) -> None:
        self.folder = folder
        self.source = source.cluster()
        self.destination = destination.cluster()
        self.topic = topic
        self.name = f"m{uuid.uuid4().hex[:8]}"
        self.number = 0
        self._copied, self._ends = 0, dict.fromkeys(self.copies, 0)
        create(self.source, topic, 2, {"retention.ms": "-1"})
        self.configure()
        # find dead runs sooner than by default
        instance = (CONFIG_FOLDER / "dagster.yaml").read_text()
        sooner = instance.replace("poll_interval_seconds: 20", "poll_interval_seconds: 2")
        (folder / "dagster.yaml").write_text(sooner)

    def configure(self, *, automation: bool = True, remote: str | None = None, **more: Any) -> None:
        """Write relay.yaml; `more` gives keys of the mirror."""
        mirror = commands.mirror(
            self.source,
            self.destination,
            self.topic,
            upstream="a",
            topics={"rename": f"{self.name}.{{topic}}"},
            window={"every": "1s"},
        )
        spark = {"master": "local[2]", "conf": {"spark.driver.memory": "512m"}}
        if remote:
            spark = {"remote": remote}
        written = {"automation": automation, "spark": spark, "mirrors": {self.name: mirror | more}}
        self.replace_config(yaml.safe_dump(written))

    def replace_config(self, text: str) -> None:
        commands.replace(self.folder / "relay.yaml", text)

    @contextmanager
    def dagster(self, **environment: str) -> Iterator[Dagster]:
        """Run Dagster within the context, with shorter waits."""
        path = os.pathsep.join(filter(None, [str(_PROCESSES), os.environ.get("PYTHONPATH")]))
        with running(self.folder, environment={"PYTHONPATH": path, **environment}) as dagster:
            yield dagster

    @property
    def asset(self) -> list[str]:
        return [self.name, self.topic]

    @property
    def copies(self) -> list[TopicPartition]:
        return [TopicPartition(f"{self.name}.{self.topic}", partition) for partition in range(2)]

    def produce(self, batches: int, records: int = 20) -> None:
        for partition in range(2):
            numbers = range(self.number, self.number + batches * records)
            made = [Record(b"k", f"{partition}/{number}".encode()) for number in numbers]
            each = [made[first : first + records] for first in range(0, len(made), records)]
            write(self.source, TopicPartition(self.topic, partition), *each)
        self.number += batches * records

    def copied(self) -> int:
        """The number of records at the destination; they are read when there are others."""
        try:
            if (found := ends(self.destination, self.copies)) != self._ends:
                self._copied = sum(len(read(self.destination, at)) for at in self.copies)
                self._ends = found
        except Exception:  # noqa: BLE001 - the topic is not there yet
            return 0
        return self._copied

    def has(self, at: TopicPartition) -> bool:
        """Whether a topic-partition of the destination exists and has records."""
        try:
            return bool(read(self.destination, at))
        except Exception:  # noqa: BLE001 - the topic is not there yet
            return False

    def assert_equal(self) -> None:
        """Assert that the destination has every record once, in order."""
        for partition, copy in enumerate(self.copies):
            expected = records_of(self.source, TopicPartition(self.topic, partition))
            assert_equal(expected, records_of(self.destination, copy))

    def all_succeeded(self, dagster: Dagster) -> dict[str, list[str]]:
        """Wait until every run has ended well; return the windows of the topic by status."""
        graphql.wait(
            lambda: {run.status for run in graphql.runs(dagster)} == {"SUCCESS"},
            "the end of the runs",
        )
        return graphql.partitions(dagster, self.asset)

    def all_arrived(self, seconds: float = 120.0) -> None:
        """Wait until as many records have arrived as were produced, then compare."""
        graphql.wait(lambda: self.copied() >= 2 * self.number, "the last record", seconds)
        self.assert_equal()


def process_of(dagster: Dagster, run_id: str) -> int:
    started = " ".join(graphql.messages(dagster, run_id))
    found = re.search(r"\(pid: (\d+)\)", started)
    assert found, started
    return int(found[1])

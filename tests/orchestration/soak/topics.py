"""The topics of a soak: what a writer adds to them, and what their copies must be."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event

from confluent_kafka import KafkaException

from relay_pipelines.model import Cluster, TopicPartition
from tests.support.independent import (
    CREATE_TIME,
    Record,
    assert_equal,
    create,
    delete,
    ends,
    read,
    records_of,
    until,
    write,
)

_TAIL = 300
"""Enough offsets at the end of a copy to find its last record between markers."""
_POLL_SECONDS = 1.0


@dataclass
class SoakTopic:
    """A topic whose records are numbered, and its copy.

    Args:
        rate: records a second and topic-partition.
        logs: for each topic-partition, the records that were committed of each log that the topic
            had before it was recreated.
    """

    source: Cluster
    destination: Cluster
    name: str
    copy_name: str
    partitions: int
    rate: int
    logs: list[list[list[Record]]] = field(init=False)
    number: int = field(default=0, init=False)
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.logs = [[] for _ in range(self.partitions)]
        self._create()

    @property
    def copies(self) -> list[TopicPartition]:
        return [TopicPartition(self.copy_name, number) for number in range(self.partitions)]

    @property
    def originals(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    def write(self, records: int) -> None:
        with self._writing:
            stamp = CREATE_TIME, int(time.time() * 1000)
            for at in self.originals:
                values = [f"{at.partition}/{self.number + more}" for more in range(records)]
                batch = [Record(b"k", value.encode(), timestamp=stamp) for value in values]
                write(self.source, at, batch)
            self.number += records

    def last_copied(self) -> int:
        """The number up to which all topic-partitions are copied; -1 if that cannot be seen."""
        try:
            found = ends(self.destination, self.copies)
            return min(self._last(at, end) for at, end in found.items())
        except (KafkaException, AssertionError):  # the topic is not there, or a broker is away
            return -1

    def offsets_copied(self) -> int:
        return sum(ends(self.destination, self.copies).values())

    def waiting(self) -> int:
        """The number of records that the source has and the copy has not."""
        held = sum(len(records) for records in self._expected())
        return held - sum(len(records_of(self.destination, at)) for at in self.copies)

    def assert_equal(self) -> None:
        """Assert that the copy has every record of each log once, in order."""
        for at, expected in zip(self.copies, self._expected(), strict=True):
            assert_equal(expected, records_of(self.destination, at))

    @contextmanager
    def recreated(self, records: int) -> Iterator[None]:
        """Create it again with some records; in the block, its copy must keep what it had."""
        with self._writing:
            before = self._expected()
            copied = [len(records_of(self.destination, at)) for at in self.copies]
            delete(self.source, self.name)
            self._create()
        self.write(records)
        yield
        for logs, at, had, whole in zip(self.logs, self.copies, copied, before, strict=True):
            found = records_of(self.destination, at)
            assert len(found) >= had, f"{at} has {len(found)} records and had {had}"
            assert_equal(whole[: len(found)], found)
            logs.append(found[sum(map(len, logs)) :])

    def _expected(self) -> list[list[Record]]:
        return [
            [record for log in logs for record in log] + records_of(self.source, at)
            for logs, at in zip(self.logs, self.originals, strict=True)
        ]

    def _last(self, at: TopicPartition, end: int) -> int:
        found = read(self.destination, at, start=max(0, end - _TAIL))
        return int((found[-1][1].value or b"").split(b"/")[1]) if found else -1

    def _create(self) -> None:
        create(self.source, self.name, self.partitions, {"retention.ms": "-1"})


def writer(topics: Mapping[str, SoakTopic]) -> Callable[[Event], None]:

    def work(over: Event) -> None:
        while not over.wait(1.0):
            for topic in list(topics.values()):
                if topic.rate:
                    with suppress(AssertionError):  # the broker is away; some may be written
                        topic.write(topic.rate)

    return work


def seconds_until_copied(
    topic: SoakTopic,
    limit_seconds: float,
    *,
    from_now: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
) -> float:
    """Wait for what is written from now on, or all that is there; call something meanwhile."""
    began = time.monotonic()
    # a number that only a record has that is written from now on, or the last one by now
    number = topic.number + (topic.rate if from_now else -1)

    def arrived() -> bool:
        meanwhile()
        return topic.last_copied() >= number

    until(arrived, f"record {number} of {topic.name}", limit_seconds, _POLL_SECONDS)
    return time.monotonic() - began

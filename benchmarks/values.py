"""The values of a benchmark: cases to copy, and the cost of a copy."""

from __future__ import annotations

from dataclasses import dataclass

from relay_pipelines.model import Cluster, OffsetRange, TopicPartition

PARTITIONS = 2
LARGE_BATCHES = ("1k-128k", "100b-128k")


@dataclass(frozen=True, slots=True)
class Extent:
    """The records of one topic-partition that a consumer sees.

    Args:
        range: the offsets from the first to the last stable offset.
        records: the number of committed records.
        size_bytes: the size of their batches in the log.
        batches: the number of committed batches, without control batches.
    """

    range: OffsetRange
    records: int
    size_bytes: int
    batches: int


@dataclass(frozen=True, slots=True)
class Case:
    """One copy to make.

    Args:
        attempt: a name, unique in the run; the destination topic is `<attempt>.<source topic>`,
            which is MirrorMaker's naming scheme.
        extents: the extents of the source topic, by partition.
        codec: the compression of the input, for contenders that choose one.
        limit_seconds: the time limit of the contender.
        over_tls: source and destination at their TLS listeners.
    """

    attempt: str
    source: Cluster
    destination: Cluster
    topic: str
    extents: tuple[Extent, ...]
    codec: str
    limit_seconds: float
    over_tls: tuple[Cluster, Cluster] | None = None

    @property
    def destination_topic(self) -> str:
        """The topic to copy to."""
        return f"{self.attempt}.{self.topic}"

    @property
    def records(self) -> int:
        """The number of records to copy."""
        return sum(extent.records for extent in self.extents)

    @property
    def pairs(self) -> list[tuple[OffsetRange, TopicPartition]]:
        """Each source range with its destination."""
        return [
            (one.range, TopicPartition(self.destination_topic, one.range.topic_partition.partition))
            for one in self.extents
        ]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one copy; None where a contender cannot measure it.

    CPU seconds are those of all processes of the contender.

    Args:
        copy_seconds, copy_cpu_seconds: the copy phase, after everything has started.
        task_cpu_seconds: the part of `copy_cpu_seconds` that the Python tasks used.
        whole_seconds, whole_cpu_seconds: the time since the start of the first process.
        peak_memory_bytes: the largest resident size of a process that copies records.
        error: why the copy did not finish; empty if it did.
    """

    copy_seconds: float | None = None
    copy_cpu_seconds: float | None = None
    task_cpu_seconds: float | None = None
    whole_seconds: float | None = None
    whole_cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the raw figures.

    Args:
        copied: records at the destination, counted after the copy.
    """

    input: str
    contender: str
    repetition: int
    records: int
    size_bytes: int
    copied: int
    cost: Cost

    @property
    def complete(self) -> bool:
        """Whether it copied every record once."""
        return not self.cost.error and self.copied == self.records

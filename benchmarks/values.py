"""The values of a benchmark: cases to copy, and the cost of a copy."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.inputs import CODEC_NAMES, Input
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition

TASKS = 2
"""How many processes, tasks or threads a contender may use to copy."""
LARGE_BATCHES = ("1k-128k", "100b-128k")
AUDITED = ("1k-128k", "1k-16k")
"""The inputs whose copies are audited."""
ENOUGH_SECONDS = 20.0
PROFILED = ("1k-128k", "compacted", "one-record")


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
        attempt: a name, unique in the run; a destination topic is `<attempt>.<source topic>`,
            which is MirrorMaker's naming scheme.
        topic: the source topic, or what the names of all source topics begin with.
        extents: the extents of the source topics, in the order of their topic-partitions.
        limit_seconds: the time limit of the contender.
        over_tls: source and destination at their TLS listeners.
    """

    attempt: str
    source: Cluster
    destination: Cluster
    topic: str
    input: Input
    extents: tuple[Extent, ...]
    limit_seconds: float
    over_tls: tuple[Cluster, Cluster] | None = None

    @property
    def codec(self) -> str:
        """The compression of the input, for contenders that choose one."""
        return CODEC_NAMES[self.input.codec]

    @property
    def topics_regex(self) -> str:
        """Matches the names of the source topics, and no other."""
        return self.topic.replace(".", "\\.") + (r"-\d+" if self.input.topics > 1 else "")

    @property
    def topics(self) -> dict[str, str]:
        """The destination topic of each source topic."""
        return {source.topic_partition.topic: to.topic for source, to in self.pairs}

    @property
    def records(self) -> int:
        """The number of records to copy."""
        return sum(extent.records for extent in self.extents)

    @property
    def pairs(self) -> list[tuple[OffsetRange, TopicPartition]]:
        """Each source range with its destination."""
        return [
            (extent.range, TopicPartition(f"{self.attempt}.{tp.topic}", tp.partition))
            for extent in self.extents
            for tp in [extent.range.topic_partition]
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


@dataclass(frozen=True, slots=True)
class Spent:
    """Wall and CPU time of this process."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class AuditCost:
    """What audits of the copy of an input took, beside that copy.

    Args:
        ledger, recount, full: the audit of that level.
    """

    input: str
    size_bytes: int
    copy: Spent
    ledger: Spent
    recount: Spent
    full: Spent


@dataclass(slots=True)
class Figures:
    """All measurements.

    Args:
        extents: the offsets, records and bytes of each input at the source, by name.
        profiles: the profile of one task, by input.
        left_out: contenders that could not run, and why.
    """

    inputs: list[Input] = field(default_factory=list)
    extents: dict[str, tuple[Extent, ...]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    profiles: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    guarantees: dict[str, str] = field(default_factory=dict)
    audits: list[AuditCost] = field(default_factory=list)

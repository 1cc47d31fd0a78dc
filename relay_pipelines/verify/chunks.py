"""Reads chunks on both sides and compares them. Runs in a task; nothing in it needs Spark."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from relay_pipelines.errors import (
    DataLossError,
    DestinationError,
    RelayError,
    RetriableError,
    SourceError,
)
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import FetchedSpan, read
from relay_pipelines.protocol.retries import retry
from relay_pipelines.snapshot.clients import destination_client, source_client
from relay_pipelines.state.checkpoint import wait_until_stable
from relay_pipelines.verify.comparison import BatchSide, Comparison, Part, Side, compare
from relay_pipelines.verify.difference import Difference
from relay_pipelines.verify.latest_records import compare_latest, decoded

_AT_SOURCE = "retention has begun to delete them at the source"
_AT_DESTINATION = "retention has begun to delete them at the destination"


class Client(StrEnum):
    """What reads the chunks that are compared."""

    RELAY = "relay"
    LIBRDKAFKA = "librdkafka"


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What all tasks of an audit share.

    Args:
        nodes: of the source, in the order in which they are tried.
        client: what reads the chunks that are compared.
    """

    mirror: str
    nodes: tuple[Cluster, ...]
    destination: Cluster
    options: CopyOptions
    client: Client = Client.RELAY


@dataclass(frozen=True, slots=True)
class ComparedChunk:
    """One ledger entry, or all of a compacted topic-partition: what must be the same on both sides.

    Args:
        left_out: how many of the source's records are not at the destination.
        is_shared: whether copies of another source may lie between its own.
        is_compacted: whether only the latest record of each key must be the same.
        is_kept: whether the destination keeps everything, so that no copy may be gone.
    """

    source: OffsetRange
    destination: OffsetRange
    records: int
    size_bytes: int
    left_out: int = 0
    is_shared: bool = False
    is_compacted: bool = False
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a task found for one chunk.

    Args:
        node: the source node that was read.
        records: how many are the same; of a compacted topic-partition, how many keys.
        undecoded: how many of them were compared as bytes of batches.
        difference: where the two sides begin to differ.
        unread: why it could not be compared; empty if it was.
        error: why it could not be read; empty if it was.
    """

    chunk: ComparedChunk
    node: str = ""
    records: int = 0
    undecoded: int = 0
    difference: Difference | None = None
    unread: str = ""
    error: str = ""


def compare_chunks(
    job: AuditJob, chunks: Sequence[ComparedChunk], clock: Clock
) -> Iterator[ChunkResult]:
    """Compare each chunk and yield its result; never raises a `RelayError`.

    What one node cannot answer is asked of the next one. An error that names a topic-partition
    concerns its chunk alone; after another one, the chunks after it are not tried there.
    """
    left, errors = list(chunks), [""] * len(chunks)
    for node in job.nodes:
        failed: list[tuple[ComparedChunk, str]] = []
        with _readers(job, node, clock) as (source, destination):
            comparing = _Comparing(job, source, destination, clock)
            for number, chunk in enumerate(left):
                try:
                    yield comparing.result(chunk, patient=node is job.nodes[-1])
                except RetriableError as error:
                    is_alone = error.topic_partition is not None
                    rest = [chunk] if is_alone else left[number:]
                    failed += [(each, str(error)) for each in rest]
                    if not is_alone:
                        break
        left, errors = [chunk for chunk, _ in failed], [why for _, why in failed]
    for chunk, why in zip(left, errors, strict=True):
        yield ChunkResult(chunk, error=why)


@contextmanager
def _readers(job: AuditJob, node: Cluster, clock: Clock) -> Iterator[tuple[_Reader, _Reader]]:
    """Open what reads one node and the destination."""
    options = job.options
    if job.client is Client.LIBRDKAFKA:
        from relay_pipelines.verify.librdkafka import LibrdkafkaReader  # few need it

        with (
            LibrdkafkaReader(job.mirror, node, SourceError, options, clock) as read_source,
            LibrdkafkaReader(
                job.mirror, job.destination, DestinationError, options, clock
            ) as read_destination,
        ):
            yield read_source, read_destination
        return
    with (
        source_client(job.mirror, node, options.request_timeout_ms, "audit") as source,
        destination_client(job.mirror, job.destination, options, "audit") as destination,
    ):
        yield (
            _OwnReader(source, options, clock),
            _OwnReader(destination, options, clock, waits=True),
        )


class _Reader(Protocol):
    """Reads offset ranges of one cluster."""

    @property
    def name(self) -> str:
        """Of the cluster."""

    def log(self, wanted: OffsetRange) -> tuple[int, int]:
        """Return the offsets at which the log of a range begins and ends."""

    def read(self, wanted: OffsetRange) -> Generator[Any, None, None]:
        """Yield what is in a range, as `side` and `parts` take it."""

    def side(self, found: Generator[Any, None, None], *, one_producer: bool = False) -> Side:
        """Return the records as a side of a comparison."""

    def parts(self, found: Generator[Any, None, None]) -> Iterator[Part]:
        """Return the records."""

    def close(self) -> None:
        """Close the connections; the next call connects again."""


class _OwnReader:
    """Reads over the connection of the copy.

    Args:
        waits: whether open transactions may hide the range for a moment.
    """

    def __init__(
        self, client: ClusterClient, options: CopyOptions, clock: Clock, *, waits: bool = False
    ) -> None:
        self._client = client
        self._options = options
        self._clock = clock
        self._waits = waits
        self._logs: dict[TopicPartition, tuple[int, int]] = {}

    @property
    def name(self) -> str:
        return self._client.cluster.name

    def log(self, wanted: OffsetRange) -> tuple[int, int]:
        """Return low watermark and last stable offset, once no transaction hides the range."""
        at, client = wanted.topic_partition, self._client
        known = self._logs.get(at, (0, -1))
        if known[1] < wanted.end:
            high = client.list_offsets([at], LATEST, READ_UNCOMMITTED)[at]
            if self._waits:
                end = min(wanted.end, high)
                wait_until_stable(client, at, end, self._options, self._clock)
            low = client.list_offsets([at], EARLIEST, READ_COMMITTED)[at]
            stable = client.list_offsets([at], LATEST, READ_COMMITTED)[at]
            known = self._logs[at] = low, stable
        return known

    def read(self, wanted: OffsetRange) -> Generator[list[FetchedSpan], None, None]:
        return read(self._client, wanted, self._options.fetch_max_bytes, self._clock)

    @staticmethod
    def side(
        found: Generator[list[FetchedSpan], None, None], *, one_producer: bool = False
    ) -> Side:
        return BatchSide(found, one_producer=one_producer)

    @staticmethod
    def parts(found: Generator[list[FetchedSpan], None, None]) -> Iterator[Part]:
        return decoded(found)

    def close(self) -> None:
        self._client.close()


class _Comparing:
    """Compares chunks between one node and the destination."""

    def __init__(self, job: AuditJob, source: _Reader, destination: _Reader, clock: Clock) -> None:
        self._job = job
        self._source = source
        self._destination = destination
        self._clock = clock

    def result(self, chunk: ComparedChunk, *, patient: bool) -> ChunkResult:
        """Return what is found.

        Args:
            patient: as in `retry`.

        Raises:
            RetriableError: a cluster does not answer.
        """
        node = self._source.name
        ask = partial(self._compare, chunk)
        clients = self._source, self._destination
        try:
            return retry(
                ask, self._job.mirror, self._job.options, self._clock, *clients, patient=patient
            )
        except RetriableError:
            raise
        except DataLossError as error:  # retention, since the watermarks were read
            return ChunkResult(chunk, node, unread=error.what)
        except RelayError as error:
            return ChunkResult(chunk, node, error=str(error))

    def _compare(self, chunk: ComparedChunk) -> ChunkResult:
        node = self._source.name
        source_low, source_end = self._source.log(chunk.source)
        low, end = self._destination.log(chunk.destination)
        if len(chunk.destination) and low > chunk.destination.start:
            if chunk.is_kept:
                what = f"the destination's log begins at {low}, although its topic keeps everything"
                return ChunkResult(chunk, node, difference=Difference(what, None, None))
            return ChunkResult(chunk, node, unread=_AT_DESTINATION)
        if source_low > chunk.source.start:
            return ChunkResult(chunk, node, unread=_AT_SOURCE)
        if source_end < chunk.source.end:
            return ChunkResult(chunk, node, unread=f"the source's log ends at {source_end}")
        if chunk.is_compacted:
            found = self._compare_latest(chunk, (source_low, source_end), (low, end))
        else:
            found = self._compare_records(chunk, end)
        return ChunkResult(chunk, node, found.records, found.undecoded, found.difference)

    def _compare_records(self, chunk: ComparedChunk, destination_end: int) -> Comparison:
        copies = replace(chunk.destination, end=min(chunk.destination.end, destination_end))
        with (
            closing(self._source.read(chunk.source)) as source,
            closing(self._destination.read(copies)) as destination,
        ):
            return compare(
                self._source.side(source),
                self._destination.side(destination, one_producer=chunk.is_shared),
                chunk.left_out,
            )

    def _compare_latest(
        self, chunk: ComparedChunk, source_log: tuple[int, int], log: tuple[int, int]
    ) -> Comparison:
        at, to = chunk.source.topic_partition, chunk.destination.topic_partition
        copies = OffsetRange(to, log[0], min(chunk.destination.end, log[1]))
        with (
            closing(self._source.read(OffsetRange(at, *source_log))) as source,
            closing(self._destination.read(copies)) as destination,
        ):
            return compare_latest(
                self._source.parts(source), self._destination.parts(destination), chunk.source
            )

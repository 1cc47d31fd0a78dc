"""Reads chunks on both sides and compares them. Runs in a task; nothing in it needs Spark."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from relay_pipelines.errors import DataLossError, RelayError, RetriableError
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
from relay_pipelines.verify.comparison import Comparison, Side, compare
from relay_pipelines.verify.difference import Difference
from relay_pipelines.verify.latest_records import compare_latest

_AT_SOURCE = "retention has begun to delete them at the source"
_AT_DESTINATION = "retention has begun to delete them at the destination"


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What all tasks of an audit share.

    Args:
        nodes: of the source, in the order in which they are tried.
    """

    mirror: str
    nodes: tuple[Cluster, ...]
    destination: Cluster
    options: CopyOptions


@dataclass(frozen=True, slots=True)
class ComparedChunk:
    """One ledger entry, or all of a compacted topic-partition: what must be the same on both sides.

    Args:
        left_out: how many of the source's records are not at the destination.
        is_shared: whether copies of another source may lie between its own.
        is_compacted: whether only the latest record of each key must be the same.
    """

    source: OffsetRange
    destination: OffsetRange
    records: int
    size_bytes: int
    left_out: int = 0
    is_shared: bool = False
    is_compacted: bool = False


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
        with (
            source_client(job.mirror, node, job.options.request_timeout_ms, "audit") as source,
            destination_client(job.mirror, job.destination, job.options, "audit") as destination,
        ):
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


class _Comparing:
    """Compares chunks between one node and the destination."""

    def __init__(
        self, job: AuditJob, source: ClusterClient, destination: ClusterClient, clock: Clock
    ) -> None:
        self._job = job
        self._source = source
        self._destination = destination
        self._clock = clock
        self._logs: dict[tuple[ClusterClient, TopicPartition], tuple[int, int]] = {}

    def result(self, chunk: ComparedChunk, *, patient: bool) -> ChunkResult:
        """Return what is found.

        Args:
            patient: as in `retry`.

        Raises:
            RetriableError: a cluster does not answer.
        """
        node = self._source.cluster.name
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
        node = self._source.cluster.name
        source_low, source_end = self._log(self._source, chunk.source)
        low, end = self._log(self._destination, chunk.destination)
        if len(chunk.destination) and low > chunk.destination.start:
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
            closing(self._read(self._source, chunk.source)) as source,
            closing(self._read(self._destination, copies)) as destination,
        ):
            return compare(
                Side(source), Side(destination, one_producer=chunk.is_shared), chunk.left_out
            )

    def _compare_latest(
        self, chunk: ComparedChunk, source_log: tuple[int, int], log: tuple[int, int]
    ) -> Comparison:
        at, to = chunk.source.topic_partition, chunk.destination.topic_partition
        copies = OffsetRange(to, log[0], min(chunk.destination.end, log[1]))
        with (
            closing(self._read(self._source, OffsetRange(at, *source_log))) as source,
            closing(self._read(self._destination, copies)) as destination,
        ):
            return compare_latest(source, destination, chunk.source)

    def _read(
        self, client: ClusterClient, wanted: OffsetRange
    ) -> Generator[list[FetchedSpan], None, None]:
        return read(client, wanted, self._job.options.fetch_max_bytes, self._clock)

    def _log(self, client: ClusterClient, wanted: OffsetRange) -> tuple[int, int]:
        """Return low watermark and last stable offset, once no transaction hides the range."""
        at = wanted.topic_partition
        known = self._logs.get((client, at), (0, -1))
        if known[1] < wanted.end:
            high = client.list_offsets([at], LATEST, READ_UNCOMMITTED)[at]
            if client is self._destination:
                end = min(wanted.end, high)
                wait_until_stable(client, at, end, self._job.options, self._clock)
            low = client.list_offsets([at], EARLIEST, READ_COMMITTED)[at]
            stable = client.list_offsets([at], LATEST, READ_COMMITTED)[at]
            known = self._logs[client, at] = low, stable
        return known

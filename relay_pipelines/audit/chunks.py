"""Reads chunks on both sides and compares them. Runs in a task; nothing in it needs Spark."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from relay_pipelines.audit.comparison import ComparedChunk, Comparison, Difference, Side, compare
from relay_pipelines.audit.key_comparison import compare_keys, decoded
from relay_pipelines.errors import DataLossError, RelayError, RetriableError, TopicRecreatedError
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.admin import size_on_disk
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    destination_client,
    source_client,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.open_transactions import wait_until_stable
from relay_pipelines.protocol.reader import FetchedSpan, read
from relay_pipelines.protocol.retries import retry

_AT_SOURCE = "retention has begun to delete them at the source"
_AT_DESTINATION = "retention has begun to delete them at the destination"


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What all tasks of an audit share.

    Args:
        upstreams: of the source that have answered the driver, in the order in which they are
            tried; each, like the destination, with the id of its cluster.
    """

    mirror: str
    upstreams: tuple[Cluster, ...]
    destination: Cluster
    options: CopyOptions


def compare_chunks(
    job: AuditJob, chunks: Sequence[ComparedChunk], clock: Clock
) -> Iterator[Comparison]:
    """Compare each chunk and yield its result; never raises a `RelayError`.

    A chunk is compared with the upstreams that have the log from which it was copied. What these
    cannot answer is asked of the others: as the offsets of two logs may differ, they can confirm a
    chunk, not refute it.
    """
    left = [_Pending(chunk) for chunk in chunks]
    for is_own, upstream in product((True, False), job.upstreams):
        here = [each for each in left if (upstream.name in each.chunk.own_logs) is is_own]
        if here:
            yield from _compare_at(job, upstream, here, clock)
            left = [each for each in left if not each.is_done]
    for each in left:
        yield each.result()


@dataclass(slots=True)
class _Pending:
    """A chunk without a result yet.

    Args:
        refuted_by: another upstream, which holds other records at its offsets.
        silent: why upstreams did not tell whether they hold it, by their names.
    """

    chunk: ComparedChunk
    is_done: bool = False
    refuted_by: str = ""
    silent: dict[str, RelayError] = field(default_factory=dict)

    def refute(self, upstream: Cluster) -> None:
        """Note that an upstream that does not have its log, or no longer, holds other records."""
        self.refuted_by = self.refuted_by or upstream.name
        self.silent[upstream.name] = TopicRecreatedError("the topic was created again since")

    def result(self) -> Comparison:
        """Return why it was not compared."""
        chunk, errors = self.chunk, list(self.silent.items())
        if not self.refuted_by:
            return Comparison(chunk, error=str(errors[-1][1]) if errors else "")
        silent = [error.what for upstream, error in errors if upstream in chunk.own_logs]
        why = (
            f"they were copied from upstream {chunk.upstream}, where {silent[-1]}"
            if silent
            else chunk.no_own or "they were copied from several upstreams, whose offsets may differ"
        )
        what = f"upstream {self.refuted_by} does not hold these records at these offsets"
        return Comparison(chunk, self.refuted_by, unread=f"{what}; {why}")


def _compare_at(
    job: AuditJob, upstream: Cluster, group: Sequence[_Pending], clock: Clock
) -> Iterator[Comparison]:
    """Compare chunks with one upstream, and yield the results.

    An error that names a topic-partition concerns its chunks alone; after another one, the chunks
    after it are not tried there.
    """
    with (
        source_client(job.mirror, upstream, job.options, clock, "audit") as source,
        destination_client(job.mirror, job.destination, job.options, clock, "audit") as destination,
    ):
        comparing = _Comparing(source, destination)
        for number, pending in enumerate(group):
            chunk = pending.chunk
            if upstream.name in pending.silent:
                continue
            last = [
                each for each in job.upstreams if each.name not in chunk.own_logs
            ] or job.upstreams
            try:
                result = comparing.result(chunk, patient=upstream is last[-1])
                refutes = result.difference is not None and result.difference.is_of_both
                if refutes and not _has_own_log(job, upstream, chunk):
                    pending.refute(upstream)
                    continue
            except RetriableError as error:
                tp = error.topic_partition
                for each in group[number:]:
                    if each is pending or tp is None or tp in each.chunk.topic_partitions:
                        each.silent[upstream.name] = error
                continue
            pending.is_done = True
            yield result


def _has_own_log(job: AuditJob, upstream: Cluster, chunk: ComparedChunk) -> bool:
    """Whether an upstream has the log of a chunk, and still has it."""
    if upstream.name not in chunk.own_logs:
        return False
    with source_client(job.mirror, upstream, job.options, purpose="audit") as client:
        topic_id = client.topic(chunk.source.topic_partition.topic).topic_id
    known = chunk.own_logs[upstream.name]
    return not (known and topic_id) or known == topic_id


@dataclass(frozen=True, slots=True)
class _Comparing:
    """Compares chunks between one upstream and the destination.

    Args:
        logs: where the logs begin and end, as far as they were asked.
    """

    source: ClusterClient
    destination: ClusterClient
    logs: dict[tuple[bool, TopicPartition], tuple[int, int]] = field(default_factory=dict)

    def result(self, chunk: ComparedChunk, *, patient: bool) -> Comparison:
        """Return what is found."""
        source, upstream = self.source, self.source.cluster.name

        def ask() -> Comparison:
            try:
                return self._compare(chunk)
            except RelayError:
                self.logs.clear()  # they may have changed
                raise

        try:
            # what is deleted after the watermarks were read is before them in the next attempt
            return retry(
                *(ask, source.mirror, source.options, source.clock, source, self.destination),
                patient=patient,
                also=(DataLossError,),
            )
        except RetriableError:
            raise
        except DataLossError as error:  # records are deleted as fast as they are read
            return Comparison(chunk, upstream, unread=error.what)
        except RelayError as error:
            return Comparison(chunk, upstream, error=str(error))

    def log(self, client: ClusterClient, offset_range: OffsetRange) -> tuple[int, int]:
        """Return low watermark and last stable offset, once no transaction hides the copies."""
        tp, is_copy = offset_range.topic_partition, client is self.destination
        key = is_copy, tp
        if self.logs.get(key, (0, -1))[1] < offset_range.end:
            if is_copy:
                high = client.list_offsets([tp], LATEST, READ_UNCOMMITTED)[tp]
                wait_until_stable(client, tp, min(offset_range.end, high))
            low = client.list_offsets([tp], EARLIEST, READ_COMMITTED)[tp]
            self.logs[key] = low, client.list_offsets([tp], LATEST, READ_COMMITTED)[tp]
        return self.logs[key]

    def _compare(self, chunk: ComparedChunk) -> Comparison:
        upstream = self.source.cluster.name
        source_low, source_end = self.log(self.source, chunk.source)
        low, _ = self.log(self.destination, chunk.destination)
        if len(chunk.destination) and low > chunk.destination.start:
            if unexplained := self._unexplained(chunk, low):
                what = f"the destination's log begins at {low}, although {unexplained}"
                difference = Difference(what, None, None, is_of_both=False)
                return Comparison(chunk, upstream, difference=difference)
            return Comparison(chunk, upstream, unread=_AT_DESTINATION)
        if source_low > chunk.source.start:
            return Comparison(chunk, upstream, unread=f"{_AT_SOURCE}, on upstream {upstream}")
        if source_end < chunk.source.end:
            return Comparison(
                chunk, upstream, unread=f"the log of upstream {upstream} ends at {source_end}"
            )
        compared = self._compare_both(chunk)
        if chunk.is_compacted and compared.difference:
            # a later record may have removed one while it was read
            self.logs.clear()
            compared = self._compare_both(chunk)
        compared.upstream = upstream
        return compared

    def _unexplained(self, chunk: ComparedChunk, low: int) -> str:
        """Say which retention cannot have deleted the beginning of the copies, if any.

        Nobody knows the timestamps of several chunks here, but the recount looks at each.
        """
        tp = chunk.destination.topic_partition
        entries = [chunk.entry] if chunk.entry else []
        size_bytes = partial(size_on_disk, self.destination, tp)
        now_ms = self.destination.clock.now_ms()
        return chunk.policies.contradicting(entries, low, now_ms, size_bytes)

    def _compare_both(self, chunk: ComparedChunk) -> Comparison:
        """Compare in order; or key by key, on to the ends of both logs for keys that come again."""
        by_key = chunk.is_compacted
        _, source_end = self.log(self.source, chunk.source)
        _, destination_end = self.log(self.destination, chunk.destination)
        originals = replace(chunk.source, end=source_end) if by_key else chunk.source
        end = destination_end if by_key else min(chunk.destination.end, destination_end)
        copies = replace(chunk.destination, end=end)
        with (
            closing(_read(self.source, originals)) as source,
            closing(_read(self.destination, copies)) as destination,
        ):
            if by_key:
                return compare_keys(decoded(source), decoded(destination), chunk)
            return compare(Side(source), Side(destination, chunk.producer_id), chunk)


def _read(
    client: ClusterClient, offset_range: OffsetRange
) -> Generator[list[FetchedSpan], None, None]:
    return read(client, offset_range, client.options.fetch_max_bytes)

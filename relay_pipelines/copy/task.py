"""One task: several ranges, one after the other, over the same connections. What Spark runs; runs anywhere else as well."""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from relay_pipelines.copy.copier import RangeCopier
from relay_pipelines.copy.failover import FailoverSource
from relay_pipelines.copy.failpoints import Failpoint, failpoint
from relay_pipelines.copy.filtering import FilterChain
from relay_pipelines.copy.sources import BatchSource, FetchedBatches
from relay_pipelines.copy.throttle import Throttles
from relay_pipelines.copy.transaction import RangeTransactions
from relay_pipelines.copy.user_class import describe
from relay_pipelines.errors import DestinationError, FencedError, RelayError, RetriableError
from relay_pipelines.model import CopyJob, CopyOptions, CopyRange, Outcome, Status
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from relay_pipelines.copy.row_stream import RowStream

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024

SourceOf = Callable[[CopyRange, CopyOptions, FailoverSource], BatchSource]
"""Makes the source of a range's batches."""


def copy_ranges(
    job: CopyJob, ranges: Iterable[CopyRange], clock: Clock | None = None
) -> Iterator[Outcome]:
    """Copy each range as its node holds it, and yield its outcome; never raises what is in the error tree."""
    clock = clock or SystemClock()

    def source_of(
        copy_range: CopyRange, options: CopyOptions, nodes: FailoverSource
    ) -> BatchSource:
        record_policy, at = copy_range.record_policy, copy_range.source.topic_partition
        filters = (
            FilterChain(record_policy.filters, at, record_policy.on_record_error)
            if record_policy.filters
            else None
        )
        return FetchedBatches(copy_range, options, nodes, filters, clock)

    return _copy_each(job, ((copy_range, source_of) for copy_range in ranges), clock)


def copy_kept(
    job: CopyJob, ranges: Sequence[CopyRange], batches: Iterable[pa.RecordBatch], clock: Clock
) -> Iterator[Outcome]:
    """Copy what a predicate keeps of each range, and yield its outcome.

    Args:
        batches: what `read_rows` yields for the same ranges, of what is kept the offsets, and every
            marker.
    """
    from relay_pipelines.copy.kept_offsets import KeptOffsets

    def source_of(
        stream: RowStream,
        index: int,
        copy_range: CopyRange,
        options: CopyOptions,
        nodes: FailoverSource,
    ) -> BatchSource:
        kept = KeptOffsets(copy_range.source.topic_partition, stream, index)
        return FetchedBatches(copy_range, options, nodes, kept, clock)

    return _copy_stream(job, ranges, batches, clock, source_of)


def copy_rows(
    job: CopyJob, ranges: Sequence[CopyRange], batches: Iterable[pa.RecordBatch], clock: Clock
) -> Iterator[Outcome]:
    """Write the rows of each range, and yield its outcome.

    Args:
        batches: what `read_rows` yields for the same ranges, with rows left out or changed, and
            every marker.
    """
    from relay_pipelines.copy.row_batches import RowBatches

    def source_of(
        stream: RowStream,
        index: int,
        copy_range: CopyRange,
        options: CopyOptions,
        _nodes: FailoverSource,
    ) -> BatchSource:
        return RowBatches(copy_range, options, stream, index)

    return _copy_stream(job, ranges, batches, clock, source_of)


def _copy_stream(
    job: CopyJob,
    ranges: Sequence[CopyRange],
    batches: Iterable[pa.RecordBatch],
    clock: Clock,
    source_of: Callable[[RowStream, int, CopyRange, CopyOptions, FailoverSource], BatchSource],
) -> Iterator[Outcome]:
    """Copy the ranges in the order in which Spark hands on their rows."""
    from relay_pipelines.copy.row_stream import RowStream

    stream = RowStream(batches)
    return _copy_each(
        job,
        ((ranges[index], partial(source_of, stream, index)) for index in stream.ranges()),
        clock,
    )


def _copy_each(
    job: CopyJob, ranges: Iterable[tuple[CopyRange, SourceOf]], clock: Clock
) -> Iterator[Outcome]:
    """Copy ranges over the same connections.

    Once a cluster has been away until the patience for one range was over, the ranges after it fail
    at once with the same error. One that names a topic-partition concerns it alone.
    """
    client_id = f"relay-{job.mirror}"
    away: RetriableError | None = None
    throttles = Throttles(job.options, clock)
    with (
        FailoverSource(job, client_id) as nodes,
        ClusterClient(
            job.destination, DestinationError, client_id, job.options.request_timeout_ms
        ) as destination,
    ):
        for copy_range, source_of in ranges:
            options = copy_range.record_policy.options or job.options
            transactions = RangeTransactions(
                job, copy_range, destination, throttles.of(copy_range), clock
            )
            source: BatchSource | None = None
            wall, cpu = clock.monotonic(), time.process_time()
            if away is not None:
                error: RelayError | None = away
            else:
                source, error = _copy_one(
                    copy_range, options, source_of, nodes, transactions, clock
                )
                away = _cluster_away(error, source, nodes)
            failpoint(Failpoint.BEFORE_OUTCOME)
            spent = (clock.monotonic() - wall, time.process_time() - cpu)
            node = source.node if source else nodes.node
            yield outcome_of(
                copy_range, transactions, node, source.diverged if source else {}, error, spent
            )


def _copy_one(
    copy_range: CopyRange,
    options: CopyOptions,
    source_of: SourceOf,
    nodes: FailoverSource,
    transactions: RangeTransactions,
    clock: Clock,
) -> tuple[BatchSource | None, RelayError | None]:
    """Copy one range; whatever goes wrong ends this range alone."""
    at = copy_range.source.topic_partition
    source: BatchSource | None = None
    try:
        source = source_of(copy_range, options, nodes)
        RangeCopier(copy_range, options, source, transactions, clock).copy()
    except RetriableError as error:
        return source, error
    except RelayError as error:
        error.topic_partition = error.topic_partition or at
        return source, error
    except Exception as error:  # noqa: BLE001 - a bug, ours or a library's, must not cost the neighbours their turn
        traceback.print_exc()  # for the executor's log
        return source, RelayError(
            f"the copy failed: {describe(error)}",
            remedy="see the trace in the log of the Spark executor",
            topic_partition=at,
        )
    return source, None


def _cluster_away(
    error: RelayError | None, source: BatchSource | None, nodes: FailoverSource
) -> RetriableError | None:
    """The error that the ranges after this one would only repeat, after as long a wait."""
    if (
        not isinstance(error, RetriableError)
        or error.topic_partition is not None
        or nodes.serves_some
    ):
        return None
    return error if source is None or source.can_reopen else None


def outcome_of(
    planned: CopyRange,
    transactions: RangeTransactions,
    node: str,
    diverged: dict[str, str],
    error: RelayError | None,
    spent: tuple[float, float],
) -> Outcome:
    """Return what became of a range.

    Args:
        node: the source node that was read last.
        spent: seconds, and CPU seconds.
    """
    chunks = transactions.committed
    skipped: Counter[str] = Counter()
    for chunk in chunks:
        skipped.update(chunk.skipped)
    status = (
        Status.DONE
        if error is None
        else Status.FENCED
        if isinstance(error, FencedError)
        else Status.FAILED
    )
    return Outcome(
        range=planned.source,
        destination=planned.destination,
        status=status,
        next_offset=planned.source.start
        if transactions.checkpoint is None
        else transactions.checkpoint.next_offset,
        records=sum(chunk.records for chunk in chunks),
        size_bytes=sum(chunk.size_bytes for chunk in chunks),
        batches=sum(chunk.batches for chunk in chunks),
        rewritten=sum(chunk.rewritten for chunk in chunks),
        skipped=dict(skipped),
        chunks=len(chunks),
        commit_seconds=transactions.commit_seconds,
        node=node,
        segments=tuple(transactions.segments),
        diverged=diverged,
        error_kind="" if error is None else type(error).__name__,
        error="" if error is None else str(error),
        exit_code=0 if error is None else error.exit_code,
        seconds=spent[0],
        cpu_seconds=spent[1],
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
    )

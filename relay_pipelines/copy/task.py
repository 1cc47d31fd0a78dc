"""One task: copies several ranges one after the other over the same connections.

Spark runs it, but nothing in it needs Spark.
"""

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
from relay_pipelines.copy.filtering import filter_chain
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

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024

MakeSource = Callable[[FailoverSource], BatchSource]
"""Makes the source of one range's batches."""


def copy_ranges(
    job: CopyJob, ranges: Iterable[CopyRange], clock: Clock | None = None
) -> Iterator[Outcome]:
    """Copy each range as its node holds it, and yield its outcome; never raises a `RelayError`."""
    clock = clock or SystemClock()

    def make_source(copy_range: CopyRange, nodes: FailoverSource) -> BatchSource:
        options = job.options_for(copy_range)
        return FetchedBatches(copy_range, options, nodes, filter_chain(copy_range), clock)

    return _copy_each(job, ((each, partial(make_source, each)) for each in ranges), clock)


def copy_kept(
    job: CopyJob, ranges: Sequence[CopyRange], batches: Iterable[pa.RecordBatch], clock: Clock
) -> Iterator[Outcome]:
    """Copy the records of each range that a predicate keeps, and yield its outcome.

    Args:
        batches: the rows that `read_rows` yields for the same ranges: the offsets that the
            predicate keeps, and every marker.
    """
    from relay_pipelines.copy.kept_offsets import KeptOffsets
    from relay_pipelines.copy.row_stream import RowStream

    stream = RowStream(batches)

    def make_source(index: int, nodes: FailoverSource) -> BatchSource:
        copy_range = ranges[index]
        kept = KeptOffsets(copy_range.source.topic_partition, stream, index)
        return FetchedBatches(copy_range, job.options_for(copy_range), nodes, kept, clock)

    return _copy_each(job, ((ranges[i], partial(make_source, i)) for i in stream.ranges()), clock)


def copy_rows(
    job: CopyJob, ranges: Sequence[CopyRange], batches: Iterable[pa.RecordBatch], clock: Clock
) -> Iterator[Outcome]:
    """Write the rows of each range, and yield its outcome.

    Args:
        batches: the rows that `read_rows` yields for the same ranges; rows may be missing or
            changed, but every marker is there.
    """
    from relay_pipelines.copy.row_batches import RowBatches
    from relay_pipelines.copy.row_stream import RowStream

    stream = RowStream(batches)

    def make_source(index: int, _nodes: FailoverSource) -> BatchSource:
        return RowBatches(ranges[index], job.options_for(ranges[index]), stream, index)

    return _copy_each(job, ((ranges[i], partial(make_source, i)) for i in stream.ranges()), clock)


def _copy_each(
    job: CopyJob, ranges: Iterable[tuple[CopyRange, MakeSource]], clock: Clock
) -> Iterator[Outcome]:
    """Copy ranges over the same connections.

    If a range gives up because a cluster cannot be reached, the ranges after it fail at once with
    the same error. An error that names a topic-partition affects that range alone.
    """
    client_id = f"relay-{job.mirror}"
    unreachable: RetriableError | None = None
    throttles = Throttles(job.options, clock)
    with (
        FailoverSource(job, client_id) as nodes,
        ClusterClient(
            job.destination, DestinationError, client_id, job.options.request_timeout_ms
        ) as destination,
    ):
        for copy_range, make_source in ranges:
            transactions = RangeTransactions(
                job, copy_range, destination, throttles.of(copy_range), clock
            )
            source: BatchSource | None = None
            wall, cpu = clock.monotonic(), time.process_time()
            if unreachable is not None:
                error: RelayError | None = unreachable
            else:
                options = job.options_for(copy_range)
                source, error = _copy_one(
                    copy_range, options, make_source, nodes, transactions, clock
                )
                unreachable = _unreachable_cluster(error, source, nodes)
            failpoint(Failpoint.BEFORE_OUTCOME)
            spent = (clock.monotonic() - wall, time.process_time() - cpu)
            node = source.node if source else nodes.node
            yield _outcome(
                copy_range, transactions, node, source.diverged if source else {}, error, spent
            )


def _copy_one(
    copy_range: CopyRange,
    options: CopyOptions,
    make_source: MakeSource,
    nodes: FailoverSource,
    transactions: RangeTransactions,
    clock: Clock,
) -> tuple[BatchSource | None, RelayError | None]:
    """Copy one range and return its error, if any: a failure affects this range alone."""
    topic_partition = copy_range.source.topic_partition
    source: BatchSource | None = None
    try:
        source = make_source(nodes)
        RangeCopier(options, source, transactions, clock).copy()
    except RetriableError as error:
        return source, error
    except RelayError as error:
        error.topic_partition = error.topic_partition or topic_partition
        return source, error
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other ranges
        traceback.print_exc()  # for the executor's log
        return source, RelayError(
            f"the copy failed: {describe(error)}",
            remedy="see the trace in the log of the Spark executor",
            topic_partition=topic_partition,
        )
    return source, None


def _unreachable_cluster(
    error: RelayError | None, source: BatchSource | None, nodes: FailoverSource
) -> RetriableError | None:
    """Return the error if the next ranges would only repeat it, after as long a wait."""
    if (
        not isinstance(error, RetriableError)
        or error.topic_partition is not None
        or nodes.failed_for_range_only
    ):
        return None
    return error if source is None or source.can_reopen else None


def _outcome(
    copy_range: CopyRange,
    transactions: RangeTransactions,
    node: str,
    diverged: dict[str, str],
    error: RelayError | None,
    spent: tuple[float, float],
) -> Outcome:
    """Return how the copy of a range ended.

    Args:
        node: the source node that was read last.
        spent: seconds, and CPU seconds.
    """
    chunks, checkpoint = transactions.committed, transactions.checkpoint
    skipped: Counter[str] = Counter()
    for chunk in chunks:
        skipped.update(chunk.skipped)
    failed = Status.FENCED if isinstance(error, FencedError) else Status.FAILED
    return Outcome(
        range=copy_range.source,
        destination=copy_range.destination,
        status=Status.DONE if error is None else failed,
        next_offset=copy_range.source.start if checkpoint is None else checkpoint.next_offset,
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

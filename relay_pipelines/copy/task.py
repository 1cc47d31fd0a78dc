"""One task: copies several ranges one after the other over the same connections.

Spark runs it, but nothing in it needs Spark.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from relay_pipelines.copy.copier import Copier, RangeCopy
from relay_pipelines.copy.failover import FailoverSource
from relay_pipelines.copy.failpoints import Failpoint, failpoint
from relay_pipelines.copy.filtering import filter_chain
from relay_pipelines.copy.sources import BatchSource, FetchedBatches
from relay_pipelines.copy.throttle import Throttles
from relay_pipelines.copy.transaction import RangeProgress, Transactions
from relay_pipelines.errors import (
    FencedError,
    RelayError,
    RetriableError,
    Side,
    TransactionPendingError,
)
from relay_pipelines.garbage import only_new_garbage_collected
from relay_pipelines.ledger.fencing import abort_leftovers
from relay_pipelines.ledger.last_checkpoint import Seen
from relay_pipelines.model import CopyJob, CopyRange, Outcome, Status
from relay_pipelines.plan.owners import owner_of
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024

MakeSource = Callable[[FailoverSource], BatchSource]
"""Makes the source of one range's batches."""


def copy_ranges(
    job: CopyJob, ranges: Iterable[CopyRange], clock: Clock | None = None
) -> Iterator[Outcome]:
    """Copy each range as its upstream holds it; yield its outcome; never raises a `RelayError`."""
    clock = clock or SystemClock()

    def make_source(copy_range: CopyRange, upstreams: FailoverSource) -> BatchSource:
        options = job.options_for(copy_range)
        return FetchedBatches(copy_range, options, upstreams, filter_chain(copy_range))

    groups: dict[str, list[tuple[CopyRange, MakeSource]]] = {}
    ranges = list(ranges)
    for number, each in enumerate(ranges):
        groups.setdefault(each.owner or str(number), []).append((each, partial(make_source, each)))
    owners = {owner_of(job.mirror, copy_range) for copy_range in ranges}
    return _copy_each(job, groups.values(), clock, owners)


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

    def make_source(index: int, upstreams: FailoverSource) -> BatchSource:
        copy_range = ranges[index]
        kept = KeptOffsets(copy_range.source.topic_partition, stream, index)
        return FetchedBatches(copy_range, job.options_for(copy_range), upstreams, kept)

    groups = ([(ranges[i], partial(make_source, i))] for i in stream.ranges())
    return _copy_each(job, groups, clock)


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

    def make_source(index: int, _upstreams: FailoverSource) -> BatchSource:
        return RowBatches(ranges[index], job.options_for(ranges[index]), stream, index)

    groups = ([(ranges[i], partial(make_source, i))] for i in stream.ranges())
    return _copy_each(job, groups, clock)


def _copy_each(
    job: CopyJob,
    groups: Iterable[Sequence[tuple[CopyRange, MakeSource]]],
    clock: Clock,
    owners: Collection[str] = (),
) -> Iterator[Outcome]:
    """Copy groups of ranges over the same connections; a group shares a transactional id.

    If a range gives up because no broker of a cluster answers, the groups after it fail at once
    with the same error. If some do, they may need others: each range has one attempt. An error that
    names a topic-partition affects that range alone.

    Args:
        owners: the transactional ids of all groups, under which a killed attempt of this task may
            have left a transaction open. Rows do not tell in advance which groups are the task's.
    """
    unreachable: RelayError | None = None
    is_asked, is_away = True, False  # whether any broker of that cluster answers
    throttles, seen = Throttles(job.options, clock), Seen(job.mirror)
    with (
        only_new_garbage_collected(),
        FailoverSource(job, clock) as upstreams,
        destination_client(job.mirror, job.destination, job.options, clock) as destination,
    ):
        clients: dict[Side, FailoverSource | ClusterClient]
        clients = {Side.SOURCE: upstreams, Side.DESTINATION: destination}
        left = set(owners)

        def unblock(held: str) -> None:
            """Abort, once, what hides checkpoints."""
            abort_leftovers(destination, left - {held})
            left.clear()

        for group in groups:
            ranges = [
                RangeCopy(
                    RangeProgress(job, copy_range, destination),
                    job.options_for(copy_range),
                    partial(make_source, upstreams),
                    throttles.of(copy_range),
                )
                for copy_range, make_source in group
            ]
            earlier = {side: client.throttled_seconds for side, client in clients.items()}
            if unreachable is not None and not is_asked:
                is_away = not clients[unreachable.side].answers()
                is_asked = True
            if unreachable is None or not is_away:
                options = ranges[0].options if len(ranges) == 1 else job.options
                options = replace(options, give_up_after_ms=0) if unreachable else options
                progress = ranges[0].progress
                transactions = Transactions(job, progress, options, destination, seen, unblock)
                Copier(ranges, options, transactions, upstreams, clock).copy()
                if error := next(filter(None, map(_unreachable, ranges)), None):
                    unreachable, is_asked = error, False
            else:
                for range_copy in ranges:
                    range_copy.fail_for_good(unreachable)
            failpoint(Failpoint.BEFORE_OUTCOME)
            throttled = {
                str(side): (client.throttled_seconds - earlier[side]) / len(ranges)
                for side, client in clients.items()
                if client.throttled_seconds > earlier[side]
            }
            for range_copy in ranges:
                yield _outcome(range_copy, upstreams.upstream, throttled)


def _unreachable(range_copy: RangeCopy) -> RelayError | None:
    """Return the range's error if the next ones may only repeat it, after as long a wait."""
    error, source = range_copy.error, range_copy.made_source
    if not range_copy.has_failed or not isinstance(error, RetriableError) or error.topic_partition:
        return None
    if isinstance(error, TransactionPendingError):
        return None  # other transactional ids may be free
    if source is None:
        return error
    return error if source.can_reopen and not source.failed_for_range_only else None


def _outcome(
    range_copy: RangeCopy, last_upstream: str, throttled_seconds: dict[str, float]
) -> Outcome:
    """Return how the copy of a range ended.

    Args:
        last_upstream: the upstream that the task read last.
        throttled_seconds: the range's share of what quotas made its group wait, by side.
    """
    progress, error, source = (
        range_copy.progress,
        range_copy.error if range_copy.has_failed else None,
        range_copy.made_source,
    )
    copy_range = progress.range
    chunks, checkpoint = progress.committed, progress.checkpoint
    if source and source.throttled_seconds:
        throttled_seconds = throttled_seconds | {str(Side.SOURCE): source.throttled_seconds}
    skipped: Counter[str] = Counter()
    for chunk in chunks:
        skipped.update(chunk.skipped)
    failed = Status.FENCED if isinstance(error, FencedError) else Status.FAILED
    return Outcome(
        range=copy_range.source,
        destination=copy_range.destination,
        status=Status.DONE if error is None else failed,
        next_offset=copy_range.next_offset(checkpoint),
        records=sum(chunk.records for chunk in chunks),
        size_bytes=sum(chunk.size_bytes for chunk in chunks),
        batches=sum(chunk.batches for chunk in chunks),
        reencoded=sum(chunk.reencoded for chunk in chunks),
        skipped=dict(skipped),
        chunks=len(chunks),
        commit_seconds=progress.commit_seconds,
        throttled_seconds=throttled_seconds,
        upstream=source.upstream if source else last_upstream,
        segments=tuple(progress.segments),
        diverged=source.diverged if source else {},
        error_kind="" if error is None else type(error).__name__,
        error="" if error is None else str(error),
        exit_code=0 if error is None else error.exit_code,
        seconds=range_copy.seconds,
        cpu_seconds=range_copy.cpu_seconds,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
    )

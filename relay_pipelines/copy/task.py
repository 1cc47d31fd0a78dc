"""One task: several ranges, one after the other, over the same connections. What Spark runs; runs anywhere else as well."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from relay_pipelines.copy.clock import Clock, SystemClock
from relay_pipelines.copy.copier import RangeCopier
from relay_pipelines.copy.faults import Point, reach
from relay_pipelines.copy.throttle import Throttles
from relay_pipelines.copy.upstream import Upstream
from relay_pipelines.copy.writer import ChunkWriter
from relay_pipelines.errors import DestinationError, FencedError, RelayError, RetriableError
from relay_pipelines.model import CopyJob, CopyRange, Outcome, Status
from relay_pipelines.wire.cluster import ClusterClient

if TYPE_CHECKING:
    import pyarrow as pa

    from relay_pipelines.copy.decided import Decided

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def copy_ranges(job: CopyJob, ranges: Iterable[CopyRange], clock: Clock | None = None) -> Iterator[Outcome]:
    """Copy each range and yield its outcome; never raises what is in the error tree."""
    return _copy_each(job, ((one, None) for one in ranges), clock or SystemClock())


def copy_decided(job: CopyJob, ranges: Sequence[CopyRange], batches: Iterable[pa.RecordBatch], clock: Clock) -> Iterator[Outcome]:
    """Copy what a predicate keeps of each range, and yield its outcome.

    Args:
        batches: what `read_rows` yields for the same ranges, of what is kept the offsets, and every note.
    """
    from relay_pipelines.copy.decided import Decided
    from relay_pipelines.copy.rows import parts

    own = groupby(parts(batches), key=itemgetter(0))
    return _copy_each(job, ((ranges[index], Decided(some)) for index, some in own), clock)


def _copy_each(job: CopyJob, ranges: Iterable[tuple[CopyRange, Decided | None]], clock: Clock) -> Iterator[Outcome]:
    """Copy ranges over the same connections.

    Once a cluster has been away for all attempts of one range, the ranges behind it fail at once with the same error. One
    that names a topic-partition concerns it alone.
    """
    timeout_ms = job.options.request_timeout_ms
    client_id = f"relay-{job.mirror}"
    away: RetriableError | None = None
    throttles = Throttles(job.options, clock)
    with (
        Upstream(job, client_id) as source,
        ClusterClient(job.destination, DestinationError, client_id, timeout_ms) as destination,
    ):
        for copy_range, decided in ranges:
            copier = RangeCopier(job, copy_range, source, destination, throttles.of(copy_range), clock, decided)
            error: RelayError | None = None
            wall, cpu = clock.monotonic(), time.process_time()
            try:
                if away is not None:
                    raise away
                copier.copy()
            except RetriableError as caught:
                error = caught
                away = caught if caught.topic_partition is None else None
            except RelayError as caught:
                error = caught
            reach(Point.BEFORE_OUTCOME)
            spent = (clock.monotonic() - wall, time.process_time() - cpu)
            yield outcome_of(copy_range, copier.writer, source.name, source.diverged, error, spent)


def outcome_of(
    planned: CopyRange,
    writer: ChunkWriter,
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
    chunks = writer.committed
    skipped: Counter[str] = Counter()
    for chunk in chunks:
        skipped.update(chunk.skipped)
    status = Status.DONE if error is None else Status.FENCED if isinstance(error, FencedError) else Status.FAILED
    return Outcome(
        range=planned.source,
        destination=planned.destination,
        status=status,
        next_offset=planned.source.start if writer.checkpoint is None else writer.checkpoint.next_offset,
        records=sum(chunk.records for chunk in chunks),
        size_bytes=sum(chunk.size_bytes for chunk in chunks),
        batches=sum(chunk.batches for chunk in chunks),
        rewritten=sum(chunk.rewritten for chunk in chunks),
        skipped=dict(skipped),
        chunks=len(chunks),
        commit_seconds=writer.commit_seconds,
        node=node,
        segments=tuple(writer.segments),
        diverged=diverged,
        error_kind="" if error is None else type(error).__name__,
        error="" if error is None else str(error),
        exit_code=0 if error is None else error.exit_code,
        seconds=spent[0],
        cpu_seconds=spent[1],
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
    )

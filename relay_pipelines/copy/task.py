"""One task: several ranges, one after the other, over the same connections. What Spark runs; runs anywhere else as well."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from relay_pipelines.copy.clock import Clock, SystemClock
from relay_pipelines.copy.copier import RangeCopier
from relay_pipelines.copy.faults import Point, reach
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.copy.upstream import Upstream
from relay_pipelines.errors import DestinationError, FencedError, RelayError, RetriableError
from relay_pipelines.model import CopyJob, CopyRange, Outcome, Status
from relay_pipelines.wire.cluster import ClusterClient

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def copy_ranges(job: CopyJob, ranges: Iterable[CopyRange], clock: Clock | None = None) -> Iterator[Outcome]:
    """Copy each range and yield its outcome; never raises what is in the error tree.

    Once a cluster has been away for all attempts of one range, the ranges behind it fail at once with the same error. One
    that names a topic-partition concerns it alone.
    """
    clock = clock or SystemClock()
    timeout_ms = job.options.request_timeout_ms
    client_id = f"relay-{job.mirror}"
    away: RetriableError | None = None
    throttle = Throttle(job.options, clock)
    with (
        Upstream(job, client_id) as source,
        ClusterClient(job.destination, DestinationError, client_id, timeout_ms) as destination,
    ):
        for copy_range in ranges:
            copier = RangeCopier(job, copy_range, source, destination, throttle, clock)
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
            yield _outcome(copier, source.diverged, error, clock.monotonic() - wall, time.process_time() - cpu)


def _outcome(
    copier: RangeCopier, diverged: dict[str, str], error: RelayError | None, seconds: float, cpu_seconds: float
) -> Outcome:
    planned = copier.copy_range
    chunks = copier.committed
    skipped: Counter[str] = Counter()
    for chunk in chunks:
        skipped.update(chunk.skipped)
    status = Status.DONE if error is None else Status.FENCED if isinstance(error, FencedError) else Status.FAILED
    return Outcome(
        range=planned.source,
        destination=planned.destination,
        status=status,
        next_offset=planned.source.start if copier.checkpoint is None else copier.checkpoint.next_offset,
        records=sum(chunk.records for chunk in chunks),
        size_bytes=sum(chunk.size_bytes for chunk in chunks),
        batches=sum(chunk.batches for chunk in chunks),
        rewritten=sum(chunk.rewritten for chunk in chunks),
        skipped=dict(skipped),
        chunks=len(chunks),
        commit_seconds=copier.commit_seconds,
        node=copier.node,
        segments=tuple(copier.segments),
        diverged=diverged,
        error_kind="" if error is None else type(error).__name__,
        error="" if error is None else str(error),
        exit_code=0 if error is None else error.exit_code,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
    )

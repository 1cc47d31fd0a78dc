"""Compares pairs of logs. Runs in a task, or in the process that asks, if there is little to read.

The rows of a large topic whose records find each other by key go through Spark's shuffle.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa

from relay_pipelines.audit.spark_job import Tasks, json_of
from relay_pipelines.compare.by_key import (
    GROUP_BYTES,
    ByKey,
    GroupsResult,
    compare_here,
    have_grown,
    merged,
    rows,
)
from relay_pipelines.compare.in_order import compare_in_order
from relay_pipelines.compare.pairs import (
    CLEANED_MEANWHILE,
    KINDS,
    MOST_READINGS,
    SHUFFLED_BYTES,
    CompareJob,
    Example,
    Log,
    Pair,
    PairResult,
)
from relay_pipelines.compare.reading import Readers, readers
from relay_pipelines.compare.request import Align
from relay_pipelines.errors import RelayError, RetentionPassedError
from relay_pipelines.protocol.client import (
    EARLIEST,
    READ_COMMITTED,
    ClusterClient,
    destination_client,
    source_client,
)
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.spark import job as spark_job

_ROWS_AT_ONCE = 10_000


@contextmanager
def readers_of(job: CompareJob) -> Iterator[Readers]:
    """Yield readers of both clusters."""
    clock = SystemClock()
    with (
        source_client(job.name, job.source, job.options, clock, "compare") as source,
        destination_client(job.name, job.destination, job.options, clock, "compare") as destination,
    ):
        yield readers(source, destination, job.max_bytes_per_second)


def compare_group(job: CompareJob, group: Sequence[Pair]) -> list[PairResult]:
    """Compare pairs; what cannot be read is in the result."""
    with readers_of(job) as both:
        return [_compared(both, pair) for pair in group]


def _compared(both: Readers, pair: Pair) -> PairResult:
    compare = compare_in_order if pair.align is Align.ORDER else compare_here
    try:
        return settled(lambda: compare(both, _as_it_is_now(both, pair)))
    except RelayError as error:
        return PairResult(pair, error=str(error))


def _of_what_is_left(compare: Callable[[], PairResult]) -> PairResult:
    """Return what is found, once retention deletes nothing that is still to be read."""
    for _ in range(MOST_READINGS - 1):
        with suppress(RetentionPassedError):
            return compare()
    return compare()


def settled(compare: Callable[[], PairResult]) -> PairResult:
    """Return what is found; of a compacted topic that differs, what is found twice.

    A cleaner removes the oldest records of a key first. If it has removed one after those before it
    were read, these are gone when they are read again.
    """
    compare = partial(_of_what_is_left, compare)
    result, unsettled = compare(), [*KINDS]
    for _ in range(MOST_READINGS - 1):
        if not any(result.pair.compacts) or not result.numbers:
            return result
        before, result = result, compare()
        unsettled = [
            kind for kind in KINDS if _differences(result, kind) != _differences(before, kind)
        ]
        if not unsettled:
            return result
    for kind in unsettled:
        result.leave_open(kind, CLEANED_MEANWHILE, result.numbers[kind])
    return result


def _differences(result: PairResult, kind: str) -> tuple[int, Example | None]:
    return result.numbers[kind], result.first.get(kind)


def _as_it_is_now(both: Readers, pair: Pair) -> Pair:
    """Return the pair without what retention has deleted since it was planned."""

    def now(client: ClusterClient, logs: Sequence[Log]) -> tuple[Log, ...]:
        tps = [log.topic_partition for log in logs]
        lows = client.retry(partial(client.list_offsets, tps, EARLIEST, READ_COMMITTED))
        return tuple(
            replace(
                log,
                low=(low := max(log.low, lows[log.topic_partition])),
                end=max(low, log.end),
                range=replace(
                    log.range,
                    start=(start := max(low, log.range.start)),
                    end=max(start, log.range.end),
                ),
            )
            for log in logs
        )

    return replace(
        pair,
        sources=now(both[0].client, pair.sources),
        destinations=now(both[1].client, pair.destinations),
    )


COMPARE = Tasks(compare_group, list[PairResult])


def compare_keys(session: Any, job: CompareJob, pair: Pair, tag: str) -> PairResult:
    """Compare a large topic key by key: Spark sorts its rows, and spills what memory cannot hold.

    Raises:
        RelayError: a cluster does not answer, or the Spark job failed.
    """
    return settled(lambda: _compared_keys(session, job, pair, tag))


def _compared_keys(session: Any, job: CompareJob, pair: Pair, tag: str) -> PairResult:
    with readers_of(job) as both:
        pair = _as_it_is_now(both, pair)
    logs = [(side, log) for side in (0, 1) for log in pair.sides[side]]
    parts = max(1, pair.size_bytes // SHUFFLED_BYTES)

    def frame() -> Any:
        from pyspark.sql.functions import expr

        read = session.range(0, len(logs), 1, len(logs)).mapInArrow(
            partial(_read_rows, job, pair, logs), "row binary"
        )
        group = expr(f"substring(row, 1, {GROUP_BYTES})")
        sorted_rows = read.repartition(parts, group).sortWithinPartitions("row")
        return sorted_rows.mapInArrow(partial(_compare_rows, pair), spark_job.outcome_schema())

    texts = spark_job.texts(session, frame, tag, f"{job.name}: compare {pair.topic}")
    with readers_of(job) as both:
        has_grown = have_grown(both, pair)
    results = [json_of(GroupsResult).validate_json(text) for text in texts]
    return merged(
        results or [GroupsResult(PairResult(pair))], has_grown
    )  # without a row, no task runs


def _read_rows(
    job: CompareJob, pair: Pair, logs: Sequence[tuple[int, Log]], ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # as many tasks as there are logs may run at once
    share = replace(job, max_bytes_per_second=-(-job.max_bytes_per_second // len(logs)))
    for batch in ids:
        for number in batch.column(0).to_pylist():
            side, log = logs[number]
            with readers_of(share) as both:
                made = rows(both[side], pair, side, log)
                while some := [*islice(made, _ROWS_AT_ONCE)]:
                    yield _as_column(some)


def _as_column(some: Sequence[bytes]) -> pa.RecordBatch:
    # an Arrow array of Python objects imports pandas
    offsets = array("i", accumulate(map(len, some), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(some))]
    column = pa.Array.from_buffers(pa.binary(), len(some), buffers)
    return pa.RecordBatch.from_arrays([column], ["row"])


def _compare_rows(pair: Pair, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sorted_rows = (row.as_py() for batch in batches for row in batch.column(0))
    result = ByKey(pair).compare(sorted_rows)
    yield spark_job.text_row(json_of(GroupsResult).dump_json(result).decode())

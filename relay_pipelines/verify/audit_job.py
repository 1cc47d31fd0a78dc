"""The Spark jobs of an audit: each compares a group of chunks in one task, several run at once.

`compare` runs on the driver, `_compare_group` in a task.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.spark import job as spark_job
from relay_pipelines.spark import session as spark_session
from relay_pipelines.verify.chunks import (
    AuditJob,
    ChunkResult,
    ComparedChunk,
    compare_chunks,
    groups_of,
)

_LEAST_BYTES = 32 << 20  # of a group: a job costs a tenth of a second
_GROUPS_PER_SLOT = 8  # so that the progress moves, and that the slots end at about the same time
_RESULTS = TypeAdapter(list[ChunkResult])


def compare(
    session: Any, job: AuditJob, chunks: Sequence[ComparedChunk], tag: str
) -> Generator[list[ChunkResult], None, None]:
    """Compare chunks, and yield the results of each group when it is done.

    Args:
        tag: `spark.job.cancel` finds the jobs by it. They are cancelled when the iterator is
            closed.

    Raises:
        RelayError: a Spark job failed.
    """
    slots = spark_session.slots(session)
    total = sum(chunk.size_bytes for chunk in chunks)
    groups = groups_of(chunks, max(_LEAST_BYTES, total // (_GROUPS_PER_SLOT * slots)))
    pool = ThreadPoolExecutor(slots, tag)
    running = [pool.submit(_submit, session, job, group, tag) for group in groups]
    try:
        for done in as_completed(running):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if not all(future.done() for future in running):
            spark_job.cancel(session, tag)
        pool.shutdown()


def _submit(session: Any, job: AuditJob, group: list[ComparedChunk], tag: str) -> list[ChunkResult]:
    def frame() -> Any:
        one_task = spark_job.uncompiled(session).range(0, 1, 1, 1)
        return one_task.mapInArrow(partial(_compare_group, job, group), spark_job.SCHEMA)

    return [
        result
        for text in spark_job.texts(session, frame, tag)
        for result in _RESULTS.validate_json(text)
    ]


def _compare_group(
    job: AuditJob, group: list[ComparedChunk], ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for _ in ids:
        results = list(compare_chunks(job, group, SystemClock()))
        yield spark_job.text_row(_RESULTS.dump_json(results).decode())

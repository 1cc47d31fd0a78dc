"""The Spark jobs of an audit: each reads a group of parts in one task, several run at once.

`read` runs on the driver, `_do_group` in a task. A comparison without a ledger runs the same jobs,
with parts and results of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pydantic import TypeAdapter

from relay_pipelines.audit.chunks import AuditJob, compare_chunks
from relay_pipelines.audit.claims import RecountPart
from relay_pipelines.audit.comparison import ComparedChunk, Comparison
from relay_pipelines.audit.part_count import count_in_task
from relay_pipelines.audit.recount import DestinationCount
from relay_pipelines.plan.task_packing import FEW_TASKS
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.spark import job as spark_job
from relay_pipelines.spark import session as spark_session

_LEAST_BYTES = 32 << 20  # of a group: a job costs a tenth of a second
_MOST_ITEMS = 1_000  # of a group, which takes a second or two then
_GROUPS_PER_SLOT = 8  # so that the progress moves, and that the slots end at about the same time
_CANCEL_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_WITHOUT_SPARK_BYTES = 64 << 20  # less is read before Spark has started

Work = ComparedChunk | RecountPart
Results = list[Comparison | DestinationCount]
"""What a task found."""


class Reading(Protocol):
    """What an audit, or a comparison, asks its tasks for.

    Parts, and what was found in them, say how much was to be read: `size_bytes`.
    """

    job: Any
    """What all tasks share."""

    @property
    def work(self) -> Sequence[Any]:
        """The parts to read, in order."""

    def add(self, results: Sequence[Any]) -> None:
        """Take the results of a task."""


class Tasks(NamedTuple):
    """What a task does, as functions of modules, which tasks import.

    Args:
        do: reads a group of parts in this process, and returns what it found.
        result: the type of that.
    """

    do: Callable[[Any, Sequence[Any]], Sequence[Any]]
    result: Any


def do_group(job: AuditJob, group: Sequence[Work]) -> Results:
    """Compare and count in this process."""
    clock = SystemClock()
    chunks = [part for part in group if isinstance(part, ComparedChunk)]
    parts = [part for part in group if isinstance(part, RecountPart)]
    return [*compare_chunks(job, chunks, clock), *count_in_task(job, parts, clock)]


@cache
def json_of(kind: Any) -> TypeAdapter[Any]:
    """Return what writes values of a type as JSON, and reads them."""
    return TypeAdapter(kind)


AUDIT = Tasks(do_group, Results)


def read(
    audit: Reading, session: Callable[[], Any], tag: str, tasks: Tasks = AUDIT
) -> Generator[int, None, None]:
    """Read what an audit has to read; yield the bytes of what the audit has taken, task by task.

    Args:
        session: returns the Spark session; called only if there is much to read.
        tag: `spark.job.cancel` finds the jobs by it. They are cancelled when the iterator is
            closed.

    Raises:
        RelayError: a Spark job failed.
    """
    job, parts = audit.job, audit.work
    results: Generator[Sequence[Any], None, None]
    if sum(part.size_bytes for part in parts) < _WITHOUT_SPARK_BYTES:
        results = (tasks.do(job, group) for group in groups_of(parts, _LEAST_BYTES))
    else:
        results = in_spark(session(), job, parts, tag, tasks)
    with closing(results):
        for result in results:
            audit.add(result)
            yield sum(each.size_bytes for each in result)


def in_spark(
    session: Any, job: Any, parts: Sequence[Any], tag: str, tasks: Tasks = AUDIT
) -> Generator[Sequence[Any], None, None]:
    """Yield what each task finds, as soon as it does; `tag` is as of `read`."""
    now, most = spark_session.slots(session)
    slots = most or max(now, FEW_TASKS)
    total = sum(part.size_bytes for part in parts)
    groups = groups_of(parts, max(_LEAST_BYTES, total // (_GROUPS_PER_SLOT * slots)))
    pool = ThreadPoolExecutor(min(slots, max(1, len(groups))), tag)
    running = [pool.submit(_submit, session, job, group, tag, tasks) for group in groups]
    try:
        waiting = set(running)
        while waiting:
            # not for ever: a thread that waits for ever looks as if it hung
            done, waiting = wait(waiting, _LOOK_SECONDS, FIRST_COMPLETED)
            yield from (each.result() for each in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        # again and again: a job that Spark has not started yet cannot be found
        begun = [each for each in running if not each.cancelled()]
        while wait(begun, _CANCEL_SECONDS).not_done:
            spark_job.cancel(session, tag)


def groups_of(parts: Iterable[Any], size_bytes: int) -> list[list[Any]]:
    """Split work, in order, into groups of about this size and of not too many items.

    One item may be larger.
    """
    groups: list[list[Any]] = []
    room = 0
    for part in parts:
        if not groups or part.size_bytes > room or len(groups[-1]) >= _MOST_ITEMS:
            groups.append([])
            room = size_bytes
        groups[-1].append(part)
        room -= part.size_bytes
    return groups


def _submit(session: Any, job: Any, group: list[Any], tag: str, tasks: Tasks) -> Sequence[Any]:
    def frame() -> Any:
        one_task = spark_job.uncompiled(session).range(0, 1, 1, 1)
        return one_task.mapInArrow(
            partial(_do_group, job, group, tasks), spark_job.outcome_schema()
        )

    (text,) = spark_job.texts(session, frame, tag)
    results: Sequence[Any] = json_of(tasks.result).validate_json(text)
    return results


def _do_group(
    job: Any, group: list[Any], tasks: Tasks, ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for _ in ids:
        results = tasks.do(job, group)
        yield spark_job.text_row(json_of(tasks.result).dump_json(results).decode())

"""The one Spark job of a run: a task per group of ranges, `mapInArrow`, outcomes as Arrow rows. No shuffle, one stage.

`submit` runs on the driver, `_copy_groups` in a task.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyJob, CopyRange, Outcome
from relay_pipelines.spark.session import context_of

SCHEMA = "outcome string"
"""Of the rows that a copy job returns: outcomes as JSON."""


def submit(
    session: Any, job: CopyJob, groups: Sequence[Sequence[CopyRange]], tag: str
) -> list[Outcome]:
    """Copy all groups, one task each, and return an outcome per range; blocks until the job has ended.

    Args:
        tag: under which `cancel` finds the job.

    Raises:
        RelayError: Spark gave the job up. What was committed until then is in the ledger.
    """

    def frame() -> Any:
        tasks = session.range(0, len(groups), 1, len(groups))
        return tasks.mapInArrow(
            partial(_copy_groups, job, [list(group) for group in groups]), SCHEMA
        )

    return collect(session, frame, tag)


def collect(session: Any, frame: Callable[[], Any], tag: str) -> list[Outcome]:
    """Run a job whose rows are outcomes.

    Args:
        frame: makes the DataFrame.
        tag: under which `cancel` finds the job.

    Raises:
        RelayError: Spark gave the job up.
    """
    context = context_of(session)
    try:
        # a session's own tag is unknown to every thread but this one, and cancelling is another
        # thread's business
        (session.addTag if context is None else context.addJobTag)(tag)
        rows = frame().collect()
    except Exception as error:  # whatever py4j or gRPC raise
        raise RelayError(
            f"Spark gave the copy job up: {_reason(error)}",
            remedy="what is committed stays; run again to go on, with --debug to see Spark's own words",
        ) from error
    finally:
        with suppress(
            Exception
        ):  # an interrupted run ends the session while the job is being submitted, and its tags with it
            (session.removeTag if context is None else context.removeJobTag)(tag)
    return [Outcome.from_json(row.outcome) for row in rows]


def cancel(session: Any, tag: str) -> None:
    """Stop the job submitted under `tag`; its tasks die without committing what they have under way.

    A job that Spark has not begun yet is not found, and goes on: ask again until `submit` has
        returned.
    """
    context = context_of(session)
    if context is None:
        session.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def _copy_groups(
    job: CopyJob, groups: list[list[CopyRange]], ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in ids:
        for group in batch.column(0).to_pylist():
            for outcome in copy_ranges(job, groups[group]):
                yield outcome_row(outcome)


def outcome_row(outcome: Outcome) -> pa.RecordBatch:
    """Return an outcome as a row of `SCHEMA`."""
    # from buffers, because making an array from Python objects imports pandas: 50 MB and half a
    # second in every worker
    text = outcome.to_json().encode()
    column = pa.StringArray.from_buffers(
        1, pa.py_buffer(struct.pack("=2i", 0, len(text))), pa.py_buffer(text)
    )
    return pa.RecordBatch.from_arrays([column], ["outcome"])


def _reason(error: Exception) -> str:
    """The line of a Spark error that says what happened, not the stack around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if "Lost task" in line or "exited unexpectedly" in line or "cancelled" in line.lower()
    ]
    return (telling or lines or [type(error).__name__])[0][:300]

"""The one Spark job of a run: a task per group of ranges, `mapInArrow`, outcomes as Arrow rows. No shuffle, one stage.

`submit` runs on the driver, `_copy_groups` in a task.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import RelayError
from relay_pipelines.model import (
    CopyJob,
    CopyRange,
    OffsetRange,
    Outcome,
    Segment,
    Skipped,
    Status,
    TopicPartition,
)
from relay_pipelines.spark.session import context_of

_SKIPPED = pa.struct([(str(reason), pa.int64()) for reason in Skipped])
_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("destination_topic", pa.string()),
        ("destination_partition", pa.int64()),
        ("status", pa.string()),
        ("next_offset", pa.int64()),
        ("records", pa.int64()),
        ("size_bytes", pa.int64()),
        ("batches", pa.int64()),
        ("rewritten", pa.int64()),
        ("skipped", _SKIPPED),
        ("chunks", pa.int64()),
        ("commit_seconds", pa.float64()),
        ("node", pa.string()),
        ("segments", pa.string()),
        ("diverged", pa.string()),
        ("error_kind", pa.string()),
        ("error", pa.string()),
        ("exit_code", pa.int64()),
        ("seconds", pa.float64()),
        ("cpu_seconds", pa.float64()),
        ("peak_memory_bytes", pa.int64()),
    ]
)
_DDL = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.float64(): "double",
    _SKIPPED: f"struct<{', '.join(f'{reason}: long' for reason in Skipped)}>",
}
SCHEMA = ", ".join(f"{field.name} {_DDL[field.type]}" for field in _ARROW)


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
    return [_outcome(row.asDict(recursive=True)) for row in rows]


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
                yield from arrow(outcome)


def arrow(outcome: Outcome) -> list[pa.RecordBatch]:
    """Return an outcome as a row of `SCHEMA`."""
    # through Arrow's JSON reader: building an array from Python objects imports pandas, 50 MB and
    # half a second in every worker
    line = json.dumps(_row(outcome)).encode()
    table = pa_json.read_json(
        io.BytesIO(line),
        pa_json.ReadOptions(use_threads=False, block_size=len(line) + 1),
        pa_json.ParseOptions(explicit_schema=_ARROW),
    )
    return list(table.to_batches())


def _row(outcome: Outcome) -> dict[str, Any]:
    row = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
    planned: OffsetRange = row.pop("range")
    destination: TopicPartition = row.pop("destination")
    return {
        **row,
        "status": str(outcome.status),
        "segments": json.dumps([dataclasses.astuple(one) for one in outcome.segments]),
        "diverged": json.dumps(outcome.diverged),
        "skipped": {str(reason): outcome.skipped.get(reason, 0) for reason in Skipped},
        "topic": planned.topic_partition.topic,
        "partition": planned.topic_partition.partition,
        "start": planned.start,
        "end": planned.end,
        "destination_topic": destination.topic,
        "destination_partition": destination.partition,
    }


def _outcome(row: dict[str, Any]) -> Outcome:
    return Outcome(
        range=OffsetRange(
            TopicPartition(row.pop("topic"), row.pop("partition")), row.pop("start"), row.pop("end")
        ),
        destination=TopicPartition(row.pop("destination_topic"), row.pop("destination_partition")),
        status=Status(row.pop("status")),
        segments=tuple(Segment(*one) for one in json.loads(row.pop("segments"))),
        diverged=json.loads(row.pop("diverged")),
        skipped={reason: count for reason, count in row.pop("skipped").items() if count},
        **row,
    )


def _reason(error: Exception) -> str:
    """The line of a Spark error that says what happened, not the stack around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if "Lost task" in line or "exited unexpectedly" in line or "cancelled" in line.lower()
    ]
    return (telling or lines or [type(error).__name__])[0][:300]

"""The Spark job of topics with SQL or a transform: it reads, changes and writes rows in one stage.

`submit`, `check` and `find_failing_record` run on the driver. In a task, `_read` comes first, then
SQL, then `_write` or `_copy_kept`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.copy.row_reader import MARKER, RECORD_COLUMNS, read_rows, schema
from relay_pipelines.copy.task import copy_kept, copy_rows
from relay_pipelines.errors import ConfigError, FilterError, RelayError, page
from relay_pipelines.garbage import garbage_collection_paused
from relay_pipelines.model import CopyJob, CopyRange, Outcome, Sql
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.spark.job import (
    collect,
    described,
    forget_folders_of_zips,
    outcome_row,
    outcome_schema,
)
from relay_pipelines.spark.session import first_line


def check(session: Any, sql: Sql) -> None:
    """Let Spark analyse the predicate and the expressions.

    Raises:
        ConfigError: one does not parse, names an unknown column or function, or has the wrong type.
    """
    where, select = sql
    empty = session.range(0).selectExpr(
        *(f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    )
    for what, text, result_type in [
        ("where", where, "boolean"),
        *((f"select.{name}", text, COLUMNS[name]) for name, text in select),
    ]:
        try:
            if text:
                _ = empty.selectExpr(
                    f"CAST(({text}) AS {result_type})"
                    if what != "where"
                    else f"assert_true({text})"
                ).schema
        except PySparkException as error:
            # the place that follows is one in the expression around it
            said, _, _ = first_line(error).partition(". SQLSTATE: ")
            problem = f"{what}: Spark rejects {text!r}: {said}"
            raise ConfigError(problem, remedy=f"see {page('Filter and change records')}") from None


def submit(
    session: Any, job: CopyJob, groups: Sequence[Sequence[CopyRange]], sql: Sql, tag: str
) -> list[Outcome]:
    """Copy all groups, one task each, and return an outcome per range; blocks until the job ends.

    Raises:
        RelayError: the Spark job failed. What it committed is in the ledger.
    """
    ranges = [copy_range for group in groups for copy_range in group]

    # with nothing but a predicate, only the offsets that it keeps go through Spark, not the
    # records; but quarantine needs the record whose headers Spark cannot hold
    headers = "headers" in _mentioned_columns(sql)
    policies = [copy_range.record_policy for copy_range in ranges]
    only_where = not any(
        policy.select or policy.transform or policy.filters or (headers and policy.may_quarantine)
        for policy in policies
    )

    def frame() -> Any:
        rows = _rows(session, job, groups, sql, ("offset",) if only_where else RECORD_COLUMNS)
        return rows.mapInArrow(
            partial(_copy_kept if only_where else _write, job, ranges), outcome_schema()
        )

    return collect(session, frame, tag, described(job, ranges))


def find_failing_record(
    session: Any, job: CopyJob, ranges: Sequence[CopyRange], sql: Sql, tag: str
) -> FilterError | None:
    """Find the record on which the SQL fails, by bisection, and return its error; writes nothing.

    Spark does not say which record failed. The search costs about as much as reading the range
    twice, and twenty small jobs.

    Raises:
        RelayError: a Spark job failed for another reason.
    """
    for copy_range in ranges:
        source = copy_range.source
        start, end, error = copy_range.next_offset(copy_range.checkpoint), source.end, None
        while end > start:
            middle = end if error is None else (start + end) // 2
            part = replace(
                copy_range, checkpoint=None, source=replace(source, start=start, end=middle)
            )
            part_error = _sql_error(session, job, part, sql, tag)
            if part_error is None and error is None:
                break
            if part_error is None:
                start = middle
            else:
                end, error = middle, part_error
            if end - start == 1 and error is not None:
                return FilterError(
                    f"SQL failed on the record: {error}",
                    remedy="change it to accept such records, as with try_cast, then run again",
                    topic_partition=source.topic_partition,
                    offset=start,
                )
    return None


def is_sql_error(error: RelayError) -> bool:
    """Whether a Spark job failed because its SQL did."""
    cause = None if isinstance(error, ConfigError) else error.__cause__
    return isinstance(cause, PySparkException) and bool(cause.getCondition())


def _sql_error(session: Any, job: CopyJob, copy_range: CopyRange, sql: Sql, tag: str) -> str | None:
    """Read a range through the SQL, and return what Spark says if the SQL fails."""
    try:
        collect(
            session,
            lambda: _rows(session, job, [[copy_range]], sql).mapInArrow(_discard, outcome_schema()),
            tag,
        )
    except RelayError as error:
        if not is_sql_error(error):
            raise
        return first_line(error.__cause__ or error)
    return None


def _rows(
    session: Any,
    job: CopyJob,
    groups: Sequence[Sequence[CopyRange]],
    sql: Sql,
    columns: Sequence[str] = RECORD_COLUMNS,
) -> Any:
    """Return a DataFrame of these columns, after the SQL, with a Spark partition per group."""
    where, select = sql
    ranges = [copy_range for group in groups for copy_range in group]
    starts = list(accumulate(map(len, groups), initial=0))
    indices = [range(start, end) for start, end in pairwise(starts)]
    read = list(dict.fromkeys([*columns, *_mentioned_columns(sql)]))
    tasks = session.range(0, len(groups), 1, len(groups))
    rows = tasks.mapInArrow(partial(_read, job, ranges, indices, read), schema(read))
    if where:
        rows = rows.where(f"{MARKER} IS NOT NULL OR ({where})")
    return rows.selectExpr(MARKER, *(_column(name, dict(select)) for name in columns))


def _mentioned_columns(sql: Sql) -> list[str]:
    return [name for name in COLUMNS if re.search(rf"\b{name}\b", f"{sql}", re.IGNORECASE)]


def _discard(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def _column(name: str, select: dict[str, str]) -> str:
    if name not in select:
        return name
    # expressions are for records, not for progress markers
    value = f"CAST(({select[name]}) AS {COLUMNS[name]})"
    return f"CASE WHEN {MARKER} IS NULL THEN {value} ELSE {name} END AS {name}"


def _read(
    job: CopyJob,
    ranges: list[CopyRange],
    indices: list[range],
    columns: list[str],
    ids: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    forget_folders_of_zips()
    with garbage_collection_paused():
        for batch in ids:
            for group in batch.column(0).to_pylist():
                yield from read_rows(job, ranges, indices[group], columns, SystemClock())


def _write(
    job: CopyJob, ranges: list[CopyRange], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with garbage_collection_paused():
        for outcome in copy_rows(job, ranges, batches, SystemClock()):
            yield outcome_row(outcome)


def _copy_kept(
    job: CopyJob, ranges: list[CopyRange], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with garbage_collection_paused():
        for outcome in copy_kept(job, ranges, batches, SystemClock()):
            yield outcome_row(outcome)

"""The Spark job of topics with SQL or a transform: rows are read, pass through SQL, and are written, in one stage.

`submit` and `check` run on the driver, `_read` and `_write` at both ends of a task.
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

from relay_pipelines.copy.columns import COLUMNS, uncollected
from relay_pipelines.copy.row_reader import ALWAYS, MARKER, read_rows, schema
from relay_pipelines.copy.task import copy_kept, copy_rows
from relay_pipelines.errors import ConfigError, FilterError, RelayError
from relay_pipelines.model import CopyJob, CopyRange, Outcome, Sql
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.spark.job import SCHEMA, collect, outcome_row
from relay_pipelines.spark.session import first_line


def check(session: Any, sql: Sql) -> None:
    """Let Spark analyse predicate and expressions.

    Raises:
        ConfigError: one does not parse, names what there is not, or has the wrong type.
    """
    where, select = sql
    empty = session.range(0).selectExpr(
        *(f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items())
    )
    for what, text, wanted in [
        ("where", where, "boolean"),
        *((f"select.{name}", text, COLUMNS[name]) for name, text in select),
    ]:
        try:
            if text:
                _ = empty.selectExpr(
                    f"CAST(({text}) AS {wanted})" if what != "where" else f"assert_true({text})"
                ).schema
        except PySparkException as error:
            found = f"{what}: Spark does not take {text!r}: {first_line(error)}"
            raise ConfigError(found, remedy="see docs/records.md") from None


def submit(
    session: Any, job: CopyJob, groups: Sequence[Sequence[CopyRange]], sql: Sql, tag: str
) -> list[Outcome]:
    """Copy all groups, one task each, and return an outcome per range; blocks until the job has ended.

    Raises:
        RelayError: Spark gave the job up. What was committed until then is in the ledger.
    """
    ranges = [one for group in groups for one in group]

    # where nothing but a predicate is asked for, the records need not go through Spark: what it
    # keeps is enough (a record that it cannot look at goes into quarantine from there)
    headers = "headers" in _named(sql)
    only_where = not any(
        one.record_policy.select
        or one.record_policy.transform
        or one.record_policy.filters
        or (headers and one.record_policy.may_quarantine)
        for one in ranges
    )

    def frame() -> Any:
        made = _made(session, job, groups, sql, ("offset",) if only_where else ALWAYS)
        return made.mapInArrow(partial(_copy if only_where else _write, job, ranges), SCHEMA)

    return collect(session, frame, tag)


def failing(
    session: Any, job: CopyJob, ranges: Sequence[CopyRange], sql: Sql, tag: str
) -> FilterError | None:
    """Look for the record on which the SQL fails, by halves, and return its error; nothing is written.

    Spark itself does not say which one it was. The cost is about twice that of reading the range,
    and twenty small jobs.

    Raises:
        RelayError: Spark gave a job up for another reason.
    """
    for one in ranges:
        start = one.source.start if one.checkpoint is None else one.checkpoint.next_offset
        end, error = one.source.end, None
        while end > start:
            middle = end if error is None else (start + end) // 2
            found = _fails(
                session,
                job,
                replace(one, checkpoint=None, source=replace(one.source, start=start, end=middle)),
                sql,
                tag,
            )
            if found is None and error is None:
                break
            if found is None:
                start = middle
            else:
                end, error = middle, found
            if end - start == 1 and error is not None:
                return FilterError(
                    f"SQL failed on the record: {error}",
                    remedy="let it cope with such records, as with try_cast; run again to go on",
                    topic_partition=one.source.topic_partition,
                    offset=start,
                )
    return None


def is_of_sql(error: RelayError) -> bool:
    """Whether Spark gave a job up because of what its SQL met."""
    cause = error.__cause__
    return isinstance(cause, PySparkException) and bool(cause.getCondition())


def _fails(session: Any, job: CopyJob, one: CopyRange, sql: Sql, tag: str) -> str | None:
    try:
        collect(
            session, lambda: _made(session, job, [[one]], sql).mapInArrow(_nothing, SCHEMA), tag
        )
    except RelayError as error:
        if not is_of_sql(error):
            raise
        return first_line(error.__cause__ or error)
    return None


def _made(
    session: Any,
    job: CopyJob,
    groups: Sequence[Sequence[CopyRange]],
    sql: Sql,
    wanted: Sequence[str] = ALWAYS,
) -> Any:
    """The rows of all groups, one Spark partition each, behind predicate and expressions; of each the columns wanted."""
    where, select = sql
    ranges = [one for group in groups for one in group]
    starts = list(accumulate(map(len, groups), initial=0))
    indices = [range(start, end) for start, end in pairwise(starts)]
    columns = list(dict.fromkeys([*wanted, *_named(sql)]))
    tasks = session.range(0, len(groups), 1, len(groups))
    rows = tasks.mapInArrow(partial(_read, job, ranges, indices, columns), schema(columns))
    if where:
        rows = rows.where(f"{MARKER} IS NOT NULL OR ({where})")
    return rows.selectExpr(MARKER, *(_column(name, dict(select)) for name in wanted))


def _named(sql: Sql) -> list[str]:
    """The columns that the SQL mentions."""
    return [name for name in COLUMNS if re.search(rf"\b{name}\b", f"{sql}", re.IGNORECASE)]


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def _column(name: str, select: dict[str, str]) -> str:
    if name not in select:
        return name
    # a progress marker is no record
    return f"CASE WHEN {MARKER} IS NULL THEN CAST(({select[name]}) AS {COLUMNS[name]}) ELSE {name} END AS {name}"


def _read(
    job: CopyJob,
    ranges: list[CopyRange],
    indices: list[range],
    columns: list[str],
    ids: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with uncollected():
        for batch in ids:
            for group in batch.column(0).to_pylist():
                yield from read_rows(job, ranges, indices[group], columns, SystemClock())


def _write(
    job: CopyJob, ranges: list[CopyRange], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with uncollected():
        for outcome in copy_rows(job, ranges, batches, SystemClock()):
            yield outcome_row(outcome)


def _copy(
    job: CopyJob, ranges: list[CopyRange], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with uncollected():
        for outcome in copy_kept(job, ranges, batches, SystemClock()):
            yield outcome_row(outcome)

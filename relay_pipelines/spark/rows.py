"""The Spark job of topics with SQL or a transform: rows are read, pass through SQL, and are written, in one stage.

`submit` and `check` run on the driver, `_read` and `_write` at both ends of a task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

from relay_pipelines.copy.clock import SystemClock
from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.copy.row_copier import write_rows
from relay_pipelines.copy.rows import ALWAYS, NOTE, RANGE, read_rows, schema
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import CopyJob, CopyRange, Handling, Outcome
from relay_pipelines.spark.job import SCHEMA, arrow, collect

Sql = tuple[str, tuple[tuple[str, str], ...]]


def sql_of(handling: Handling) -> Sql:
    """What of a topic's handling is for Spark to do."""
    return handling.where, handling.select


def check(session: Any, sql: Sql) -> None:
    """Let Spark analyse predicate and expressions.

    Raises:
        ConfigError: one does not parse, names what there is not, or has the wrong type.
    """
    where, select = sql
    empty = session.range(0).selectExpr(*(f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items()))
    for what, text, wanted in [("where", where, "boolean"), *((f"select.{name}", text, COLUMNS[name]) for name, text in select)]:
        try:
            if text:
                _ = empty.selectExpr(f"CAST(({text}) AS {wanted})" if what != "where" else f"assert_true({text})").schema
        except PySparkException as error:
            found = f"{what}: Spark does not take {text!r}: {_first_line(error)}"
            raise ConfigError(found, remedy="see docs/filters.md") from None


def submit(session: Any, job: CopyJob, groups: Sequence[Sequence[CopyRange]], sql: Sql, tag: str) -> list[Outcome]:
    """Copy all groups, one task each, and return an outcome per range; blocks until the job has ended.

    Raises:
        RelayError: Spark gave the job up. What was committed until then is in the ledger.
    """
    where, select = sql
    ranges = [one for group in groups for one in group]
    starts = [sum(map(len, groups[:at])) for at in range(len(groups))]
    indices = [range(start, start + len(group)) for start, group in zip(starts, groups, strict=True)]
    named = [name for name in COLUMNS if re.search(rf"\b{name}\b", f"{where} {select}", re.IGNORECASE)]
    columns = list(dict.fromkeys([*ALWAYS, *named]))

    def frame() -> Any:
        tasks = session.range(0, len(groups), 1, len(groups))
        rows = tasks.mapInArrow(partial(_read, job, ranges, indices, columns), schema(columns))
        if where:
            rows = rows.where(f"{NOTE} IS NOT NULL OR ({where})")
        made = rows.selectExpr(NOTE, RANGE, *(_column(name, dict(select)) for name in ALWAYS))
        return made.mapInArrow(partial(_write, job, ranges), SCHEMA)

    return collect(session, frame, tag)


def _column(name: str, select: dict[str, str]) -> str:
    if name not in select:
        return name
    # a row with a note is none of the expression's business
    return f"CASE WHEN {NOTE} IS NULL THEN CAST(({select[name]}) AS {COLUMNS[name]}) ELSE {name} END AS {name}"


def _read(
    job: CopyJob, ranges: list[CopyRange], indices: list[range], columns: list[str], ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in ids:
        for group in batch.column(0).to_pylist():
            yield from read_rows(job, ranges, indices[group], columns, SystemClock())


def _write(job: CopyJob, ranges: list[CopyRange], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for outcome in write_rows(job, ranges, batches, SystemClock()):
        yield from arrow(outcome)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

"""Records as Arrow columns, and back. Whoever copies records as they are never imports this.

Arrow's way from Python objects imports pandas: 50 MB, and half a second.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from relay_pipelines.errors import FilterError, RelayError
from relay_pipelines.model import OnRecordError, TimestampType, TopicPartition
from relay_pipelines.protocol.python_codec import has_utf8_names
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import checked_records, corrupt_at

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<name: string, value: binary>>",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestamp_type": "string",
}
"""What there is, with its type in Spark's words."""
_MS = pa.timestamp("ms", tz="UTC")
_BINARY_NAMES = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_type": pa.string(),
}
_NO_TIMESTAMP = -1
_LAST_MS = (1 << 63) // 1000 - 1
_NO_TEXT = "the name of a header is not UTF-8"
_NO_DATE = "the timestamp is beyond the year 294,000"


class Row(NamedTuple):
    """A record that was a row; timestamp in milliseconds, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class ColumnBuilder:
    """Collects the columns wanted of some records, until they are taken as one Arrow batch.

    Args:
        on_error: what becomes of a record that Arrow cannot hold; with `QUARANTINE` it is added to
            `failed`, with the reason.
    """

    def __init__(
        self,
        columns: Sequence[str],
        at: TopicPartition,
        on_error: OnRecordError = OnRecordError.FAIL,
    ) -> None:
        self._values: dict[str, list[Any]] = {name: [] for name in columns}
        self._at = at
        self._quarantines = on_error is OnRecordError.QUARANTINE
        self.failed: list[tuple[Any, RelayError]] = []
        self.records = 0

    def add(self, records: Sequence[Any], *, log_append_time: bool) -> None:
        """Take the columns of these records.

        Raises:
            FilterError: a header's name is not UTF-8, and the column headers is wanted.
        """
        if "headers" in self._values:
            records = [one for one in records if self._has_text(one)]
        if "timestamp" in self._values:
            records = [
                one for one in records if one.timestamp <= _LAST_MS or self._refuse(one, _NO_DATE)
            ]
        kind = str(TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME)
        for name, values in self._values.items():
            values.extend(_COLUMN_OF[name](records, self._at, kind))
        self.records += len(records)

    def _has_text(self, record: Any) -> bool:
        if not record.headers or has_utf8_names(record):
            return True
        return self._refuse(record, _NO_TEXT)

    def _refuse(self, record: Any, what: str) -> bool:
        error = FilterError(
            f"{what}, which SQL and Arrow cannot hold",
            remedy="leave out what needs that column, or set on_record_error: quarantine; run again to go on",
            topic_partition=self._at,
            offset=record.offset,
        )
        if not self._quarantines:
            raise error
        self.failed.append((record, error))
        return False

    def take(self) -> pa.RecordBatch:
        """Return what was collected, and begin anew."""
        arrays = [_array(name, values) for name, values in self._values.items()]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(self._values))
        self._values = {name: [] for name in self._values}
        self.records = 0
        return batch


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave the garbage collector out, which would look at every record held, again and again; none of them is in a cycle.

    It takes two thirds of the time where many records are held at once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def records_in(span: FetchedSpan) -> Iterator[list[Any]]:
    """Yield the records of a span; none where it was skipped.

    Raises:
        CorruptBatchError: the bytes of a batch do not match their CRC, or cannot be decoded.
    """
    run = span.run
    if run is None:
        return
    whole = span.start <= run.first.base_offset and run.last.last_offset < span.end
    with corrupt_at(run.first.base_offset):
        records = checked_records(run, span.end)
        yield (
            list(records)
            if whole
            else [each for each in records if span.start <= each.offset < span.end]
        )


def is_log_append_time(span: FetchedSpan) -> bool:
    """Whether a broker has set the timestamps of a span's records."""
    return span.run is not None and span.run.first.is_log_append_time


def rows_of(batch: pa.RecordBatch, at: TopicPartition) -> list[Row]:
    """Return the rows of a batch with the columns offset, timestamp, key, value and headers.

    Args:
        at: where the records come from.

    Raises:
        FilterError: what SQL or a transform has made of a record is no Kafka record.
    """
    try:
        return _rows(batch)
    except Exception as error:
        if len(batch) > 1:
            middle = len(batch) // 2
            return rows_of(batch.slice(0, middle), at) + rows_of(batch.slice(middle), at)
        raise FilterError(
            f"SQL or a transform has made no Kafka record of it: {error}",
            remedy="correct the expression or the class; run again to go on",
            topic_partition=at,
            offset=batch.column("offset")[0].as_py(),
        ) from error


def _rows(batch: pa.RecordBatch) -> list[Row]:
    # Kafka keeps milliseconds: what is finer is cut off
    timestamps = batch.column("timestamp").cast(TYPES["timestamp"]).cast(pa.int64()).to_pylist()
    return list(
        map(
            Row,
            batch.column("offset").to_pylist(),
            [_NO_TIMESTAMP if us is None else us // 1000 for us in timestamps],
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            _headers(batch.column("headers")),
        )
    )


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]]]:
    if not len(column.flatten()):
        return [[]] * len(column)
    try:
        rows = column.to_pylist()
    except UnicodeDecodeError:  # Spark casts any binary to a string
        rows = column.cast(_BINARY_NAMES).to_pylist()
    return [[_header(each) for each in headers or ()] for headers in rows]


def _header(one: Mapping[str, Any] | None) -> tuple[str, bytes | None]:
    if one is None or one["name"] is None:
        raise ValueError("a header has no name")
    name = one["name"]
    return name.decode(errors="surrogateescape") if isinstance(name, bytes) else name, one["value"]


def _array(name: str, values: list[Any]) -> pa.Array:
    if name == "timestamp":
        return pa.array(values, _MS).cast(TYPES[name])
    if name == "headers" and not any(values):
        # the dearest column, and empty for most
        return pa.ListArray.from_arrays(
            pa.array([0] * (len(values) + 1), pa.int32()), pa.array([], TYPES[name].value_type)
        )
    return pa.array(values, TYPES[name])


_COLUMN_OF: Mapping[str, Callable[[Sequence[Any], TopicPartition, str], list[Any]]] = {
    "key": lambda records, _at, _kind: [one.key for one in records],
    "value": lambda records, _at, _kind: [one.value for one in records],
    "headers": lambda records, _at, _kind: [
        [{"name": name, "value": value} for name, value in one.headers] for one in records
    ],
    "topic": lambda records, at, _kind: [at.topic] * len(records),
    "partition": lambda records, at, _kind: [at.partition] * len(records),
    "offset": lambda records, _at, _kind: [one.offset for one in records],
    "timestamp": lambda records, _at, _kind: [
        one.timestamp if one.timestamp >= 0 else None for one in records
    ],
    "timestamp_type": lambda records, _at, kind: [kind] * len(records),
}

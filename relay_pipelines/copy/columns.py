"""Records as Arrow columns, and back.

The plain copy never imports this, because making Arrow arrays from Python objects imports pandas:
50 MB, and half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from relay_pipelines.errors import FilterError, RelayError
from relay_pipelines.model import OnRecordError, TopicPartition
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import (
    Record,
    checked_records,
    corrupt_at,
    has_utf8_names,
)

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns of spark-sql-kafka, with their types as Spark names them."""
_MS = pa.timestamp("ms", tz="UTC")
_BINARY_NAMES = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
_NO_TIMESTAMP = -1
_LAST_MS = (1 << 63) // 1000 - 1
_NOT_UTF8 = "the name of a header is not UTF-8"
_NOT_A_DATE = "the timestamp is more than 292,000 years away from 1970"


class ColumnBuilder:
    """Collects columns of records, until `take` returns them as one Arrow batch.

    Args:
        columns: the names of the columns to collect.
        topic_partition: of the records.
        on_error: what to do with a record that Arrow cannot hold; with `QUARANTINE` it is added to
            `failed`, with the reason.
    """

    def __init__(
        self,
        columns: Sequence[str],
        topic_partition: TopicPartition,
        on_error: OnRecordError = OnRecordError.FAIL,
    ) -> None:
        self._values: dict[str, list[Any]] = {name: [] for name in columns}
        self._topic_partition = topic_partition
        self._quarantines = on_error is OnRecordError.QUARANTINE
        self.failed: list[tuple[Any, RelayError]] = []
        self.records = 0

    def add(self, records: Sequence[Any], *, log_append_time: bool) -> None:
        """Collect the columns of these records.

        Raises:
            FilterError: Arrow cannot hold a record, and it may not go into quarantine.
        """
        if "headers" in self._values:
            utf8 = [not record.headers or has_utf8_names(record) for record in records]
            records = self._only(records, utf8, _NOT_UTF8)
        if "timestamp" in self._values:
            dates = [-_LAST_MS <= record.timestamp <= _LAST_MS for record in records]
            records = self._only(records, dates, _NOT_A_DATE)
        # as Kafka's clients number CreateTime and LogAppendTime; none (-1) is of older formats
        kind = 1 if log_append_time else 0
        for name, values in self._values.items():
            values.extend(_COLUMN_OF[name](records, self._topic_partition, kind))
        self.records += len(records)

    def take(self) -> pa.RecordBatch:
        """Return the batch, and start an empty one."""
        arrays = [_array(name, values) for name, values in self._values.items()]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(self._values))
        self._values = {name: [] for name in self._values}
        self.records = 0
        return batch

    def _only(self, records: Sequence[Any], valid: Sequence[bool], problem: str) -> Sequence[Any]:
        """Return the valid records; the others fail."""
        if all(valid):
            return records
        for record in (record for record, ok in zip(records, valid, strict=True) if not ok):
            error = FilterError(
                f"{problem}, which SQL and Arrow cannot hold",
                remedy="leave out what needs that column, or set on_record_error: quarantine, then"
                " run again",
                topic_partition=self._topic_partition,
                offset=record.offset,
            )
            if not self._quarantines:
                raise error
            self.failed.append((record, error))
        return [record for record, ok in zip(records, valid, strict=True) if ok]


def records_in(span: FetchedSpan) -> Iterator[list[Any]]:
    """Yield the records of a span, all at once; a skipped span has none.

    Raises:
        CorruptBatchError: a batch does not match its CRC, or cannot be decoded.
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
            else [record for record in records if span.start <= record.offset < span.end]
        )


def is_log_append_time(span: FetchedSpan) -> bool:
    """Whether a broker set the timestamps of a span's records."""
    return span.run is not None and span.run.first.is_log_append_time


def rows_of(batch: pa.RecordBatch, topic_partition: TopicPartition) -> list[Record]:
    """Return the rows of a batch with the columns offset, timestamp, key, value and headers.

    Args:
        topic_partition: the source of the records.

    Raises:
        FilterError: SQL or a transform returned a row that is not a valid Kafka record.
    """
    try:
        return _rows(batch)
    except Exception as error:
        if len(batch) > 1:
            middle = len(batch) // 2
            return [
                *rows_of(batch.slice(0, middle), topic_partition),
                *rows_of(batch.slice(middle), topic_partition),
            ]
        raise FilterError(
            f"SQL or a transform returned a row that is not a valid Kafka record: {error}",
            remedy="correct the expression or the class, then run again",
            topic_partition=topic_partition,
            offset=batch.column("offset")[0].as_py(),
        ) from error


def _rows(batch: pa.RecordBatch) -> list[Record]:
    # Kafka keeps milliseconds: finer timestamps are truncated
    timestamps = batch.column("timestamp").cast(TYPES["timestamp"]).cast(pa.int64()).to_pylist()
    return list(
        map(
            Record,
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
    return [[_header(header) for header in headers or ()] for headers in rows]


def _header(header: Mapping[str, Any] | None) -> tuple[str, bytes | None]:
    if header is None or header["key"] is None:
        raise ValueError("a header has no key")
    name, value = header["key"], header["value"]
    return name.decode(errors="surrogateescape") if isinstance(name, bytes) else name, value


def _array(name: str, values: list[Any]) -> pa.Array:
    if name == "timestamp":
        return pa.array(values, _MS).cast(TYPES[name])
    if name == "headers" and not any(values):
        # the most expensive column, and usually empty
        return pa.ListArray.from_arrays(
            pa.array([0] * (len(values) + 1), pa.int32()), pa.array([], TYPES[name].value_type)
        )
    return pa.array(values, TYPES[name])


_COLUMN_OF: Mapping[str, Callable[[Sequence[Any], TopicPartition, int], list[Any]]] = {
    "key": lambda records, _source, _kind: [record.key for record in records],
    "value": lambda records, _source, _kind: [record.value for record in records],
    "topic": lambda records, source, _kind: [source.topic] * len(records),
    "partition": lambda records, source, _kind: [source.partition] * len(records),
    "offset": lambda records, _source, _kind: [record.offset for record in records],
    "timestamp": lambda records, _source, _kind: [
        None if record.timestamp == _NO_TIMESTAMP else record.timestamp for record in records
    ],
    "timestampType": lambda records, _source, kind: [kind] * len(records),
    "headers": lambda records, _source, _kind: [
        [{"key": name, "value": value} for name, value in record.headers] for record in records
    ],
}

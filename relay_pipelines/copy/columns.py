"""Records as Arrow columns, and back. Whoever copies records as they are never imports this.

Arrow's way from Python objects imports pandas: 50 MB, and half a second.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from relay_pipelines.copy.reader import Piece
from relay_pipelines.errors import FilterError
from relay_pipelines.model import TimestampType, TopicPartition
from relay_pipelines.wire.python_codec import has_utf8_names
from relay_pipelines.wire.records import checked_records, corrupt_at

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
        failed: called for every record that Arrow cannot hold, and why; without it, that is raised.
    """

    def __init__(
        self, columns: Sequence[str], at: TopicPartition, failed: Callable[[Any, FilterError], None] | None = None
    ) -> None:
        self._values: dict[str, list[Any]] = {name: [] for name in columns}
        self._at = at
        self._failed = failed
        self.records = 0

    def add(self, records: Sequence[Any], *, log_append_time: bool) -> None:
        """Take the columns of these records.

        Raises:
            FilterError: a header's name is not UTF-8, and the column headers is wanted.
        """
        if "headers" in self._values:
            records = [one for one in records if self._has_text(one)]
        kind = str(TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME)
        for name, values in self._values.items():
            values.extend(_COLUMN_OF[name](records, self._at, kind))
        self.records += len(records)

    def _has_text(self, record: Any) -> bool:
        if not record.headers or has_utf8_names(record):
            return True
        error = FilterError(
            "the name of a header is not UTF-8, which SQL and Arrow cannot hold",
            remedy="leave out what needs headers as columns, or set on_record_error: quarantine; run again to go on",
            topic_partition=self._at,
            offset=record.offset,
        )
        if self._failed is None:
            raise error
        self._failed(record, error)
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


def records_in(piece: Piece) -> Iterator[list[Any]]:
    """Yield the records of a piece; none where it was skipped.

    Raises:
        CorruptBatchError: the bytes of a batch do not match their CRC, or cannot be decoded.
    """
    run = piece.run
    if run is None:
        return
    whole = piece.start <= run.first.base_offset and run.last.last_offset < piece.end
    with corrupt_at(run.first.base_offset):
        records = checked_records(run, piece.end)
        yield list(records) if whole else [one for one in records if piece.start <= one.offset < piece.end]


def is_log_append_time(piece: Piece) -> bool:
    """Whether a broker has set the timestamps of a piece's records."""
    return piece.run is not None and piece.run.first.is_log_append_time


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a batch with the columns offset, timestamp, key, value and headers."""
    columns = {name: batch.column(name) for name in ("offset", "timestamp", "key", "value", "headers")}
    timestamps = columns["timestamp"].cast(_MS).cast(pa.int64()).fill_null(_NO_TIMESTAMP)
    return list(
        map(
            Row,
            columns["offset"].to_pylist(),
            timestamps.to_pylist(),
            columns["key"].to_pylist(),
            columns["value"].to_pylist(),
            _headers(columns["headers"]),
        )
    )


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]]]:
    if not len(column.flatten()):
        return [[]] * len(column)
    try:
        rows = column.to_pylist()
    except UnicodeDecodeError:  # Spark casts any binary to a string
        rows = column.cast(_BINARY_NAMES).to_pylist()
        return [[(one["name"].decode(errors="surrogateescape"), one["value"]) for one in headers or ()] for headers in rows]
    return [[(one["name"], one["value"]) for one in headers or ()] for headers in rows]


def _array(name: str, values: list[Any]) -> pa.Array:
    if name == "timestamp":
        return pa.array(values, _MS).cast(TYPES[name])
    if name == "headers" and not any(values):
        # the dearest column, and empty for most
        return pa.ListArray.from_arrays(pa.array([0] * (len(values) + 1), pa.int32()), pa.array([], TYPES[name].value_type))
    return pa.array(values, TYPES[name])


_COLUMN_OF: Mapping[str, Callable[[Sequence[Any], TopicPartition, str], list[Any]]] = {
    "key": lambda records, _at, _kind: [one.key for one in records],
    "value": lambda records, _at, _kind: [one.value for one in records],
    "headers": lambda records, _at, _kind: [[{"name": name, "value": value} for name, value in one.headers] for one in records],
    "topic": lambda records, at, _kind: [at.topic] * len(records),
    "partition": lambda records, at, _kind: [at.partition] * len(records),
    "offset": lambda records, _at, _kind: [one.offset for one in records],
    "timestamp": lambda records, _at, _kind: [one.timestamp if one.timestamp >= 0 else None for one in records],
    "timestamp_type": lambda records, _at, kind: [kind] * len(records),
}

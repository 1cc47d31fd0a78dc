"""Ledger entries as a table: one row per entry, for Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.model import policy_id
from relay_pipelines.protocol.clock import moment_of

if TYPE_CHECKING:
    import pyarrow as pa

_Reader = Callable[[LedgerRecord], Any]


def _time(path: str, unknown: int | None = None) -> _Reader:
    """Return what reads milliseconds as a time; None if they are `unknown`, or no time."""
    read = attrgetter(path)

    def time_of(record: LedgerRecord) -> dt.datetime | None:
        ms = read(record)
        return None if ms == unknown else moment_of(ms)

    return time_of


_COLUMNS: dict[str, tuple[str, _Reader]] = {
    "mirror": ("string", attrgetter("entry.mirror")),
    "topic": ("string", attrgetter("entry.tp.topic")),
    "partition": ("int", attrgetter("entry.tp.partition")),
    "start": ("bigint", attrgetter("entry.source.start")),
    "end": ("bigint", attrgetter("entry.source.end")),
    "destination_topic": ("string", attrgetter("entry.to.topic")),
    "destination_partition": ("int", attrgetter("entry.to.partition")),
    "destination_start": ("bigint", attrgetter("entry.destination.start")),
    "destination_end": ("bigint", attrgetter("entry.destination.end")),
    "records": ("bigint", attrgetter("entry.records")),
    "size_bytes": ("bigint", attrgetter("entry.size_bytes")),
    "batches": ("bigint", attrgetter("entry.batches")),
    "reencoded": ("bigint", attrgetter("entry.reencoded")),
    "skipped": ("map<string, bigint>", attrgetter("entry.skipped")),
    "digest": ("string", attrgetter("entry.digest")),
    "producer_id": ("bigint", attrgetter("entry.producer_id")),
    "upstream": ("string", attrgetter("entry.upstream")),
    "window": ("string", attrgetter("entry.window")),
    "run_id": ("string", attrgetter("entry.run_id")),
    "committed_at": ("timestamp", _time("entry.committed_at_ms")),
    "gap": ("string", attrgetter("entry.gap")),
    "number": ("bigint", attrgetter("entry.number")),
    "previous": ("string", attrgetter("entry.previous")),
    "previous_at": ("timestamp", _time("entry.previous_at_ms", unknown=0)),
    "generation": ("bigint", attrgetter("entry.generation")),
    "policy": ("string", lambda record: policy_id(record.entry.policy)),
    "code": ("string", lambda record: record.entry.policy.get("code", "")),
    "codecs": ("map<string, bigint>", attrgetter("entry.codecs")),
    "first_timestamp": ("timestamp", _time("entry.first_timestamp_ms", unknown=-1)),
    "max_timestamp": ("timestamp", _time("entry.max_timestamp_ms", unknown=-1)),
    "hash": ("string", attrgetter("head.hash")),
    "ledger_partition": ("int", attrgetter("at.partition")),
    "ledger_offset": ("bigint", attrgetter("offset")),
}
COLUMNS = {name: kind for name, (kind, _) in _COLUMNS.items()}
"""The columns, with their Spark SQL types; docs/dataframe.md says what they mean."""


def arrow_batch(records: Iterable[LedgerRecord], columns: Sequence[str]) -> pa.RecordBatch:
    """Return entries as an Arrow batch with these columns."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string, bigint>": pa.map_(pa.string(), pa.int64()),
    }
    entries, arrays = list(records), []
    for name in columns:
        kind, read = _COLUMNS[name]
        values = [read(record) for record in entries]
        if kind.startswith("map"):
            values = [list(value.items()) for value in values]
        arrays.append(pa.array(values, types[kind]))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))

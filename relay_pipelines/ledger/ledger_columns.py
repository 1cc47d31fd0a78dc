"""Ledger entries as a table: one row per entry, for CSV, Parquet and Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.model import policy_id

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {
    "mirror": "string",
    "topic": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
    "destination_topic": "string",
    "destination_partition": "int",
    "destination_start": "bigint",
    "destination_end": "bigint",
    "records": "bigint",
    "size_bytes": "bigint",
    "batches": "bigint",
    "rewritten": "bigint",
    "skipped": "map<string, bigint>",
    "digest": "string",
    "node": "string",
    "window": "string",
    "run_id": "string",
    "committed_at": "timestamp",
    "gap": "string",
    "number": "bigint",
    "previous": "string",
    "previous_at": "timestamp",
    "generation": "bigint",
    "policy": "string",
    "code": "string",
    "codecs": "map<string, bigint>",
    "first_timestamp": "timestamp",
    "max_timestamp": "timestamp",
    "hash": "string",
    "ledger_partition": "int",
    "ledger_offset": "bigint",
}
"""The columns, with their Spark SQL types; docs/dataframe.md says what they mean."""


def row(record: LedgerRecord) -> dict[str, Any]:
    """Return an entry as column -> value."""
    entry = record.entry
    source, copies = entry.source, entry.destination
    return {
        "mirror": entry.mirror,
        "topic": source.topic_partition.topic,
        "partition": source.topic_partition.partition,
        "start": source.start,
        "end": source.end,
        "destination_topic": copies.topic_partition.topic,
        "destination_partition": copies.topic_partition.partition,
        "destination_start": copies.start,
        "destination_end": copies.end,
        "records": entry.records,
        "size_bytes": entry.size_bytes,
        "batches": entry.batches,
        "rewritten": entry.rewritten,
        "skipped": entry.skipped,
        "digest": entry.digest,
        "node": entry.node,
        "window": entry.window,
        "run_id": entry.run_id,
        "committed_at": _time(entry.committed_at_ms),
        "gap": entry.gap,
        "number": entry.number,
        "previous": entry.previous,
        "previous_at": _time(entry.previous_at_ms) if entry.previous_at_ms else None,
        "generation": entry.generation,
        "policy": policy_id(entry.policy),
        "code": entry.policy.get("code", ""),
        "codecs": entry.codecs,
        "first_timestamp": _known_time(entry.first_timestamp_ms),
        "max_timestamp": _known_time(entry.max_timestamp_ms),
        "hash": record.head.hash,
        "ledger_partition": record.at.partition,
        "ledger_offset": record.offset,
    }


def _time(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def _known_time(ms: int) -> dt.datetime | None:
    return _time(ms) if ms >= 0 else None


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
    rows = [row(record) for record in records]
    arrays = []
    for name in columns:
        values = [each[name] for each in rows]
        if COLUMNS[name].startswith("map"):
            values = [list(each.items()) for each in values]
        arrays.append(pa.array(values, types[COLUMNS[name]]))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))

"""The ledger: one entry per committed chunk, in a topic at the destination.

An entry is committed with its data. Progress, metrics and the count checks of a run come from it.
"""

from __future__ import annotations

from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.records import encode
from relay_pipelines.state.checkpoint import key_of, versioned, versioned_json

TOPIC = "__relay_ledger"
CONFIGS = {"cleanup.policy": "delete", "retention.ms": str(30 * 24 * 3600 * 1000)}
_VERSION = 1


def to_record(entry: LedgerEntry) -> tuple[bytes, bytes, int]:
    """Return key, value and timestamp."""
    value = versioned_json(entry, _VERSION)
    return key_of(entry.mirror, entry.source.topic_partition), value, entry.committed_at_ms


def to_batch(entry: LedgerEntry) -> Batch:
    """Return a batch of one record."""
    return encode(*to_record(entry))


def from_record(value: bytes) -> LedgerEntry:
    """Return the entry of a record's value."""
    fields = versioned(value, _VERSION, TOPIC)
    return LedgerEntry(
        source=_range(fields.pop("source")), destination=_range(fields.pop("destination")), **fields
    )


def _range(fields: dict[str, object]) -> OffsetRange:
    topic_partition = TopicPartition(**fields["topic_partition"])  # type: ignore[arg-type]  # JSON of a TopicPartition
    return OffsetRange(topic_partition, int(str(fields["start"])), int(str(fields["end"])))

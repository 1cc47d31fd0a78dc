"""The statement of a cut: where both histories part, outside of Kafka, signed if wanted."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from relay_pipelines.ledger import statement
from relay_pipelines.move.record import UNKNOWN, CutPartition, MoveRecord
from relay_pipelines.output.formatting import format_time

KIND, VERSION = "cut of relay_pipelines", 1


def cut_statement(record: MoveRecord, key: Path | None) -> dict[str, Any]:
    """Return the statement of a cut, from its record.

    Args:
        key: PEM file with the Ed25519 private key that signs it; None for no signature.

    Raises:
        ConfigError: the key cannot be read.
    """
    document: dict[str, Any] = {
        "kind": KIND,
        "version": VERSION,
        "relay_pipelines": importlib.metadata.version("relay_pipelines"),
        "mirror": record.mirror,
        "cut_at": format_time(record.state_since_ms),
        "cut_by": record.by,
        "without_source": record.is_without_source,
        "fence_held_at": format_time(record.fence.held_at_ms) if record.fence.held_at_ms else None,
        "groups": list(record.groups),
        "topic_partitions": [_partition(each) for each in record.cut],
    }
    if key is not None:
        document["signature"] = statement.signature_of(document, statement.read_key(key))
    return document


def text_of(document: dict[str, Any]) -> bytes:
    """Return a statement as a file has it."""
    return f"{json.dumps(document, indent=2)}\n".encode()


def _partition(each: CutPartition) -> dict[str, Any]:
    return {
        "topic": each.source.topic,
        "partition": each.source.partition,
        "source_end": each.source_end,
        "missing_offsets": None if each.missing == UNKNOWN else each.missing,
        "destination_topic": each.destination.topic,
        "destination_partition": each.destination.partition,
        "destination_end": each.destination_end,
        "ledger_entries": each.ledger_number,
        "ledger_head": each.ledger_hash,
    }

"""The statement of a cut: where both histories part, outside of Kafka, signed if wanted."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relay_pipelines.finding import Finding, Kind, Severity
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


def read_cut_statement(path: Path, trusted: Path | None = None) -> dict[str, Any]:
    """Read the statement of a cut, and check its signature.

    Args:
        trusted: PEM file with the public key that must have signed it; None if any may, or none.

    Raises:
        ConfigError: there is no such file, it is no statement, or another one has signed it.
        TamperedError: it was changed after it was signed.
    """
    document, _ = statement.read_signed(path, KIND, VERSION, trusted)
    return document


def differences(document: Mapping[str, Any], record: MoveRecord) -> list[Finding]:
    """Return where a statement and the record of the cut say something else."""
    known = cut_statement(record, None)
    found = [
        _difference(f"its {field} is {document.get(field)!r}, and the record has {known[field]!r}")
        for field in known
        if field not in _OF_ITS_OWN and document.get(field) != known[field]
    ]
    stated = _by_partition(document)
    for where, partition in _by_partition(known).items():
        if (other := stated.pop(where, None)) != partition:
            found.append(_difference(f"it says {other}, and the record {partition}", where))
    return found + [_difference("the record does not have it", where) for where in stated]


_OF_ITS_OWN = ("relay_pipelines", "topic_partitions")


def _difference(text: str, where: str = "") -> Finding:
    place = f"the statement: {where}" if where else "the statement"
    return Finding(Kind.OTHER_RECORDS, place, Severity.DIFFERENCE, text)


def _by_partition(document: Mapping[str, Any]) -> dict[str, Any]:
    some = document.get("topic_partitions")
    if not isinstance(some, list):
        return {}
    return {
        f"{each.get('topic')}-{each.get('partition')}": each
        for each in some
        if isinstance(each, dict)
    }


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

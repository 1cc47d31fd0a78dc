"""Statements: what a ledger said at some time, kept outside of Kafka.

A statement is JSON lines: a header, every entry as the ledger holds it, and where the chain of each
source topic-partition ends. So whoever has it can compute the hashes, and compare the destination
with it after the ledger has forgotten the entries.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from relay_pipelines.errors import ConfigError, TamperedError
from relay_pipelines.formats import STATEMENT
from relay_pipelines.json_codec import NOT_READABLE, from_fields
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.checkpoint import Key, StateKind, fields_of
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.state_table import read_move
from relay_pipelines.ledger.verified import made_of_ledger
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, TopicPartition
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.sides import Sides

_KIND = "statement of relay_pipelines"
_NEW_STATEMENT = "`relay attest --output FILE` writes one"
_NOWHERE = TopicPartition(ledger_topic.TOPIC, -1)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line, after its kind and version; `made_at` is a time, as text."""

    relay_pipelines: str
    mirror: str
    made_at: str
    destination_cluster_id: str
    source_cluster_ids: Mapping[str, str]
    move: Any
    entries: int
    topic_partitions: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it was read.

    Args:
        records: the entries of each source topic-partition, oldest first; their offsets in the
            ledger are unknown.
        heads: number and hash of the newest ones.
    """

    header: Header
    records: Mapping[TopicPartition, Sequence[LedgerRecord]]
    heads: Mapping[TopicPartition, LedgerHead]


def attest(sides: Sides, topic: str | None, made_at: str) -> Iterator[bytes]:
    """Verify the ledger of a mirror, and yield a statement of it, line by line.

    Before the first line, everything is verified. Memory does not grow with the number of entries:
    they are in a file meanwhile.

    Args:
        topic: only this source topic.

    Raises:
        TamperedError: the ledger is not what was committed; its notes name each place.
        ConfigError: the ledger has no entries.
    """
    with sides.destination("ledger") as client:
        value = client.retry(partial(read_move, client, sides.name))
    sides = sides.at(client.cluster_id)
    move = None if value is None else fields_of(Key(sides.name, StateKind.MOVE), value)
    with tempfile.TemporaryFile(prefix="relay-statement-") as file:
        totals, ledger = made_of_ledger(
            sides, lambda tp: topic in {None, tp.topic}, partial(_spooled, file)
        )
        attested = {tp: totals[tp] for tp in sorted(ledger.chains)}
        entries = sum(total["entries"] for total in attested.values())
        if not entries:
            of, remedy = "this mirror", "see `relay ledger`"
            if topic is not None:
                known = {tp.topic for tp in ledger.checkpoints}
                of, remedy = f"topic {topic!r}", nearest(topic, known, "topics", remedy)
            raise ConfigError(f"the ledger has no entries of {of}", remedy=remedy)
        header = Header(
            relay_pipelines=importlib.metadata.version("relay_pipelines"),
            mirror=sides.name,
            made_at=made_at,
            destination_cluster_id=ledger.cluster_id,
            source_cluster_ids=_source_cluster_ids(ledger.checkpoints.values()),
            move=move,
            entries=entries,
            topic_partitions=len(attested),
        )
        yield f"{STATEMENT.text(header, kind=_KIND)}\n".encode()
        file.seek(0)
        yield from file
        for tp, total in attested.items():
            chain_end = {
                "topic": tp.topic,
                "partition": tp.partition,
                "head": dataclasses.asdict(ledger.checkpoints[tp].ledger_head),
                "expired_entries": ledger.chains[tp].expired,
                **total,
            }
            yield f"{json.dumps(chain_end)}\n".encode()


def _spooled(
    file: BinaryIO, records: Iterable[LedgerRecord]
) -> defaultdict[TopicPartition, dict[str, Any]]:
    """Write entries to a file, one a line, instead of what it holds; and add them up."""
    file.seek(0)
    file.truncate()
    totals: defaultdict[TopicPartition, dict[str, Any]] = defaultdict(_nothing)
    for record in records:
        _add(totals[record.entry.tp], record.entry)
        file.write(record.value + b"\n")
    return totals


def _nothing() -> dict[str, Any]:
    """Return what no entries add up to."""
    return {"records": 0, "size_bytes": 0, "skipped": Counter(), "ranges": [], "entries": 0}


def _add(total: dict[str, Any], entry: LedgerEntry) -> None:
    """Add the next entry; source ranges that were copied to one destination are joined."""
    total["entries"] += 1
    total["records"] += entry.records
    total["size_bytes"] += entry.size_bytes
    total["skipped"].update(entry.skipped)
    copies, ranges = entry.to, total["ranges"]
    there = {"destination_topic": copies.topic, "destination_partition": copies.partition}
    last = ranges[-1] if ranges else None
    if last and last["end"] == entry.source.start and there.items() <= last.items():
        last["end"] = entry.source.end
    elif len(entry.source):
        ranges.append({"start": entry.source.start, "end": entry.source.end, **there})


def _source_cluster_ids(checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    by_age = sorted(checkpoints, key=lambda known: known.committed_at_ms)
    return {
        upstream: cluster_id
        for source_checkpoint in by_age
        for upstream, cluster_id in source_checkpoint.cluster_ids.items()
    }


def read_statement(path: Path) -> Statement:
    """Read a statement.

    Raises:
        ConfigError: there is no such file, or it is no statement.
        UnsupportedError: another version of relay_pipelines wrote it.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"cannot read the statement {path}: {error.strerror}", remedy=_NEW_STATEMENT
        ) from None
    fields = _first_line(path, lines)
    try:
        header = STATEMENT.of_fields(Header, fields, str(path))
        return Statement(header, *_chains(header, lines[1:]))
    except (*NOT_READABLE, TamperedError) as error:
        raise _no_statement(path, "it is incomplete") from error


def _chains(
    header: Header, lines: Sequence[bytes]
) -> tuple[dict[TopicPartition, list[LedgerRecord]], dict[TopicPartition, LedgerHead]]:
    """Return the entries of a statement, and the heads, which stand after all entries.

    Raises:
        AttributeError, KeyError, TypeError, ValueError, TamperedError: something is missing.
    """
    count = header.entries
    heads = {
        TopicPartition(fields["topic"], fields["partition"]): from_fields(
            LedgerHead, fields["head"]
        )
        for fields in map(json.loads, lines[count:])
    }
    records: dict[TopicPartition, list[LedgerRecord]] = {tp: [] for tp in heads}
    for position, value in enumerate(lines[:count]):
        entry = ledger_topic.from_record(value)
        record = LedgerRecord(entry, value, _NOWHERE, position)
        records[entry.tp].append(record)
    if len(heads) != header.topic_partitions:
        raise ValueError(header)
    return records, heads


def _first_line(path: Path, lines: Sequence[bytes]) -> dict[str, Any]:
    try:
        fields = json.loads(lines[0] if lines else b"")
    except ValueError:
        raise _no_statement(path, "its first line is no JSON") from None
    if not isinstance(fields, dict) or fields.pop("kind", None) != _KIND:
        raise _no_statement(path, f"it does not say {_KIND!r}")
    return fields


def _no_statement(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is no statement that this relay can read: {why}", remedy=_NEW_STATEMENT
    )

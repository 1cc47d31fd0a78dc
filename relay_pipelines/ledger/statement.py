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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from relay_pipelines.errors import ConfigError, TamperedError, written_by_newer
from relay_pipelines.json_codec import from_fields
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.chain import Chain, Links, tampered
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.state_table import read_move
from relay_pipelines.ledger.verified import LedgerUpToHeads, read_verified_ledger
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, TopicPartition
from relay_pipelines.sides import Sides

_KIND, _VERSION = "statement of relay_pipelines", 1
_NEW_STATEMENT = "`relay attest --output FILE` writes one"
_NOWHERE = TopicPartition(ledger_topic.TOPIC, -1)


@dataclass(frozen=True, slots=True)
class Attested:
    """What a statement says about one source topic-partition.

    Args:
        records: the entries, oldest first; their offsets in the ledger are unknown.
        head: number and hash of the newest one.
    """

    source: TopicPartition
    records: tuple[LedgerRecord, ...]
    head: LedgerHead

    @property
    def entries(self) -> list[LedgerEntry]:
        """The entries, oldest first."""
        return [record.entry for record in self.records]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it was read.

    Args:
        cluster_id: of the destination.
        made_at: the time, as text.
    """

    mirror: str
    cluster_id: str
    made_at: str
    attested: tuple[Attested, ...]


def attest(sides: Sides, topic: str | None, made_at: str) -> Iterator[bytes]:
    """Verify the ledger of a mirror, and yield a statement of it, line by line.

    Before the first line, everything is verified. Memory does not grow with the number of entries:
    they are in a file meanwhile.

    Args:
        topic: only this source topic.

    Raises:
        TamperedError: the ledger is not what was committed; its notes name each place.
        ConfigError: the ledger has no entries.
        RelayError: the destination does not answer, or refuses.
    """
    with tempfile.TemporaryFile(prefix="relay-statement-") as file:
        spool = _Spool(sides.name, topic, file)
        written = _fill(spool, sides)
        attested = {tp: spool.chain(tp) for tp in sorted(written.expired)}
        entries = sum(chain.entries for chain in attested.values())
        if not entries:
            of = "this mirror" if topic is None else f"topic {topic!r}"
            raise ConfigError(f"the ledger has no entries of {of}", remedy="see `relay ledger`")
        yield _line(
            {
                "kind": _KIND,
                "version": _VERSION,
                "relay_pipelines": importlib.metadata.version("relay_pipelines"),
                "mirror": sides.name,
                "made_at": made_at,
                "destination_cluster_id": written.cluster_id,
                "source_cluster_ids": _source_cluster_ids(written.checkpoints.values()),
                "move": written.move,
                "entries": entries,
                "topic_partitions": len(attested),
            }
        )
        file.seek(0)
        yield from file
        for tp, chain in attested.items():
            head = written.checkpoints[tp].ledger_head
            yield chain.line(tp, head, written.expired[tp])


@dataclass(frozen=True, slots=True)
class _Spooled:
    """What a statement says besides its entries.

    Args:
        cluster_id: of the destination.
        checkpoints: as the heads of the chains were read.
        expired: how many entries of each chain retention has removed from the beginning.
        move: the record of the mirror's move, as it was before all else was read; None for none.
    """

    cluster_id: str
    checkpoints: Mapping[TopicPartition, Checkpoint]
    expired: Mapping[TopicPartition, int]
    move: dict[str, Any] | None


def _fill(spool: _Spool, sides: Sides) -> _Spooled:
    """Read every entry that the ledger still holds, and verify it.

    Only if a chain is not unbroken, all of it is read again, in memory: to say where.
    """
    with sides.destination("ledger") as client:
        value = client.retry(partial(read_move, client, sides.name))
        move = None if value is None else checkpoint.fields_of(value)
        ledger = LedgerUpToHeads(sides.name, client)
        spool.add(ledger.records())
        cluster_id = client.cluster_id
    checkpoints = ledger.state.of(sides.name).checkpoints
    if (expired := spool.expired(ledger, checkpoints)) is not None:
        return _Spooled(cluster_id, checkpoints, expired, move)
    verified = read_verified_ledger(sides)
    chains = {tp: chain for tp, chain in verified.chains.items() if spool.has(tp)}
    if breaks := [broken for chain in chains.values() for broken in chain.breaks]:
        raise tampered(sides.name, breaks)
    spool.refill(chains.values())
    expired = {tp: chain.expired for tp, chain in chains.items()}
    return _Spooled(cluster_id, verified.checkpoints, expired, move)


@dataclass(slots=True)
class _AttestedChain:
    """The entries of one chain, followed link by link, and added up.

    Args:
        ranges: the source offsets that were copied to each destination, joined where they meet.
        skipped: number of offsets by reason.
    """

    links: Links = field(default_factory=Links)
    records: int = 0
    size_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    ranges: list[dict[str, object]] = field(default_factory=list)
    entries: int = 0

    def add(self, record: LedgerRecord) -> None:
        """Add the next entry."""
        self.links.add(record)
        entry = record.entry
        self.entries += 1
        self.records += entry.records
        self.size_bytes += entry.size_bytes
        self.skipped.update(entry.skipped)
        copies = entry.destination.topic_partition
        there = {"destination_topic": copies.topic, "destination_partition": copies.partition}
        last = self.ranges[-1] if self.ranges else None
        if last and last["end"] == entry.source.start and there.items() <= last.items():
            last["end"] = entry.source.end
        elif len(entry.source):
            self.ranges.append({"start": entry.source.start, "end": entry.source.end, **there})

    def line(self, tp: TopicPartition, head: LedgerHead, expired: int) -> bytes:
        """Return what the statement says of it.

        Args:
            head: of the newest entry.
            expired: how many entries retention has removed from the beginning.
        """
        return _line(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "head": dataclasses.asdict(head),
                "expired_entries": expired,
                "records": self.records,
                "size_bytes": self.size_bytes,
                "skipped": self.skipped,
                "ranges": self.ranges,
                "entries": self.entries,
            }
        )


class _Spool:
    """The entries of a mirror in a file, one a line, and its chains and those of its replays.

    Args:
        topic: only of this source topic; None for all.
    """

    def __init__(self, name: str, topic: str | None, file: BinaryIO) -> None:
        self._name = name
        self._topic = topic
        self._file = file
        self._chains: defaultdict[tuple[str, TopicPartition], _AttestedChain]
        self._chains = defaultdict(_AttestedChain)

    def has(self, tp: TopicPartition) -> bool:
        """Whether it is of a source topic-partition."""
        return self._topic in {None, tp.topic}

    def add(self, records: Iterable[LedgerRecord]) -> None:
        """Add the next entries."""
        for record in records:
            mirror, tp = record.entry.mirror, record.entry.source.topic_partition
            if self.has(tp):
                self._chains[mirror, tp].add(record)
                if mirror == self._name:
                    self._file.write(record.value + b"\n")

    def refill(self, chains: Iterable[Chain]) -> None:
        """Hold the entries of verified chains instead."""
        self._file.seek(0)
        self._file.truncate()
        self._chains.clear()
        for chain in chains:
            self.add(chain.records)

    def chain(self, tp: TopicPartition) -> _AttestedChain:
        """Return a chain of the mirror itself."""
        return self._chains[self._name, tp]

    def expired(
        self, ledger: LedgerUpToHeads, checkpoints: Mapping[TopicPartition, Checkpoint]
    ) -> dict[TopicPartition, int] | None:
        """Return how many entries of each chain of the mirror retention has removed.

        None if a chain does not lead to its head, unbroken, or is of another checkpoint.
        """
        for (mirror, tp), chain in self._chains.items():
            head = ledger.state.head(mirror, tp)
            if head is None or not chain.links.end_at(head):
                return None
        found = {}
        for tp, known in checkpoints.items():
            if self.has(tp):
                links = self.chain(tp).links
                if not links.reach(known, ledger.kept_since_ms(tp)):
                    return None
                found[tp] = links.oldest_number - 1
        return found


def _line(fields: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(fields)}\n".encode()


def _source_cluster_ids(checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    by_age = sorted(checkpoints, key=lambda known: known.committed_at_ms)
    return {
        node: cluster_id
        for source_checkpoint in by_age
        for node, cluster_id in source_checkpoint.cluster_ids.items()
    }


def read_statement(path: Path) -> Statement:
    """Read a statement.

    Raises:
        ConfigError: there is no such file, or it is no statement.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"cannot read the statement {path}: {error.strerror}", remedy=_NEW_STATEMENT
        ) from None
    header = _header(path, lines)
    try:
        attested = _attested(header, lines[1:])
        return Statement(
            header["mirror"], header["destination_cluster_id"], header["made_at"], attested
        )
    except (AttributeError, KeyError, TypeError, ValueError, TamperedError) as error:
        raise _no_statement(path, "it is incomplete") from error


def _attested(header: Mapping[str, Any], lines: Sequence[bytes]) -> tuple[Attested, ...]:
    """Return the topic-partitions of a statement; the line of each is after all entries.

    Raises:
        AttributeError, KeyError, TypeError, ValueError, TamperedError: something is missing.
    """
    count = header["entries"]
    records: defaultdict[TopicPartition, list[LedgerRecord]] = defaultdict(list)
    for position, value in enumerate(lines[:count]):
        entry = ledger_topic.from_record(value)
        record = LedgerRecord(entry, value, _NOWHERE, position)
        records[entry.source.topic_partition].append(record)
    found = []
    for fields in map(json.loads, lines[count:]):
        tp = TopicPartition(fields["topic"], fields["partition"])
        head = from_fields(LedgerHead, fields["head"])
        found.append(Attested(tp, tuple(records.pop(tp, ())), head))
    if records or len(found) != header["topic_partitions"]:
        raise ValueError(header)
    return tuple(found)


def _header(path: Path, lines: Sequence[bytes]) -> dict[str, Any]:
    try:
        header = json.loads(lines[0] if lines else b"")
    except ValueError:
        raise _no_statement(path, "its first line is no JSON") from None
    if not isinstance(header, dict) or header.get("kind") != _KIND:
        raise _no_statement(path, f"it does not say {_KIND!r}")
    found = header.get("version")
    if type(found) is int and found > _VERSION:
        raise written_by_newer(f"the statement {path}")
    if found != _VERSION:
        raise _no_statement(path, f"its version is {found}, not {_VERSION}")
    return header


def _no_statement(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is no statement that this relay can read: {why}",
        remedy=_NEW_STATEMENT,
    )

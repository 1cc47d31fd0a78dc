"""Reads and verifies a mirror's ledger for a statement, in memory that does not grow with it.

`read_verified_ledger` keeps every entry, as audits need them. Here they go to a file, and a chain
is followed while it is read. Only one that is not unbroken is read again from that file, and
verified as there.
"""

from __future__ import annotations

import struct
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.accounted import ledger_kept_since_ms
from relay_pipelines.ledger.chain import (
    Chain,
    ChainBreak,
    Links,
    not_of_checkpoint,
    not_vouched,
    verify_chain,
    vouched,
)
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import LedgerFollower, read_checkpoints
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, TopicPartition
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror

# partition and offset in the ledger, size
_ENTRY_HEAD = struct.Struct(">iqi")


@dataclass(slots=True)
class Copied:
    """What the entries of a chain have copied, added up.

    Args:
        ranges: the source offsets that were copied to each destination, joined where they meet.
        skipped: number of offsets by reason.
    """

    records: int = 0
    size_bytes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    ranges: list[dict[str, object]] = field(default_factory=list)

    def add(self, entry: LedgerEntry) -> None:
        """Add the next entry."""
        self.records += entry.records
        self.size_bytes += entry.size_bytes
        for reason, count in entry.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        copies = entry.destination.topic_partition
        there = {"destination_topic": copies.topic, "destination_partition": copies.partition}
        last = self.ranges[-1] if self.ranges else None
        if last and last["end"] == entry.source.start and there.items() <= last.items():
            last["end"] = entry.source.end
        elif len(entry.source):
            self.ranges.append({"start": entry.source.start, "end": entry.source.end, **there})


@dataclass(frozen=True, slots=True)
class AttestedChain:
    """The entries of one source topic-partition, verified.

    Args:
        values: of their records, oldest first; they are read from the file each time.
        head: of the newest one.
        expired: how many entries retention has removed from the beginning.
    """

    topic_partition: TopicPartition
    values: Iterable[bytes]
    count: int
    copied: Copied
    head: LedgerHead
    expired: int


@dataclass(frozen=True, slots=True)
class AttestedLedger:
    """The ledger of one mirror.

    Args:
        cluster_id: of the destination.
        chains: in the order of their topic-partitions; incomplete if there are breaks.
        checkpoints: as the heads of the chains were read.
        move: the record of the mirror's move, as it was before all else was read; None for none.
    """

    cluster_id: str
    chains: tuple[AttestedChain, ...]
    breaks: tuple[ChainBreak, ...]
    checkpoints: Mapping[TopicPartition, Checkpoint]
    move: dict[str, Any] | None


@contextmanager
def attested_ledger(
    name: str, mirror: Mirror, topic: str | None, clock: Clock
) -> Iterator[AttestedLedger]:
    """Read every entry that the ledger still holds, and verify the chains.

    Args:
        topic: only this source topic.

    Raises:
        TamperedError: a record is no entry.
        RelayError: the destination does not answer, or refuses.
    """
    with _EntryFile() as entries:
        yield _read(name, mirror, topic, clock, entries)


class _EntryFile:
    """A file without a name, with the entries in the order in which they were read."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="relay-ledger-")  # noqa: SIM115 - closed by the context
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, record: LedgerRecord) -> int:
        """Return where the entry begins."""
        begin = self._end
        head = _ENTRY_HEAD.pack(record.at.partition, record.offset, len(record.value))
        self._end += self._file.write(head) + self._file.write(record.value)
        return begin

    def value(self, begin: int) -> bytes:
        """Return the value of the entry that begins here."""
        return self._at(begin)[2]

    def record(self, begin: int) -> LedgerRecord:
        """Return the entry that begins here."""
        partition, offset, value = self._at(begin)
        home = TopicPartition(ledger_topic.TOPIC, partition)
        return LedgerRecord(ledger_topic.from_record(value), value, home, offset)

    def _at(self, begin: int) -> tuple[int, int, bytes]:
        self._file.seek(begin)
        partition, offset, size = _ENTRY_HEAD.unpack(self._file.read(_ENTRY_HEAD.size))
        return partition, offset, self._file.read(size)


@dataclass(slots=True)
class _FollowedChain:
    """What is known of a chain whose entries are in the file.

    Args:
        begins: where they begin there.
        end: the source offset after the newest one.
    """

    begins: array[int] = field(default_factory=lambda: array("q"))
    links: Links = field(default_factory=Links)
    copied: Copied = field(default_factory=Copied)
    end: int = 0


@dataclass(frozen=True, slots=True)
class _FileValues:
    """The values of a chain's entries, read again and again."""

    entries: _EntryFile
    begins: array[int]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.entries.value, self.begins)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Where the chains of a mirror and its replays end.

    Args:
        replays: read later than the checkpoints; for the mirror itself, it may know later ones.
    """

    name: str
    checkpoints: Mapping[TopicPartition, Checkpoint]
    replays: checkpoint.Heads

    def get(self, mirror: str, tp: TopicPartition) -> LedgerHead | None:
        if mirror != self.name:
            return self.replays.get(mirror, tp)
        known = self.checkpoints.get(tp)
        return None if known is None else known.ledger_head


class _Following:
    """Follows the chains of a mirror and its replays.

    Args:
        topic: only of this source topic; None for all.
    """

    def __init__(self, name: str, topic: str | None, entries: _EntryFile) -> None:
        self._name = name
        self._topic = topic
        self._entries = entries
        self._chains: defaultdict[tuple[str, TopicPartition], _FollowedChain] = defaultdict(
            _FollowedChain
        )

    def add(self, records: Iterable[LedgerRecord]) -> None:
        """Add the next entries."""
        for record in records:
            entry, tp = record.entry, record.entry.source.topic_partition
            if self._topic in {None, tp.topic}:
                chain = self._chains[entry.mirror, tp]
                chain.begins.append(self._entries.append(record))
                chain.links.add(record)
                chain.copied.add(entry)
                chain.end = entry.source.end

    def verify(
        self, heads: _Heads, kept_since_ms: Mapping[TopicPartition, int]
    ) -> tuple[list[AttestedChain], list[ChainBreak]]:
        """Return the chains of the mirror, and what is wrong with its entries and those of replays.

        Args:
            kept_since_ms: by topic-partition of the ledger, as of `ledger_kept_since_ms`.
        """
        chains: list[AttestedChain] = []
        breaks: list[ChainBreak] = []
        own = {tp for mirror, tp in self._chains if mirror == self._name}
        own.update(tp for tp in heads.checkpoints if self._topic in {None, tp.topic})
        for tp in sorted(own):
            home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(self._name, tp))
            found = self._verified(tp, heads.checkpoints.get(tp), kept_since_ms.get(home, 0))
            if isinstance(found, Chain):
                breaks += found.breaks
            else:
                chains.append(found)
        for (mirror, tp), chain in self._chains.items():
            if mirror != self._name:
                breaks += self._not_vouched(chain, heads.get(mirror, tp))
        return chains, breaks

    def _verified(
        self, tp: TopicPartition, known: Checkpoint | None, kept_since_ms: int
    ) -> AttestedChain | Chain:
        """Return a chain; with its breaks if it is not what was committed."""
        followed = self._chains[self._name, tp]
        if (
            known is not None
            and followed.links.reach(known.ledger_head, kept_since_ms)
            and followed.end == known.next_offset
        ):
            return AttestedChain(
                tp,
                _FileValues(self._entries, followed.begins),
                len(followed.begins),
                followed.copied,
                known.ledger_head,
                followed.links.oldest_number - 1,
            )
        head = None if known is None else known.ledger_head
        chain = verify_chain(tp, self._records(followed), head, kept_since_ms)
        if known is None or head is None:
            return chain
        chain.breaks += not_of_checkpoint(chain, known)
        if chain.breaks:
            return chain
        copied = Copied()
        for record in chain.records:
            copied.add(record.entry)
        values = tuple(record.value for record in chain.records)
        return AttestedChain(tp, values, len(values), copied, head, chain.expired)

    def _not_vouched(self, followed: _FollowedChain, head: LedgerHead | None) -> list[ChainBreak]:
        if head is not None and followed.links.end_at(head):
            return []
        records = self._records(followed)
        return not_vouched(records, vouched(records, head))

    def _records(self, followed: _FollowedChain) -> list[LedgerRecord]:
        return [self._entries.record(begin) for begin in followed.begins]


def _read(
    name: str, mirror: Mirror, topic: str | None, clock: Clock, entries: _EntryFile
) -> AttestedLedger:
    options, to = mirror.copy_options, mirror.destination_cluster
    following = _Following(name, topic, entries)
    follower = LedgerFollower(to, name, None, options, clock, with_replays=True)
    with destination_client(name, to, options, clock, "ledger") as client, closing(follower):
        move = client.retry(partial(checkpoint.read_move, client, name))
        ask = partial(ledger_kept_since_ms, client)
        kept = client.retry(ask)  # without the topic, checkpoints still know how many there were
        if kept:
            follower.client.retry(follower.rewind)
            following.add(follower.settled())
        checkpoints = read_checkpoints(name, mirror, clock, settled=True).checkpoints
        read = partial(checkpoint.read_heads, client, name)
        heads = _Heads(name, checkpoints, client.retry(read))
        if kept:
            following.add(_up_to_the_heads(follower.settled(), heads))
        chains, breaks = following.verify(heads, kept)
        return AttestedLedger(
            client.cluster_id,
            tuple(chains),
            tuple(breaks),
            checkpoints,
            None if move is None else checkpoint.fields_of(move),
        )


def _up_to_the_heads(records: Iterable[LedgerRecord], heads: _Heads) -> Iterator[LedgerRecord]:
    """Yield the entries that were committed before the checkpoints were read."""
    for record in records:
        head = heads.get(record.entry.mirror, record.entry.source.topic_partition)
        if head is not None and record.entry.number <= head.number:
            yield record

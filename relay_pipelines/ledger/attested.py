"""Reads and verifies a mirror's ledger for a statement, in memory that does not grow with it.

Entries go to a file as they are read, and each chain is followed, link by link. Only if one is not
unbroken, `read_verified_ledger` reads all of them again, and says where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

from relay_pipelines.errors import TamperedError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.accounted import ledger_kept_since_ms
from relay_pipelines.ledger.chain import REMEDY, ChainBreak, Links
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import LedgerFollower
from relay_pipelines.ledger.state_table import StateTable, read_any_state, read_move
from relay_pipelines.ledger.verified import read_verified_ledger, up_to_heads
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, TopicPartition
from relay_pipelines.sides import Sides


@dataclass(slots=True)
class Copied:
    """What the entries of a chain have copied, added up.

    Args:
        ranges: the source offsets that were copied to each destination, joined where they meet.
        skipped: number of offsets by reason.
        entries: their number.
    """

    records: int = 0
    size_bytes: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    ranges: list[dict[str, object]] = field(default_factory=list)
    entries: int = 0

    def add(self, entry: LedgerEntry) -> None:
        """Add the next entry."""
        self.entries += 1
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
        head: of the newest one.
        expired: how many entries retention has removed from the beginning.
    """

    copied: Copied
    head: LedgerHead
    expired: int


@dataclass(frozen=True, slots=True)
class AttestedLedger:
    """The ledger of one mirror, as it was committed.

    Args:
        cluster_id: of the destination.
        chains: sorted by source topic-partition.
        checkpoints: as the heads of the chains were read.
        move: the record of the mirror's move, as it was before all else was read; None for none.
    """

    cluster_id: str
    chains: Mapping[TopicPartition, AttestedChain]
    checkpoints: Mapping[TopicPartition, Checkpoint]
    move: dict[str, Any] | None


def read_attested(sides: Sides, topic: str | None, file: BinaryIO) -> AttestedLedger:
    """Verify every entry that the ledger still holds, and write them to a file, one a line.

    Args:
        topic: only this source topic.

    Raises:
        TamperedError: the ledger is not what was committed; its notes name each place.
        RelayError: the destination does not answer, or refuses.
    """
    following = _Following(sides.name, topic, file)
    with sides.destination("ledger") as client:
        follower = LedgerFollower(client, with_replays=True)
        move = client.retry(partial(read_move, client, sides.name))
        ask = partial(ledger_kept_since_ms, client)
        kept = client.retry(ask)  # without the topic, checkpoints still know how many there were
        if kept:
            client.retry(follower.rewind)
            following.add(follower.settled())
        state = client.retry(partial(read_any_state, client, settled=True))
        checkpoints = state.of(sides.name).checkpoints
        if kept:
            following.add(up_to_heads(follower.settled(), state))
        cluster_id = client.cluster_id
    chains = following.unbroken(state, checkpoints, kept)
    if chains is None:
        chains, checkpoints = _read_again(sides, topic, file)
    return AttestedLedger(
        cluster_id, chains, checkpoints, None if move is None else checkpoint.fields_of(move)
    )


@dataclass(slots=True)
class _Followed:
    """What is known of a chain.

    Args:
        end: the source offset after the newest entry.
    """

    links: Links = field(default_factory=Links)
    copied: Copied = field(default_factory=Copied)
    end: int = 0


class _Following:
    """Follows the chains of a mirror and its replays.

    Args:
        topic: only of this source topic; None for all.
        file: gets the entries of the mirror.
    """

    def __init__(self, name: str, topic: str | None, file: BinaryIO) -> None:
        self._name = name
        self._topic = topic
        self._file = file
        self._chains: defaultdict[tuple[str, TopicPartition], _Followed] = defaultdict(_Followed)

    def add(self, records: Iterable[LedgerRecord]) -> None:
        """Add the next entries."""
        for record in records:
            entry, tp = record.entry, record.entry.source.topic_partition
            if self._topic not in {None, tp.topic}:
                continue
            chain = self._chains[entry.mirror, tp]
            chain.links.add(record)
            chain.copied.add(entry)
            chain.end = entry.source.end
            if entry.mirror == self._name:
                self._file.write(record.value + b"\n")

    def unbroken(
        self,
        heads: StateTable,
        checkpoints: Mapping[TopicPartition, Checkpoint],
        kept_since_ms: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, AttestedChain] | None:
        """Return the chains of the mirror; None if any chain is not unbroken.

        Args:
            kept_since_ms: by topic-partition of the ledger, as of `ledger_kept_since_ms`.
        """
        for (mirror, tp), followed in self._chains.items():
            head = heads.head(mirror, tp)
            if head is None or not followed.links.end_at(head):
                return None
        chains = {}
        for tp, known in sorted(checkpoints.items()):
            if self._topic not in {None, tp.topic}:
                continue
            followed = self._chains[self._name, tp]
            home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(self._name, tp))
            reaches = followed.links.reach(known.ledger_head, kept_since_ms.get(home, 0))
            if not reaches or followed.end != known.next_offset:
                return None
            expired = followed.links.oldest_number - 1
            chains[tp] = AttestedChain(followed.copied, known.ledger_head, expired)
        return chains


def _read_again(
    sides: Sides, topic: str | None, file: BinaryIO
) -> tuple[dict[TopicPartition, AttestedChain], Mapping[TopicPartition, Checkpoint]]:
    """Verify entries of which some are lost, have expired, or are not what was committed."""
    ledger = read_verified_ledger(sides)
    own = {tp: chain for tp, chain in ledger.chains.items() if topic in {None, tp.topic}}
    breaks = [broken for chain in own.values() for broken in chain.breaks]
    if breaks:
        raise _tampered(sides.name, breaks)
    file.seek(0)
    file.truncate()
    chains = {}
    for tp, chain in sorted(own.items()):
        copied = Copied()
        for record in chain.records:
            copied.add(record.entry)
            file.write(record.value + b"\n")
        chains[tp] = AttestedChain(copied, ledger.checkpoints[tp].ledger_head, chain.expired)
    return chains, ledger.checkpoints


def _tampered(name: str, breaks: list[ChainBreak]) -> TamperedError:
    places = f"{len(breaks)} place{'s' if len(breaks) > 1 else ''}"
    error = TamperedError(
        f"the ledger of {name} is not what was committed: {places}", remedy=REMEDY
    )
    for broken in breaks:
        error.add_note(str(broken))
    return error

"""Reads a mirror's ledger and verifies its chains, also while the mirror copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from relay_pipelines.errors import DataLossError
from relay_pipelines.ledger.chain import (
    Chain,
    ChainBreak,
    Links,
    not_of_checkpoint,
    not_vouched,
    tampered,
    verify_chain,
    vouched,
)
from relay_pipelines.ledger.checkpoint import family_of
from relay_pipelines.ledger.chunk_copies import copies_of
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import LedgerReader, kept_since_ms
from relay_pipelines.ledger.state_table import (
    CheckpointSnapshot,
    UnreadableCheckpoint,
    read_any_state,
)
from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.sides import Sides

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class VerifiedLedger:
    """The ledger of one mirror.

    Args:
        cluster_id: of the destination.
        chains: by source topic-partition.
        checkpoints: as the heads of the chains were read.
        entries: those for which a checkpoint vouches, also those of the replays.
        unvouched: the others.
        family: the checkpoints of the mirror and its replays before the ledger was read.
        ends: likewise, the last stable offsets of the topics with copies: what is below them is in
            an entry that the reader finds.
        others: the topic-partitions into which other mirrors copy.
        hidden: topics into which other mirrors may copy whose checkpoints cannot be read.
        kept: by topic-partition of the ledger, as of `ledger_kept_since_ms`.
        created: destination topic -> its id, of topics that the mirror has created.
        quarantined: upstreams that the mirror must not read, and why.
    """

    mirror: str
    cluster_id: str
    chains: Mapping[TopicPartition, Chain] = field(default_factory=dict)
    checkpoints: Mapping[TopicPartition, Checkpoint] = field(default_factory=dict)
    entries: Sequence[LedgerEntry] = ()
    unvouched: Sequence[LedgerEntry] = ()
    family: Sequence[Checkpoint] = ()
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    others: Collection[TopicPartition] = ()
    hidden: Mapping[str, UnreadableCheckpoint] = field(default_factory=dict)
    kept: Mapping[TopicPartition, int] = field(default_factory=dict)
    created: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_entries(self) -> list[LedgerEntry]:
        """Those of the mirror alone, chain by chain; also of chains with breaks."""
        return [entry for chain in self.chains.values() for entry in chain.entries]

    @property
    def copied_to(self) -> dict[TopicPartition, int]:
        """The next offset of each checkpoint."""
        return {tp: known.next_offset for tp, known in self.checkpoints.items()}

    @property
    def replayed(self) -> list[OffsetRange]:
        """The destination offsets that the mirror's replays wrote."""
        written = (entry for entry in self.entries if entry.mirror != self.mirror)
        return [entry.destination for entry in written if entry.records]

    @property
    def breaks(self) -> list[ChainBreak]:
        """What is wrong; empty if nothing is."""
        return [broken for chain in self.chains.values() for broken in chain.breaks]


def read_verified_ledger(sides: Sides, copies: Collection[TopicPartition] = ()) -> VerifiedLedger:
    """Read every entry that the ledger still holds, and verify the chains.

    Args:
        copies: destination topic-partitions besides those that the checkpoints name.

    Raises:
        TamperedError, UnsupportedError: a record is no entry, or no checkpoint.
    """
    with sides.destination("ledger") as client:
        return verified_ledger(client, copies)


def verified_ledger(
    client: ClusterClient,
    copies: Collection[TopicPartition] = (),
    *,
    only_own_must_be_entries: bool = False,
) -> VerifiedLedger:
    """Read and verify the ledger of a client's mirror, as `read_verified_ledger`."""
    name = client.mirror
    before = client.retry(partial(_before_ledger, client, copies))
    reader = LedgerReader(
        client, with_replays=True, only_own_must_be_entries=only_own_must_be_entries
    )
    records = list(reader.up_to_heads())
    snapshot, of_family = reader.state.of(name), family_of(name)
    # an upstream that the mirror of a replay must not read, the replay must not read either
    of_mirror = {} if of_family == name else reader.state.of(of_family).quarantined
    counted, unvouched = vouched(records, reader.state)
    return replace(
        before,
        chains=_chains(reader, records, snapshot, unvouched),
        checkpoints=snapshot.checkpoints,
        entries=[record.entry for record in counted],
        unvouched=[record.entry for record in unvouched],
        kept=reader.kept,
        created=snapshot.created,
        quarantined=of_mirror or snapshot.quarantined,
    )


def _chains(
    reader: LedgerReader,
    records: Sequence[LedgerRecord],
    snapshot: CheckpointSnapshot,
    unvouched: Iterable[LedgerRecord],
) -> dict[TopicPartition, Chain]:
    """Verify the chains of a mirror; what its replays have not committed is wrong there, too."""
    checkpoints, mirror = snapshot.checkpoints, reader.client.mirror
    own: dict[TopicPartition, list[LedgerRecord]] = defaultdict(list)
    for record in records:
        if record.entry.mirror == mirror:
            own[record.entry.tp].append(record)
    chains: dict[TopicPartition, Chain] = {}
    for tp in sorted(own.keys() | checkpoints.keys()):
        known, kept_ms = checkpoints.get(tp), kept_since_ms(reader.kept, mirror, tp)
        head = None if known is None else known.ledger_head
        chains[tp] = verify_chain(tp, own[tp], head, kept_ms)
        if known:
            chains[tp].breaks += not_of_checkpoint(chains[tp], known)
    for record in unvouched:
        if record.entry.mirror != mirror:
            tp = record.entry.tp
            chains.setdefault(tp, Chain(tp)).breaks.append(not_vouched(record))
    return chains


def _before_ledger(client: ClusterClient, copies: Iterable[TopicPartition]) -> VerifiedLedger:
    """Return what `VerifiedLedger` says of the time before the ledger was read, and no more.

    Raises:
        TamperedError, UnsupportedError: a checkpoint of the mirror or of a replay cannot be read.
    """
    every = read_any_state(client, settled=True)
    name = family_of(client.mirror)
    for hidden in every.unreadable:
        if family_of(hidden.mirror) == name:
            raise hidden.error.of(hidden.source)
    family = [
        checkpoint for checkpoint in every.checkpoints if family_of(checkpoint.mirror) == name
    ]
    ours = set(map(copies_of, family))
    existing = client.existing({tp.topic for tp in (*copies, *ours)})
    partitions = [  # also those without copies, into which others may write
        tp
        for topic in existing
        for tp in client.topic(topic).topic_partitions
        if client.has_leader(tp)  # what has none fails for itself when it is read
    ]
    return VerifiedLedger(
        client.mirror,
        client.cluster_id,
        family=family,
        ends=client.list_offsets(partitions, LATEST, READ_COMMITTED),
        others=set(map(copies_of, every.checkpoints)) - ours,
        hidden=every.hidden_in(client, existing),
    )


def read_unbroken(sides: Sides, has: Callable[[TopicPartition], bool]) -> VerifiedLedger:
    """Read the ledger, as `read_verified_ledger`, with the chains that are wanted alone.

    Args:
        has: of which source topic-partitions.

    Raises:
        TamperedError: one of them is not what was committed; its notes name each place.
    """
    ledger = read_verified_ledger(sides)
    ledger = replace(ledger, chains={tp: each for tp, each in ledger.chains.items() if has(tp)})
    if ledger.breaks:
        raise tampered(sides.name, ledger.breaks)
    return ledger


def made_of_ledger(
    sides: Sides,
    has: Callable[[TopicPartition], bool],
    make: Callable[[Iterable[LedgerRecord]], _Made],
    since_ms: int | None = None,
) -> tuple[_Made, VerifiedLedger]:
    """Verify the entries of a mirror while something is made of them: memory does not grow.

    Only if a chain is not unbroken, all of it is read again, in memory: to say where.

    Args:
        has: of which source topic-partitions.
        make: takes the entries, those of a chain in order; it may be called again.
        since_ms: only what was committed since, and perhaps some entries of before.

    Returns:
        What was made, and the ledger with these chains, which need not have their entries.

    Raises:
        TamperedError: the ledger is not what was committed; its notes name each place.
    """
    with sides.destination("ledger") as client:
        look = partial(_made_of_chains, client, has, make, since_ms)
        # retention may delete the oldest entries before they are read
        if (made := client.retry(look, also=(DataLossError,))) is not None:
            return made
    ledger = read_unbroken(sides.at(client.cluster_id), has)
    return make(record for chain in ledger.chains.values() for record in chain.records), ledger


def _made_of_chains(
    client: ClusterClient,
    has: Callable[[TopicPartition], bool],
    make: Callable[[Iterable[LedgerRecord]], _Made],
    since_ms: int | None,
) -> tuple[_Made, VerifiedLedger] | None:
    """Return what is made; None if a chain does not lead to its head and checkpoint, unbroken."""
    reader, name = LedgerReader(client, with_replays=True), client.mirror
    links: defaultdict[tuple[str, TopicPartition], Links] = defaultdict(Links)

    def followed() -> Iterator[LedgerRecord]:
        for record in reader.up_to_heads(since_ms):
            mirror, tp = record.chain
            if has(tp):
                links[mirror, tp].add(record)
                if mirror == name:
                    yield record

    made = make(followed())
    for at, chain in links.items():
        head = reader.state.head(*at)
        if head is None or not chain.end_at(head):
            return None
    checkpoints = reader.state.of(name).checkpoints
    chains = {}
    for tp, known in checkpoints.items():
        if has(tp):
            kept_ms = max(kept_since_ms(reader.kept, name, tp), since_ms or 0)
            if (whole := links[name, tp].chain(known, kept_ms)) is None:
                return None
            chains[tp] = whole
    return made, VerifiedLedger(name, client.cluster_id, chains, checkpoints)

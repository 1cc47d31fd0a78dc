"""Reads a mirror's ledger and verifies its chains, also while the mirror copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from relay_pipelines.errors import DataLossError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.accounted import (
    BeforeLedger,
    ledger_kept_since_ms,
    read_before_ledger,
)
from relay_pipelines.ledger.chain import (
    Chain,
    ChainBreak,
    Links,
    not_of_checkpoint,
    not_vouched,
    tampered,
    verify_chains,
    vouched,
    vouched_records,
)
from relay_pipelines.ledger.checkpoint import family_of
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.ledger.state_table import StateTable, read_any_state
from relay_pipelines.model import (
    Checkpoint,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.sides import Sides

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class VerifiedLedger:
    """The ledger of one mirror.

    Args:
        cluster_id: of the destination.
        chains: by source topic-partition.
        checkpoints: as the heads of the chains were read.
        before: what the destination held before the ledger was read.
        entries: those for which a checkpoint vouches, also those of the replays.
        created: destination topic -> its id, of topics that the mirror has created.
        quarantined: source nodes that the mirror must not read, and why.
    """

    mirror: str
    cluster_id: str
    chains: Mapping[TopicPartition, Chain]
    checkpoints: Mapping[TopicPartition, Checkpoint]
    before: BeforeLedger
    entries: Sequence[LedgerEntry] = ()
    created: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)

    def accounted(
        self, ledger_entries: Iterable[LedgerEntry] = ()
    ) -> dict[TopicPartition, OffsetRange]:
        """Return the destination offsets of which all entries are known, as of `RecountPart`.

        Args:
            ledger_entries: entries besides those that the ledger still has.
        """
        return self.before.accounted([*self.entries, *ledger_entries])

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
        copies: as of `read_before_ledger`.

    Raises:
        TamperedError: a record is no entry.
        RelayError: the destination does not answer, or refuses.
    """
    with sides.destination("ledger") as client:
        look = partial(read_before_ledger, client, sides.name, copies, settled=True)
        before = client.retry(look)
        ledger = LedgerUpToHeads(sides.name, client)
        records = list(ledger.records())
        cluster_id = client.cluster_id
    before = replace(before, kept_since_ms=ledger.kept)
    own = [record for record in records if record.entry.mirror == sides.name]
    others = [record for record in records if record.entry.mirror != sides.name]
    snapshot, family = ledger.state.of(sides.name), family_of(sides.name)
    # a node that the mirror of a replay must not read, the replay must not read either
    of_mirror = {} if family == sides.name else ledger.state.of(family).quarantined
    found = snapshot.checkpoints
    sources = found.keys() | {record.entry.source.topic_partition for record in own}
    own_heads = {tp: known.ledger_head for tp, known in found.items()}
    chains = verify_chains(own, own_heads, {tp: ledger.kept_since_ms(tp) for tp in sources})
    for tp, source_checkpoint in found.items():
        chains[tp].breaks += not_of_checkpoint(chains[tp], source_checkpoint)
    replays = vouched_records(others, ledger.state)
    for broken in not_vouched(others, replays):
        tp = broken.topic_partition
        chains.setdefault(tp, Chain(tp)).breaks.append(broken)
    counted = [
        record
        for tp, chain in chains.items()
        # what is before a break is in its chain, and vouches for nothing
        for record in (vouched(chain.records, own_heads.get(tp)) if chain.breaks else chain.records)
    ] + replays
    entries = [record.entry for record in counted]
    return VerifiedLedger(
        *(sides.name, cluster_id, chains, found, before, entries),
        *(snapshot.created, of_mirror or snapshot.quarantined),
    )


def read_unbroken(
    sides: Sides, has: Callable[[TopicPartition], bool]
) -> tuple[VerifiedLedger, dict[TopicPartition, Chain]]:
    """Read the ledger, as `read_verified_ledger`; return the chains of which something is wanted.

    Args:
        has: of which source topic-partitions.

    Raises:
        TamperedError: one of them is not what was committed; its notes name each place.
        RelayError: the destination does not answer, or refuses.
    """
    verified = read_verified_ledger(sides)
    chains = {tp: chain for tp, chain in verified.chains.items() if has(tp)}
    if breaks := [broken for chain in chains.values() for broken in chain.breaks]:
        raise tampered(sides.name, breaks)
    return verified, chains


class LedgerUpToHeads:
    """Every entry of a mirror and its replays, up to the heads of their chains.

    The heads are read after the entries, also while the mirror copies: what was read by then, and
    no head leads to, was never committed with a checkpoint.

    Args:
        client: of the destination.
    """

    state: StateTable
    """Once all records are read: what the topic of checkpoints held then."""
    kept: Mapping[TopicPartition, int]
    """Likewise, as of `ledger_kept_since_ms`: what was gone when they were read is gone then."""

    def __init__(self, name: str, client: ClusterClient) -> None:
        self._name = name
        self._client = client

    def records(self, since_ms: int | None = None) -> Iterator[LedgerRecord]:
        """Yield them; of a chain without a head, those that were read before.

        Args:
            since_ms: leave out those that were committed before; None for none.

        Raises:
            TamperedError: a record is no entry.
            RelayError: the destination does not answer, or refuses.
        """
        client = self._client
        reader = LedgerReader(client, with_replays=True)
        # without the topic, the checkpoints still know how many entries there were
        yield from reader.forward(since_ms, settled=True)
        self.kept = client.retry(partial(ledger_kept_since_ms, client))
        self.state = client.retry(partial(read_any_state, client, settled=True))
        for record in reader.follow(settled=True):
            head = self.state.head(record.entry.mirror, record.entry.source.topic_partition)
            if head is not None and record.entry.number <= head.number:
                yield record

    def kept_since_ms(self, tp: TopicPartition) -> int:
        """Return since when retention can have removed no entry of a source topic-partition."""
        key = checkpoint.key_of(self._name, tp)
        return self.kept.get(checkpoint.home(ledger_topic.TOPIC, key), 0)


@dataclass(frozen=True, slots=True)
class MadeOfLedger(Generic[_Made]):
    """What was made of entries that nobody keeps.

    Args:
        cluster_id: of the destination.
        checkpoints: as the heads of the chains were read.
        expired: how many entries retention has removed from the beginning of each chain.
    """

    made: _Made
    cluster_id: str
    checkpoints: Mapping[TopicPartition, Checkpoint]
    expired: Mapping[TopicPartition, int]


def made_of_ledger(
    sides: Sides,
    has: Callable[[TopicPartition], bool],
    make: Callable[[Iterable[LedgerRecord]], _Made],
    since_ms: int | None = None,
) -> MadeOfLedger[_Made]:
    """Verify the entries of a mirror while something is made of them: memory does not grow.

    Only if a chain is not unbroken, all of it is read again, in memory: to say where.

    Args:
        has: of which source topic-partitions.
        make: takes the entries, those of a chain in order; it may be called again.
        since_ms: only what was committed since; then `expired` counts what is before, too.

    Raises:
        TamperedError: the ledger is not what was committed; its notes name each place.
        RelayError: the destination does not answer, or refuses.
    """
    with sides.destination("ledger") as client:
        look = partial(_made_of_chains, sides.name, client, has, make, since_ms)
        # retention may delete the oldest entries before they are read
        if (found := client.retry(look, also=(DataLossError,))) is not None:
            return found
    verified, chains = read_unbroken(sides, has)
    made = make(record for chain in chains.values() for record in chain.records)
    expired = {tp: chain.expired for tp, chain in chains.items()}
    return MadeOfLedger(made, verified.cluster_id, verified.checkpoints, expired)


def _made_of_chains(
    name: str,
    client: ClusterClient,
    has: Callable[[TopicPartition], bool],
    make: Callable[[Iterable[LedgerRecord]], _Made],
    since_ms: int | None,
) -> MadeOfLedger[_Made] | None:
    """Return what is made; None if a chain does not lead to its head and checkpoint, unbroken."""
    ledger = LedgerUpToHeads(name, client)
    links: defaultdict[tuple[str, TopicPartition], Links] = defaultdict(Links)

    def followed() -> Iterator[LedgerRecord]:
        for record in ledger.records(since_ms):
            mirror, tp = record.entry.mirror, record.entry.source.topic_partition
            if has(tp):
                links[mirror, tp].add(record)
                if mirror == name:
                    yield record

    made = make(followed())
    for at, chain in links.items():
        head = ledger.state.head(*at)
        if head is None or not chain.end_at(head):
            return None
    checkpoints = ledger.state.of(name).checkpoints
    expired = {}
    for tp, known in checkpoints.items():
        if has(tp):
            kept_since_ms = max(ledger.kept_since_ms(tp), since_ms or 0)
            if (found := links[name, tp].expired(known, kept_since_ms)) is None:
                return None
            expired[tp] = found
    return MadeOfLedger(made, client.cluster_id, checkpoints, expired)

"""Makes checkpoints again from the ledger, or notes which of its entries are lost.

A mirror never does this by itself: `relay restore` does, when a person has looked. It reads the
destination alone. docs/transactions.md argues why no record is then duplicated or left out.

What `relay restore` does with one topic-partition; it reads, and writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from relay_pipelines.audit.claims import Claims
from relay_pipelines.audit.part_count import count_ranges
from relay_pipelines.copy.chunk import fingerprint_of
from relay_pipelines.errors import FencedError, RelayError
from relay_pipelines.ledger import checkpoint as checkpoints
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.accounted import ledger_kept_since_ms
from relay_pipelines.ledger.chain import Chain, Tampering, verify_chain
from relay_pipelines.ledger.checkpoint import CheckpointSnapshot
from relay_pipelines.ledger.fencing import fence
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import LedgerFollower, read_checkpoints
from relay_pipelines.model import (
    Checkpoint,
    DestinationPosition,
    Fingerprint,
    LedgerEntry,
    LedgerHead,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.plan.hops import with_own_hops
from relay_pipelines.plan.owners import (
    MOVE_SCOPE,
    own_id,
    present_owner,
    shared_id,
    topic_scope,
)
from relay_pipelines.prepare import topics
from relay_pipelines.prepare.checkpoint_moves import BY_DRIVER, gap_entry, replace_checkpoint
from relay_pipelines.protocol.client import (
    EARLIEST,
    READ_COMMITTED,
    ClusterClient,
    destination_client,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides


@dataclass(frozen=True, slots=True)
class Restores:
    """What a restore does with a mirror and its replays.

    Args:
        states: by name, what the checkpoint topic holds.
        planned: all topic-partitions that were copied.
    """

    states: Mapping[str, CheckpointSnapshot]
    planned: Sequence[Restore]

    @property
    def changes(self) -> list[Restore]:
        """What is committed."""
        return [restore for restore in self.planned if restore.after is not None]


def plan_restores(name: str, mirror: Mirror, clock: Clock) -> Restores:
    """Say what a restore does; writes nothing.

    Raises:
        TamperedError: a record of the ledger is no entry.
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    with destination_client(name, mirror.destination_cluster, options, clock, "restore") as client:
        kept = client.retry(partial(ledger_kept_since_ms, client))
        records = _records(name, mirror, clock) if kept else []
        names = {name, *(record.entry.mirror for record in records)}
        unreadable = client.retry(partial(_unreadable, client, name))
        names.update(each for each, _ in unreadable)
        states = {
            each: read_checkpoints(Sides(each, mirror, clock), settled=True, only_readable=True)
            for each in sorted(names)
        }
        grouped: dict[tuple[str, TopicPartition], list[LedgerRecord]] = defaultdict(list)
        grouped |= {each: [] for each in unreadable}
        for each, state in states.items():
            grouped |= {(each, tp): [] for tp in state.checkpoints}
        for record in records:
            grouped[record.entry.mirror, record.entry.source.topic_partition].append(record)
        planner = Planner(client, mirror, kept, unreadable)
        planned = [
            planner.plan(each, tp, ledger_records, states[each].checkpoints.get(tp))
            for (each, tp), ledger_records in sorted(grouped.items(), key=lambda item: item[0])
        ]
    return Restores(states, planned)


def _unreadable(client: ClusterClient, name: str) -> set[tuple[str, TopicPartition]]:
    """Return of which source topic-partitions a mirror or a replay has no readable checkpoint."""
    if not client.has_topic(checkpoints.TOPIC):
        return set()
    every = checkpoints.read_all_mirrors(client, settled=True)
    return {
        (each.mirror, each.source)
        for each in every.unreadable
        if each.mirror.partition(checkpoints.REPLAY)[0] == name
    }


def execute(
    name: str, mirror: Mirror, restores: Restores, clock: Clock
) -> Iterator[tuple[Restore, bool]]:
    """Commit the checkpoints, and yield for each whether it was committed.

    One that has changed since it was planned is left alone: another run copies it.

    Raises:
        FencedError: other runs take the ids over again and again.
        RelayError: the destination does not answer, or refuses.
    """
    if not restores.changes:
        return
    sides = Sides(name, mirror, clock)
    topics.create_state(sides)
    with sides.destination("restore") as client:
        for each in restores.states:
            again = [
                restore.source
                for restore in restores.changes
                if restore.name == each and restore.act is Act.AGAIN
            ]
            _fence_former_owners(client, each, mirror, again)
        for restore in restores.changes:
            commit = partial(_commit, client, restores.states[restore.name], restore)
            # a task with several ranges takes an id back
            yield restore, client.retry(commit, also=(FencedError,))


def _fence_former_owners(
    client: ClusterClient,
    name: str,
    mirror: Mirror,
    sources: Iterable[TopicPartition],
) -> None:
    """Fence every id that may have owned them: a task may still hold one, and an open chunk.

    Args:
        name: of the mirror, or of a replay.
    """
    ids: set[str] = set()
    for tp in sources:
        scopes = {"", topic_scope(tp.topic), "main", MOVE_SCOPE, *mirror.all_lanes}
        ids |= {own_id(name, tp), *(shared_id(name, scope, tp) for scope in scopes)}
    fence(client, ids)


def _records(name: str, mirror: Mirror, clock: Clock) -> list[LedgerRecord]:
    """Return all that the ledger holds of a mirror and its replays."""
    with Sides(name, mirror, clock).destination("ledger") as client:
        follower = LedgerFollower(client, with_replays=True)
        client.retry(follower.rewind)
        return follower.settled_records()


def _commit(client: ClusterClient, state: CheckpointSnapshot, restore: Restore) -> bool:
    tp, before, after = restore.source, restore.before, restore.after
    if after is None:
        return False
    owner = present_owner(restore.name, tp, state.owners, is_copied=True)
    home = checkpoints.home(checkpoints.TOPIC, checkpoints.key_of(restore.name, tp))
    entry = None
    if restore.act is Act.NOTED:
        nothing = OffsetRange(tp, after.next_offset, after.next_offset)
        after, entry = ledger_topic.chained(
            after, gap_entry(after, nothing, ledger_topic.ENTRIES_LOST)
        )
    known = before, state.ends.get(home, 0)
    return replace_checkpoint(client, owner, known, after, entry)


_FETCH_BYTES = 1 << 20


class Act(StrEnum):
    """What becomes of a topic-partition."""

    STAYS = "stays as it is"
    AGAIN = "its checkpoint is made again"
    NOTED = "its checkpoint stays, and the ledger goes on"
    REFUSED = "cannot be restored"


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore does with one source topic-partition.

    Args:
        name: of the mirror, or of its replay.
        before: the checkpoint as it is now; None if there is none.
        after: the checkpoint to commit; None to commit none.
        why: for people.
    """

    name: str
    source: TopicPartition
    act: Act
    why: str
    before: Checkpoint | None = None
    after: Checkpoint | None = None

    def __str__(self) -> str:
        return f"{self.source}: {self.act}: {self.why}"


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans one topic-partition after the other.

    Args:
        kept: as of `ledger_kept_since_ms`.
        unreadable: those whose checkpoint is there, and cannot be read.
    """

    client: ClusterClient
    mirror: Mirror
    kept: Mapping[TopicPartition, int]
    unreadable: Collection[tuple[str, TopicPartition]] = ()

    def plan(
        self,
        name: str,
        tp: TopicPartition,
        records: Sequence[LedgerRecord],
        before: Checkpoint | None,
    ) -> Restore:
        """Compare the checkpoint with the ledger.

        Args:
            records: of the topic-partition, in the order of the ledger.
        """
        newest = max(records, key=lambda record: record.entry.number, default=None)
        if newest is not None and _is_ahead(newest, before):
            return self._again(name, tp, records, newest, before)
        if (name, tp) in self.unreadable:
            why = "its checkpoint cannot be read, and the ledger has no entry of it"
            return Restore(name, tp, Act.REFUSED, why)
        if before is None:
            return Restore(name, tp, Act.STAYS, "nothing was copied")
        return self._noted(name, tp, self._chain(name, tp, records, before.ledger_head), before)

    def _chain(
        self,
        name: str,
        tp: TopicPartition,
        records: Sequence[LedgerRecord],
        head: LedgerHead,
    ) -> Chain:
        home = checkpoints.home(ledger_topic.TOPIC, checkpoints.key_of(name, tp))
        return verify_chain(tp, records, head, self.kept.get(home, 0))

    def _noted(self, name: str, tp: TopicPartition, chain: Chain, before: Checkpoint) -> Restore:
        """Note that entries are missing, if they are."""
        if not chain.breaks:
            return Restore(name, tp, Act.STAYS, "its checkpoint is the last one", before)
        if any(broken.kind is not Tampering.REMOVED for broken in chain.breaks):
            return Restore(name, tp, Act.REFUSED, chain.breaks[0].what_and_where, before)
        why = "; ".join(broken.what_and_where for broken in chain.breaks)
        after = replace(before, run_id=BY_DRIVER, committed_at_ms=self.client.clock.now_ms())
        return Restore(name, tp, Act.NOTED, why, before, after)

    def _again(
        self,
        name: str,
        tp: TopicPartition,
        records: Sequence[LedgerRecord],
        newest: LedgerRecord,
        before: Checkpoint | None,
    ) -> Restore:
        """Go on from the newest entry, if it is reached from the checkpoint."""
        chain = self._chain(name, tp, records, newest.head)
        if wrong := self._why_not(chain, before):
            return Restore(name, tp, Act.REFUSED, wrong, before)
        after = self._made_again(name, tp, chain, newest, before)
        if before is not None:
            was = f"it said offset {before.next_offset}"
        else:
            was = "it cannot be read" if (name, tp) in self.unreadable else "it is gone"
        why = f"at offset {after.next_offset}, as ledger entry {newest.entry.number} says; {was}"
        if unconfirmed := _without_copies(chain):
            why += (
                f"; no copies confirm what has no records, which its last {unconfirmed} entries say"
            )
        return Restore(name, tp, Act.AGAIN, why, before, after)

    def _why_not(self, chain: Chain, before: Checkpoint | None) -> str:
        """Say why the chain is not the one that was committed; empty if it may be."""
        if chain.breaks:
            return chain.breaks[0].what_and_where
        numbers = {record.entry.number: record.head for record in chain.records}
        head = None if before is None else before.ledger_head
        if head is not None and numbers.get(head.number, head) != head:
            return f"ledger entry {head.number} is not the one that the checkpoint names"
        if unconfirmed := _moves_without_copies(chain, head):
            return unconfirmed
        last = _last_copied(chain)
        if last is None:
            return ""
        return self._out_of_order(chain, before) or self._why_not_there(last)

    def _out_of_order(self, chain: Chain, before: Checkpoint | None) -> str:
        """Name an entry whose copies are not after those before it, which they would be."""
        newest, head, ends = chain.records[-1].entry, 0, dict[TopicPartition, int]()
        if before is not None and before.copies is not None:
            known, head = before.copies, before.ledger_head.number
            if before.generation == newest.generation or known.topic_id == self._id_of(known):
                ends[known.topic_partition] = known.next_offset
        for record in chain.records:
            entry, to = record.entry, record.entry.destination.topic_partition
            if entry.generation == newest.generation and entry.records and entry.number > head:
                if entry.destination.start < ends.get(to, 0):
                    return (
                        f"the copies of ledger entry {entry.number} are before those of an earlier"
                        " one"
                    )
                ends[to] = entry.destination.end
        return ""

    def _id_of(self, copies: DestinationPosition) -> str:
        """Return the id of their topic as it is now; empty if it is gone, or unknown."""
        topic = copies.topic_partition.topic
        return self.client.topic(topic).topic_id if self.client.has_topic(topic) else ""

    def _why_not_there(self, last: LedgerEntry) -> str:
        """Say what differs between the newest chunk with records and the destination."""
        offset_range, to, end = last.source, last.destination.topic_partition, last.destination.end
        if not self.client.has_topic(to.topic):
            return ""  # the guards say so afterwards
        upto = {to: OffsetRange(to, end, end)}  # what follows may be of others
        claims = Claims(last.mirror, [last], upto)
        (found,) = count_ranges(self.client, [(offset_range, [last])], claims)
        lines = [str(found)] if isinstance(found, RelayError) else found.problems
        where = f"{last.destination}, the copies of ledger entry {last.number}"
        return f"{where}: {lines[0]}" if lines else ""

    def _made_again(
        self,
        name: str,
        tp: TopicPartition,
        chain: Chain,
        newest: LedgerRecord,
        before: Checkpoint | None,
    ) -> Checkpoint:
        entry, to = newest.entry, newest.entry.destination.topic_partition
        is_same = before is not None and before.generation == entry.generation
        base = before if before and is_same else Checkpoint.initial(name, tp, to, 0)
        last = _last_copied(chain)
        decided = before or replace(base, policy=chain.records[0].entry.policy)
        for record in chain.records:
            decided = decided.decided_by(record.entry.policy)
        return replace(
            base,
            passed=with_own_hops(before, self.client.cluster_id).passed if before else (),
            next_offset=entry.source.end,
            # of the last batch, which only the source knows
            leader_epoch=-1,
            leader_epoch_end=-1,
            is_dense=False,
            node=entry.node,
            destination=to,
            copies=None if last is None else self._position(last, base),
            fingerprint=base.fingerprint or self._fingerprint(name, chain),
            run_id=BY_DRIVER,
            committed_at_ms=self.client.clock.now_ms(),
            generation=entry.generation,
            ledger_head=newest.head,
            policy=entry.policy,
            superseded=decided.superseded,
        )

    def _position(self, last: LedgerEntry, base: Checkpoint) -> DestinationPosition:
        """Return where the copies end; in a topic that was created again, the guards notice."""
        to = last.destination.topic_partition
        known = base.copies if base.copies and base.copies.topic_partition == to else None
        is_there = known is None and self.client.has_topic(to.topic)
        topic_id = self.client.topic(to.topic).topic_id if is_there else ""
        return DestinationPosition(
            to, last.destination.end, topic_id if known is None else known.topic_id
        )

    def _fingerprint(self, name: str, chain: Chain) -> Fingerprint | None:
        """Return that of the newest record whose source offset is known; None if there is none.

        The guards compare it with the source, whose topic ids the ledger does not have. A chunk
        that skipped nothing ends with the record before its end.
        """
        if checkpoints.REPLAY in name:
            return None  # copies of copies, perhaps
        generation = chain.records[-1].entry.generation
        for record in reversed(chain.records):
            entry = record.entry
            if entry.generation == generation and 0 < entry.records == len(entry.source):
                if entry.may_change_records:
                    return None  # its copies may differ from their records
                return self._fingerprint_of_last(entry)
        return None

    def _fingerprint_of_last(self, entry: LedgerEntry) -> Fingerprint | None:
        """Return that of a chunk's last record, as the source has it."""
        to, end = entry.destination.topic_partition, entry.destination.end
        if not self.client.has_topic(to.topic):
            return None
        if self.client.list_offsets([to], EARLIEST, READ_COMMITTED)[to] >= end:
            return None
        for spans in read(self.client, OffsetRange(to, end - 1, end), _FETCH_BYTES):
            for run in (span.run for span in spans if span.run is not None):
                found = [record for record in decode(run.data) if record.offset == end - 1]
                if found and not run.first.is_log_append_time:
                    return replace(fingerprint_of(found[0]), offset=entry.source.end - 1)
        return None


def _is_ahead(newest: LedgerRecord, before: Checkpoint | None) -> bool:
    """Whether the newest entry was committed with another checkpoint than this one."""
    if before is None or newest.entry.number > before.ledger_head.number:
        return True
    return newest.head == before.ledger_head and newest.entry.source.end != before.next_offset


def _moves_without_copies(chain: Chain, head: LedgerHead | None) -> str:
    """Name an accepted loss or a reset that no copies follow: anybody may have written it.

    It would move the checkpoint anywhere, and nothing at the destination could contradict it.

    Args:
        head: what the checkpoint vouches for; None if it is gone.
    """
    for record in reversed(chain.records):
        entry = record.entry
        if entry.records or (head is not None and entry.number <= head.number):
            return ""
        if entry.gap:
            return (
                f"ledger entry {entry.number} says {entry.gap!r}, and there are no copies since"
                " that confirm it"
            )
    return ""


def _without_copies(chain: Chain) -> int:
    """Count the entries after the newest copies."""
    with_records = [entry.entry.number for entry in chain.records if entry.entry.records]
    return chain.records[-1].entry.number - max(with_records, default=0)


def _last_copied(chain: Chain) -> LedgerEntry | None:
    """Return the newest entry with records of the newest generation; None if there is none."""
    generation = chain.records[-1].entry.generation
    copied = [
        record.entry
        for record in chain.records
        if record.entry.records and record.entry.generation == generation
    ]
    return copied[-1] if copied else None

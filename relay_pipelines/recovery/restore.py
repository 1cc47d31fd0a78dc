"""Makes checkpoints again from the ledger, or notes which of its entries are lost.

A mirror never does this by itself: `relay restore` does, when the operator has looked. It reads the
destination alone. docs/transactions.md argues why no record is then duplicated or left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from relay_pipelines.audit.claims import Claims
from relay_pipelines.audit.coverage import disordered
from relay_pipelines.audit.part_count import count_ranges
from relay_pipelines.copy.chunk import fingerprint_of
from relay_pipelines.errors import FencedError, RelayError
from relay_pipelines.ledger.chain import Chain, Tampering, verify_chain
from relay_pipelines.ledger.checkpoint import REPLAY, family_of
from relay_pipelines.ledger.fencing import fence
from relay_pipelines.ledger.ledger_topic import ENTRIES_LOST, LedgerRecord
from relay_pipelines.ledger.reader import LedgerReader, kept_since_ms, ledger_kept_since_ms
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_any_state
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
from relay_pipelines.plan.owners import MOVE_SCOPE, own_id, present_owner, shared_id, topic_scope
from relay_pipelines.prepare import topics
from relay_pipelines.prepare.checkpoint_moves import Move, replace_checkpoint
from relay_pipelines.protocol.client import EARLIEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.reader import read
from relay_pipelines.protocol.records import decode
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides

_FETCH_BYTES = 1 << 20


class Act(StrEnum):
    """What a restore does with a topic-partition."""

    STAYS = "stays as it is"
    AGAIN = "its checkpoint is made again"
    NOTED = "its checkpoint stays, and the ledger goes on"
    REFUSED = "cannot be restored"


@dataclass(frozen=True, slots=True)
class Restore:
    """What a restore does with one source topic-partition.

    Args:
        name: of the mirror, or of its replay.
        cluster_id: of the destination that was looked at.
        state: what the checkpoint topic holds of it.
        after: the checkpoint to commit; None to commit none.
        why: for people.
    """

    name: str
    source: TopicPartition
    cluster_id: str
    state: CheckpointSnapshot
    act: Act
    why: str
    after: Checkpoint | None = None

    def __str__(self) -> str:
        return f"{self.source}: {self.act}: {self.why}"


def plan_restores(sides: Sides) -> list[Restore]:
    """Say what a restore does with all that a mirror and its replays have copied; writes nothing.

    Raises:
        TamperedError: a record of the ledger is no entry.
    """
    with sides.destination("restore") as client:
        records = list(LedgerReader(client, with_replays=True).forward(settled=True))
        # afterwards: what was gone when they were read is gone then
        kept = client.retry(partial(ledger_kept_since_ms, client))
        state = client.retry(partial(read_any_state, client, settled=True))
        hidden = [each for each in state.unreadable if family_of(each.mirror) == sides.name]
        unreadable = {(each.mirror, each.source) for each in hidden}
        grouped: dict[tuple[str, TopicPartition], list[LedgerRecord]] = defaultdict(list)
        grouped |= {each: [] for each in unreadable}
        for record in records:
            grouped[record.chain].append(record)
        names = sorted({sides.name, *(each for each, _ in grouped)})
        states = {name: state.of(name, only_readable=True) for name in names}
        for each, of_mirror in states.items():
            for tp in of_mirror.checkpoints:
                grouped.setdefault((each, tp), [])
        return [
            _Planner(
                client,
                *(*at, ledger_records, states[at[0]], at in unreadable),
                kept_since_ms(kept, *at),
            ).plan()
            for at, ledger_records in sorted(grouped.items(), key=lambda item: item[0])
        ]


def execute(sides: Sides, planned: Iterable[Restore]) -> Iterator[tuple[Restore, bool]]:
    """Commit the checkpoints, and yield for each whether it was committed.

    One that has changed since it was planned is left alone: another run copies it.

    Raises:
        FencedError: other runs take the ids over again and again.
    """
    changes = [(restore, restore.after) for restore in planned if restore.after is not None]
    if not changes:
        return
    (cluster_id,) = {restore.cluster_id for restore, _ in changes}
    with sides.at(cluster_id).destination("restore") as client:
        topics.create_state(client, sides.mirror.destination.replication_factor)
        again = [restore for restore, _ in changes if restore.act is Act.AGAIN]
        _fence_former_owners(client, sides.mirror, again)
        for restore, after in changes:
            commit = partial(_commit, client, restore, after)
            # a task with several ranges takes an id back
            yield restore, client.retry(commit, also=(FencedError,))


def _fence_former_owners(
    client: ClusterClient, mirror: Mirror, restores: Iterable[Restore]
) -> None:
    """Fence every id that may have owned them: a task may still hold one, and an open chunk."""
    ids: set[str] = set()
    for name, tp in ((restore.name, restore.source) for restore in restores):
        scopes = {"", topic_scope(tp.topic), "main", MOVE_SCOPE, *mirror.all_lanes}
        ids |= {own_id(name, tp), *(shared_id(name, scope, tp) for scope in scopes)}
    fence(client, ids)


def _commit(client: ClusterClient, restore: Restore, after: Checkpoint) -> bool:
    state, source = restore.state, restore.source
    owner = present_owner(restore.name, source, state.owners, is_copied=True)
    gap = Move(after, ENTRIES_LOST).entry if restore.act is Act.NOTED else None
    return replace_checkpoint(client, owner, state.checkpoints.get(source), state.ends, after, gap)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Compares the checkpoint of one topic-partition with its ledger; it writes nothing.

    Args:
        name: of the mirror, or of its replay.
        records: of the topic-partition, in the order of the ledger.
        state: what the checkpoint topic holds of the mirror or replay.
        is_unreadable: whether there is a checkpoint, and it cannot be read.
        kept_since_ms: as of `verify_chain`.
    """

    client: ClusterClient
    name: str
    source: TopicPartition
    records: Sequence[LedgerRecord]
    state: CheckpointSnapshot
    is_unreadable: bool
    kept_since_ms: int

    @property
    def before(self) -> Checkpoint | None:
        """The checkpoint as it is now."""
        return self.state.checkpoints.get(self.source)

    def plan(self) -> Restore:
        """Say what a restore does."""
        newest = max(self.records, key=lambda record: record.entry.number, default=None)
        if newest is not None and _is_ahead(newest, self.before):
            return self._again(self._chain(newest.head))
        if self.is_unreadable:
            why = "its checkpoint cannot be read, and the ledger has no entry of it"
            return self._decided(Act.REFUSED, why)
        if self.before is None:
            return self._decided(Act.STAYS, "nothing was copied")
        return self._noted(self._chain(self.before.ledger_head), self.before)

    def _decided(self, act: Act, why: str, after: Checkpoint | None = None) -> Restore:
        cluster_id = self.client.cluster_id
        return Restore(self.name, self.source, cluster_id, self.state, act, why, after)

    def _chain(self, head: LedgerHead) -> Chain:
        return verify_chain(self.source, self.records, head, self.kept_since_ms)

    def _noted(self, chain: Chain, before: Checkpoint) -> Restore:
        """Note that entries are missing, if they are."""
        if not chain.breaks:
            return self._decided(Act.STAYS, "its checkpoint is the last one")
        if any(broken.kind is not Tampering.REMOVED for broken in chain.breaks):
            return self._decided(Act.REFUSED, chain.breaks[0].what_and_where)
        why = "; ".join(broken.what_and_where for broken in chain.breaks)
        return self._decided(Act.NOTED, why, before.decided(self.client.clock.now_ms()))

    def _again(self, chain: Chain) -> Restore:
        """Go on from the newest entry, if it is reached from the checkpoint."""
        if wrong := self._why_not(chain):
            return self._decided(Act.REFUSED, wrong)
        after = self._made_again(chain)
        was = "it cannot be read" if self.is_unreadable else "it is gone"
        if self.before is not None:
            was = f"it said offset {self.before.next_offset}"
        number = after.ledger_head.number
        why = f"at offset {after.next_offset}, as ledger entry {number} says; {was}"
        if unconfirmed := _without_copies(chain):
            why += (
                f"; no copies confirm what has no records, which its last {unconfirmed} entries say"
            )
        return self._decided(Act.AGAIN, why, after)

    def _why_not(self, chain: Chain) -> str:
        """Say why the chain is not the one that was committed; empty if it may be."""
        if chain.breaks:
            return chain.breaks[0].what_and_where
        numbers = {record.entry.number: record.head for record in chain.records}
        head = None if self.before is None else self.before.ledger_head
        if head is not None and numbers.get(head.number, head) != head:
            return f"ledger entry {head.number} is not the one that the checkpoint names"
        if unconfirmed := _moves_without_copies(chain, head):
            return unconfirmed
        last = _last_copied(chain)
        return "" if last is None else self._out_of_order(chain) or self._why_not_there(last)

    def _out_of_order(self, chain: Chain) -> str:
        """Name an entry whose copies are not after those before it, which they would be."""
        before, newest = self.before, chain.records[-1].entry
        head, ends = 0, dict[TopicPartition, int]()
        if before is not None and before.copies is not None:
            known, head = before.copies, before.ledger_head.number
            topic_id = self._id_of(known.topic_partition.topic)
            if before.generation == newest.generation or known.topic_id == topic_id:
                ends[known.topic_partition] = known.next_offset
        since = (entry for entry in chain.entries if entry.number > head)
        of_generation = (entry for entry in since if entry.generation == newest.generation)
        for entry in disordered(of_generation, ends):
            return f"the copies of ledger entry {entry.number} are before those of an earlier one"
        return ""

    def _id_of(self, topic: str) -> str:
        """Return the id of a topic as it is now; empty if it is gone, or unknown."""
        return self.client.topic(topic).topic_id if self.client.has_topic(topic) else ""

    def _why_not_there(self, last: LedgerEntry) -> str:
        """Say what differs between the newest chunk with records and the destination."""
        to, end = last.destination.topic_partition, last.destination.end
        if not self.client.has_topic(to.topic):
            return ""  # the guards say so afterwards
        upto = {to: OffsetRange(to, end, end)}  # what follows may be of others
        claims = Claims(self.name, [last], upto)
        (count,) = count_ranges(self.client, [(last.source, [last])], claims)
        lines = [str(count)] if isinstance(count, RelayError) else count.problems
        where = f"{last.destination}, the copies of ledger entry {last.number}"
        return f"{where}: {lines[0]}" if lines else ""

    def _made_again(self, chain: Chain) -> Checkpoint:
        before, newest = self.before, chain.records[-1]
        entry, to = newest.entry, newest.entry.to
        is_same = before is not None and before.generation == entry.generation
        base = before if before and is_same else Checkpoint.initial(self.name, self.source, to, 0)
        last = _last_copied(chain)
        policies = before or replace(base, policy=chain.records[0].entry.policy)
        for each in chain.entries:
            policies = policies.decided_by(each.policy)
        return base.decided(
            self.client.clock.now_ms(),
            entry.source.end,
            passed=with_own_hops(before, self.client.cluster_id).passed if before else (),
            upstream=entry.upstream,
            destination=to,
            copies=None if last is None else self._position(last, base),
            fingerprint=base.fingerprint or self._fingerprint(chain),
            generation=entry.generation,
            ledger_head=newest.head,
            policy=entry.policy,
            superseded=policies.superseded,
        )

    def _position(self, last: LedgerEntry, base: Checkpoint) -> DestinationPosition:
        """Return where the copies end; in a topic that was created again, the guards notice."""
        to, known = last.destination.topic_partition, base.copies
        if known is not None and known.topic_partition == to:
            return replace(known, next_offset=last.destination.end)
        return DestinationPosition(to, last.destination.end, self._id_of(to.topic))

    def _fingerprint(self, chain: Chain) -> Fingerprint | None:
        """Return that of the newest record whose source offset is known; None if there is none.

        The guards compare it with the source, whose topic ids the ledger does not have. A chunk
        that skipped nothing ends with the record before its end.
        """
        if REPLAY in self.name:
            return None  # copies of copies, perhaps
        generation = chain.records[-1].entry.generation
        for entry in reversed(chain.entries):
            if entry.generation == generation and 0 < entry.records == len(entry.source):
                # where records may have been changed, copies differ from them
                return None if entry.may_change_records else self._fingerprint_of_last(entry)
        return None

    def _fingerprint_of_last(self, entry: LedgerEntry) -> Fingerprint | None:
        """Return that of a chunk's last record, as the source has it."""
        to, end = entry.to, entry.destination.end
        if not self.client.has_topic(to.topic):
            return None
        if self.client.list_offsets([to], EARLIEST, READ_COMMITTED)[to] >= end:
            return None
        for spans in read(self.client, OffsetRange(to, end - 1, end), _FETCH_BYTES):
            for run in (span.run for span in spans if span.run is not None):
                last_records = [record for record in decode(run.data) if record.offset == end - 1]
                if last_records and not run.first.is_log_append_time:
                    return replace(fingerprint_of(last_records[0]), offset=entry.source.end - 1)
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
    for entry in reversed(chain.entries):
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
    with_records = [entry.number for entry in chain.entries if entry.records]
    return chain.records[-1].entry.number - max(with_records, default=0)


def _last_copied(chain: Chain) -> LedgerEntry | None:
    """Return the newest entry with records of the newest generation; None if there is none."""
    generation = chain.records[-1].entry.generation
    copied = [entry for entry in chain.entries if entry.records and entry.generation == generation]
    return copied[-1] if copied else None

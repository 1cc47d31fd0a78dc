"""Moves a checkpoint without a copy, with a ledger entry that says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from relay_pipelines.errors import FencedError
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.checkpoint import Key, StateRecord, checkpoint_record, home
from relay_pipelines.ledger.fencing import decide
from relay_pipelines.ledger.last_checkpoint import Current, read_current
from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange, Skipped, TopicPartition
from relay_pipelines.plan.hops import with_own_hops
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Move:
    """A checkpoint that moves without a copy: somebody has decided where the copy goes on.

    Args:
        after: the checkpoint from then on, as of `Checkpoint.decided`.
        why: what was decided; the ledger entry says it.
        lost: the source offsets that are given up. Without any, the entry may begin a generation:
            earlier entries no longer count then.
        copies_end: the destination offset before which nothing is the mirror's from now on; None
            for that after its copies.
    """

    after: Checkpoint
    why: str
    lost: OffsetRange | None = None
    copies_end: int | None = None

    @property
    def entry(self) -> LedgerEntry:
        """Its ledger entry, not yet linked."""
        after, end = self.after, self.copies_end
        source = self.lost or OffsetRange(after.source, after.next_offset, after.next_offset)
        if end is None:
            end = after.end_in(after.destination) or 0
        return LedgerEntry(
            mirror=after.mirror,
            source=source,
            destination=OffsetRange(after.destination, end, end),
            records=0,
            size_bytes=0,
            batches=0,
            reencoded=0,
            skipped={str(Skipped.LOST): len(source)} if len(source) else {},
            digest=f"{0:08x}",
            producer_id=-1,
            upstream=after.upstream,
            window="",
            run_id=after.run_id,
            committed_at_ms=after.committed_at_ms,
            gap=self.why,
        )


def move_checkpoint(client: ClusterClient, snapshot: ClusterSnapshot, move: Move) -> bool:
    """Commit a checkpoint in place of the snapshot's, under the id that owns it.

    Every task at work there is fenced. A checkpoint that has changed since the snapshot, or that
    another id owns by now, is left alone.

    Returns:
        Whether it was moved.

    Raises:
        FencedError: another driver or task has taken the id over at the same time.
        RelayError: the destination does not answer, or refuses.
    """
    source, state = move.after.source, snapshot.state
    owner, before = snapshot.owner_of(source), state.checkpoints.get(source)
    return replace_checkpoint(client, owner, before, state.ends, move.after, move.entry)


def replace_checkpoint(
    client: ClusterClient,
    owner: str,
    before: Checkpoint | None,
    ends: Mapping[TopicPartition, int],
    after: Checkpoint,
    gap: LedgerEntry | None,
) -> bool:
    """Commit a checkpoint in place of the one that is known, under the id that owns it.

    Args:
        before: the checkpoint that is known.
        ends: how far the partitions of the topic were read then.
        gap: the ledger entry to commit with it, not yet linked; None for none.

    Returns:
        Whether it was replaced, as of `move_checkpoint`.

    Raises:
        FencedError: another driver or task has taken the id over at the same time.
        RelayError: the destination does not answer, or refuses.
    """
    key, current = Key.of(after.mirror, after.source), Current(None, None)
    entries = []
    if gap is not None:
        after, entry = ledger_topic.chained(after, gap)
        entries.append(StateRecord(home(ledger_topic.TOPIC, key.encode()), entry))

    def decision() -> list[StateRecord]:
        nonlocal current
        known = {key.source: (before, ends.get(key.home, 0))}
        current = read_current(client, key.mirror, known)[key.source]
        is_known = current.checkpoint == before and current.owner in {None, owner}
        return [checkpoint_record(after), *entries] if is_known else []

    # or the answer to an earlier commit of it was lost
    return decide(client, owner, decision) or current.checkpoint == after


def checkpoint_before(snapshot: ClusterSnapshot, position: Position) -> Checkpoint:
    """Return the checkpoint; what is known from the start record if nothing was copied."""
    tp = position.topic_partition
    if tp in snapshot.checkpoints:
        return snapshot.checkpoints[tp]
    to = snapshot.destination_of(tp)
    return replace(
        Checkpoint.initial(snapshot.name, tp, to, position.begin),
        upstream=snapshot.upstream.name,
        policy=snapshot.topics[tp.topic].policy.digests,
    )


def without_logs(snapshot: ClusterSnapshot, before: Checkpoint) -> Checkpoint:
    """Return the checkpoint without the ids of logs, which do not apply to a topic created again.

    The copies stay, and so do the hops by which they came.
    """
    known = with_own_hops(before, snapshot.at_destination.cluster_id)
    return replace(known, topic_ids={}, cluster_ids={})


def resume_at(
    client: ClusterClient,
    snapshot: ClusterSnapshot,
    position: Position,
    offset: int,
    why: str,
    copies_end: int,
) -> None:
    """Let a topic-partition go on at a source offset, in a generation of its own.

    Offsets before it are no longer translated: their records have copies of other mirrors.

    Args:
        copies_end: the destination offset before which the originals of these records are.

    Raises:
        FencedError: as of `move_checkpoint`; or the checkpoint has changed since the snapshot.
        RelayError: as of `move_checkpoint`.
    """
    before = checkpoint_before(snapshot, position)
    moved = before.decided(client.clock.now_ms(), offset, anew=True, fingerprint=None)
    if not move_checkpoint(client, snapshot, Move(moved, why, copies_end=copies_end)):
        raise FencedError("the checkpoint has changed meanwhile")

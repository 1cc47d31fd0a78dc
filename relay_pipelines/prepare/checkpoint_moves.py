"""Moves a checkpoint without a copy, with a ledger entry that says why."""

from __future__ import annotations

from dataclasses import replace

from relay_pipelines.errors import FencedError
from relay_pipelines.ledger import checkpoint as checkpoints
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.checkpoint import StateRecord
from relay_pipelines.ledger.fencing import commit, take_over
from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange, Skipped
from relay_pipelines.plan.hops import with_own_hops
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

BY_DRIVER = "driver"
"""The run id of what no task has copied."""


def move_checkpoint(
    client: ClusterClient,
    snapshot: ClusterSnapshot,
    moved: Checkpoint,
    gap: tuple[OffsetRange, str],
    copies_end: int | None = None,
) -> bool:
    """Commit a checkpoint in place of the snapshot's, under the id that owns it.

    Every task at work there is fenced. A checkpoint that has changed since the snapshot, or that
    another id owns by now, is left alone.

    Args:
        gap: the source offsets that are given up, and why. Without offsets, the entry begins a
            generation: earlier entries no longer count.
        copies_end: as of `gap_entry`.

    Returns:
        Whether it was moved.

    Raises:
        FencedError: another driver or task has taken the id over at the same time.
        RelayError: the destination does not answer, or refuses.
    """
    tp = moved.source
    home = checkpoints.home(checkpoints.TOPIC, checkpoints.key_of(snapshot.name, tp))
    known = snapshot.checkpoints.get(tp), snapshot.checkpoint_ends.get(home, 0)
    moved, entry = ledger_topic.chained(moved, gap_entry(moved, *gap, copies_end=copies_end))
    return replace_checkpoint(client, snapshot.owner_of(tp), known, moved, entry)


def replace_checkpoint(
    client: ClusterClient,
    owner: str,
    known: tuple[Checkpoint | None, int],
    after: Checkpoint,
    entry: tuple[bytes, bytes, int] | None,
) -> bool:
    """Commit a checkpoint in place of the one that is known, under the id that owns it.

    Args:
        known: the checkpoint, and how far its partition was read.
        entry: key, value and timestamp of the ledger entry to commit with it; None for none.

    Returns:
        Whether it was replaced, as of `move_checkpoint`.

    Raises:
        FencedError: another driver or task has taken the id over at the same time.
        RelayError: the destination does not answer, or refuses.
    """
    tp, key = after.source, checkpoints.key_of(after.mirror, after.source)
    producer = take_over(client, owner)
    read = checkpoints.read_current(client, after.mirror, {tp: known})
    current = read[tp]
    if current.checkpoint != known[0] or current.owner not in {None, owner}:
        producer.release()
        return current.checkpoint == after  # the answer to an earlier commit of it was lost
    records = [checkpoints.checkpoint_record(after)]
    if entry is not None:
        records.append(StateRecord(checkpoints.home(ledger_topic.TOPIC, key), entry))
    commit(client, producer, records)
    return True


def checkpoint_before(snapshot: ClusterSnapshot, position: Position) -> Checkpoint:
    """Return the checkpoint; what is known from the start record if nothing was copied."""
    tp = position.topic_partition
    if tp in snapshot.checkpoints:
        return snapshot.checkpoints[tp]
    to = snapshot.destination_of(tp)
    return replace(
        Checkpoint.initial(snapshot.name, tp, to, position.begin),
        node=snapshot.node.name,
        policy=snapshot.record_policy[tp.topic].digests,
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
    moved = replace(
        before,
        next_offset=offset,
        leader_epoch=-1,
        leader_epoch_end=-1,
        fingerprint=None,
        is_dense=False,
        run_id=BY_DRIVER,
        committed_at_ms=client.clock.now_ms(),
        generation=before.generation + 1,
    )
    nothing = OffsetRange(position.topic_partition, offset, offset)
    if not move_checkpoint(client, snapshot, moved, (nothing, why), copies_end):
        raise FencedError("the checkpoint has changed meanwhile")


def gap_entry(
    moved: Checkpoint, source: OffsetRange, why: str, copies_end: int | None = None
) -> LedgerEntry:
    """Return the ledger entry of a checkpoint that is moved without a copy.

    Args:
        copies_end: the destination offset before which nothing is the mirror's from now on; None
            for that after its copies.
    """
    if copies_end is None:
        copies_end = moved.end_in(moved.destination) or 0
    return LedgerEntry(
        mirror=moved.mirror,
        source=source,
        destination=OffsetRange(moved.destination, copies_end, copies_end),
        records=0,
        size_bytes=0,
        batches=0,
        reencoded=0,
        skipped={str(Skipped.LOST): len(source)} if len(source) else {},
        digest=f"{0:08x}",
        producer_id=-1,
        node=moved.node,
        window="",
        run_id=moved.run_id,
        committed_at_ms=moved.committed_at_ms,
        gap=why,
    )

"""Accepts losses if the configuration says so: moves checkpoints past them, with a ledger entry."""

from __future__ import annotations

import logging
from dataclasses import replace

from relay_pipelines.errors import DataLossError, FencedError, RetriableError
from relay_pipelines.model import (
    Checkpoint,
    CopyOptions,
    DestinationPosition,
    LedgerEntry,
    OffsetRange,
    Skipped,
)
from relay_pipelines.plan.owners import own_id, shared_id, topic_scope
from relay_pipelines.plan.positions import Loss, Position, data_loss, losses
from relay_pipelines.prepare import topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.records import encode
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.clients import destination_client
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.state import checkpoint as checkpoints
from relay_pipelines.state import ledger
from relay_pipelines.state.fencing import commit, fence, take_over

BY_DRIVER = "driver"
_MOST_PARTS = 16  # of a lane; each has up to 250 topics
_LOG = logging.getLogger(__name__)


def accept_losses(snapshot: ClusterSnapshot, mirror: Mirror, clock: Clock) -> list[DataLossError]:
    """Move every checkpoint with a loss to where the copy can resume, and return what was lost.

    A checkpoint that has moved since the snapshot is left alone: another driver has dealt with it.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    lost = [
        position
        for position in snapshot.positions
        if isinstance(data_loss(position), DataLossError)
    ]
    options = mirror.copy_options
    accepted: list[DataLossError] = []
    topics.create_state_topics(snapshot, mirror.destination.replication_factor, options, clock)
    with destination_client(snapshot.mirror, snapshot.destination, options) as client:
        for position in lost:
            try:
                if _has_lost_owner(snapshot, position):
                    _fence_former_owners(client, snapshot, mirror, position, clock)
                error = _accept_loss(client, snapshot, position, options, clock)
            except FencedError:
                continue  # another driver deals with it at the same time
            except RetriableError as failed:
                if not accepted:
                    raise
                _LOG.warning(
                    "%s: %s; losses that are not accepted yet stay held back",
                    snapshot.mirror,
                    failed,
                )
                break
            if error is not None:
                accepted.append(error)
    return accepted


def _accept_loss(
    client: ClusterClient,
    snapshot: ClusterSnapshot,
    position: Position,
    options: CopyOptions,
    clock: Clock,
) -> DataLossError | None:
    """Move one checkpoint; None if it has already moved, or there is nothing to accept."""
    at = position.topic_partition
    owner = snapshot.owner_of(at)
    producer = take_over(client, owner, options, clock)
    before = snapshot.checkpoints.get(at)
    home = checkpoints.home(checkpoints.TOPIC, key := checkpoints.key_of(snapshot.mirror, at))
    known = {at: (before, snapshot.checkpoint_ends.get(home, 0))}
    current = checkpoints.read_current(client, snapshot.mirror, known, options, clock)[at]
    lost, error = losses(position), data_loss(position)
    if current.checkpoint != before or current.owner not in {None, owner}:
        return None
    if not isinstance(error, DataLossError):
        return None
    moved = _moved_checkpoint(snapshot, position, lost[0], clock.now_ms())
    moved, entry = ledger.chained(moved, _gap_entry(position, lost, moved))
    batches = [
        (home, checkpoints.to_batch(moved)),
        (checkpoints.home(ledger.TOPIC, key), encode(*entry)),
    ]
    commit(client, producer, batches, options, clock)
    return error


def _has_lost_owner(snapshot: ClusterSnapshot, position: Position) -> bool:
    """Whether the topic-partition was copied, but the checkpoint topic no longer says by whom."""
    return position.ledger_end is not None and position.topic_partition not in snapshot.owners


def _fence_former_owners(
    client: ClusterClient,
    snapshot: ClusterSnapshot,
    mirror: Mirror,
    position: Position,
    clock: Clock,
) -> None:
    """Fence every id that may have owned it: a task may still hold one, and an open chunk."""
    at = position.topic_partition
    lanes = {"main", *mirror.all_lanes}
    # the parts of a lane of very many topics
    parts = {f"{lane}_{number}" for lane in lanes for number in range(2, _MOST_PARTS + 1)}
    scopes = {"", topic_scope(at.topic), *lanes, *parts}
    ids = {
        own_id(snapshot.mirror, at),
        *(shared_id(snapshot.mirror, scope, at) for scope in scopes),
    }
    fence(client, ids, mirror.copy_options, clock)


def _moved_checkpoint(
    snapshot: ClusterSnapshot, position: Position, loss: Loss, now_ms: int
) -> Checkpoint:
    before = _checkpoint_before(snapshot, position)
    rewound = position.recreated or loss.resume < before.next_offset
    return replace(
        before,
        next_offset=loss.resume,
        leader_epoch=-1,
        leader_epoch_end=-1,
        # the ids of the deleted topic do not apply to the new one
        topic_ids={} if position.recreated else before.topic_ids,
        cluster_ids={} if position.recreated else before.cluster_ids,
        fingerprint=None if rewound else before.fingerprint,
        copies=None if position.destination_lost else before.copies,
        is_dense=False,
        run_id=BY_DRIVER,
        committed_at_ms=now_ms,
        generation=before.generation + (not _skips_offsets(position, loss)),
    )


def _checkpoint_before(snapshot: ClusterSnapshot, position: Position) -> Checkpoint:
    """The checkpoint; if it is lost, what is known of it from the ledger or the start record."""
    at = position.topic_partition
    if at in snapshot.checkpoints:
        return snapshot.checkpoints[at]
    record = snapshot.ledger_records.get(at)
    if record is None:
        to = snapshot.destination_of(at)
        return replace(
            Checkpoint.initial(snapshot.mirror, at, to, position.begin), node=snapshot.node.name
        )
    entry, copies = record.entry, record.entry.destination
    return replace(
        Checkpoint.initial(entry.mirror, at, copies.topic_partition, entry.source.end),
        node=entry.node,
        copies=DestinationPosition(copies.topic_partition, copies.end) if copies.end > 0 else None,
        generation=entry.generation,
        ledger_head=record.head,
    )


def _skips_offsets(position: Position, loss: Loss) -> bool:
    """Whether the loss is a gap between offsets that still mean the same records and copies."""
    copied = position.next_offset
    is_kept = not position.recreated and not position.destination_lost
    return copied is not None and is_kept and copied < loss.resume


def _gap_entry(position: Position, lost: list[Loss], moved: Checkpoint) -> LedgerEntry:
    copied, resume = position.next_offset, lost[0].resume
    # otherwise the entry has no offsets and begins a generation: earlier entries no longer count
    is_gap = _skips_offsets(position, lost[0])
    start = copied if copied is not None and is_gap else resume
    source = OffsetRange(position.topic_partition, start, resume)
    copies_end = moved.end_in(moved.destination) or 0
    return LedgerEntry(
        mirror=moved.mirror,
        source=source,
        destination=OffsetRange(moved.destination, copies_end, copies_end),
        records=0,
        size_bytes=0,
        batches=0,
        rewritten=0,
        skipped={str(Skipped.LOST): len(source)} if is_gap else {},
        digest=f"{0:08x}",
        node=moved.node,
        window="",
        run_id=moved.run_id,
        committed_at_ms=moved.committed_at_ms,
        gap="; ".join(loss.what for loss in lost),
    )

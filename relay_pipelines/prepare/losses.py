"""Going on after a loss, where the configuration says so: the checkpoint is moved behind it, and the ledger keeps the reason."""

from __future__ import annotations

import logging
from dataclasses import replace

from relay_pipelines.errors import DataLossError, DestinationError, FencedError, RetriableError
from relay_pipelines.model import Checkpoint, CopyOptions, LedgerEntry, OffsetRange, Skipped
from relay_pipelines.plan.positions import Loss, Position, data_loss, loss, losses
from relay_pipelines.prepare import topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.state import checkpoint as checkpoints
from relay_pipelines.state import ledger
from relay_pipelines.state.fencing import commit, take_over

_BY_DRIVER = "driver"
_LOG = logging.getLogger(__name__)


def accept_losses(snapshot: ClusterSnapshot, mirror: Mirror, clock: Clock) -> list[DataLossError]:
    """Move the checkpoint of every topic-partition with a loss to where it can go on; return what was lost.

    A topic-partition whose checkpoint has moved since the survey is left alone: somebody else has
    dealt with it.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    lost = [one for one in snapshot.positions if isinstance(data_loss(one), DataLossError)]
    options = mirror.copy_options
    accepted: list[DataLossError] = []
    topics.create_own(snapshot, mirror.destination.replication_factor, options, clock)
    with ClusterClient(
        snapshot.destination,
        DestinationError,
        f"relay-{snapshot.mirror}",
        options.request_timeout_ms,
    ) as client:
        for position in lost:
            try:
                error = _accept_loss(client, snapshot, position, options, clock)
            except FencedError:
                continue  # another driver is at it
            except RetriableError as failed:
                if not accepted:
                    raise
                _LOG.warning(
                    "%s: %s; what is not accepted yet stays held back", snapshot.mirror, failed
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
    """Move one checkpoint; None if it has moved by itself, or there is nothing to accept."""
    at = position.topic_partition
    producer = take_over(client, snapshot.owner_of(at), options, clock)
    known = snapshot.checkpoints.get(at)
    key = checkpoints.key_of(snapshot.mirror, at)
    home = checkpoints.home(checkpoints.TOPIC, key)
    before = {at: (known, snapshot.checkpoint_ends.get(home, 0))}
    current, owner = checkpoints.read_current(client, snapshot.mirror, before, options, clock)[at]
    found, error = loss(position), data_loss(position)
    if owner not in {None, snapshot.owner_of(at)}:
        return None
    if current != known or found is None or not isinstance(error, DataLossError):
        return None
    following = _moved(snapshot, position, found, clock.now_ms())
    entry = _gap(position, found, following)
    batches = [
        (home, checkpoints.to_batch(following)),
        (checkpoints.home(ledger.TOPIC, key), ledger.to_batch(entry)),
    ]
    commit(client, producer, batches, options, clock)
    return error


def _moved(snapshot: ClusterSnapshot, position: Position, found: Loss, now_ms: int) -> Checkpoint:
    at = position.topic_partition
    recorded = snapshot.recorded.get(at)
    before = snapshot.checkpoints.get(at) or (
        _as_recorded(recorded) if recorded else _at_start(snapshot, position)
    )
    there = snapshot.destination_topics.get(snapshot.destinations[at.topic])
    rewound = position.recreated or found.resume < before.next_offset
    return replace(
        before,
        next_offset=found.resume,
        leader_epoch=-1,
        leader_epoch_end=-1,
        # nothing that was known of the source's topic need hold for what it is now
        topic_ids={} if position.recreated else before.topic_ids,
        cluster_ids={} if position.recreated else before.cluster_ids,
        fingerprint=None if rewound else before.fingerprint,
        destination_next_offset=-1 if position.destination_lost else before.destination_next_offset,
        destination_topic_id=there.topic_id
        if there and position.destination_lost
        else before.destination_topic_id,
        run_id=_BY_DRIVER,
        committed_at_ms=now_ms,
        reset_at_ms=now_ms,
    )


def _as_recorded(entry: LedgerEntry) -> Checkpoint:
    """What the checkpoint said, as far as the ledger entry of the same commit tells."""
    source, copies = entry.source, entry.destination
    return replace(
        Checkpoint.initial(
            entry.mirror, source.topic_partition, copies.topic_partition, source.end
        ),
        node=entry.node,
        destination_next_offset=copies.end,
    )


def _at_start(snapshot: ClusterSnapshot, position: Position) -> Checkpoint:
    """What a checkpoint would say of a topic-partition that has a start record, and of which nothing was copied yet."""
    at = position.topic_partition
    first = Checkpoint.initial(snapshot.mirror, at, snapshot.destination_of(at), position.begin)
    return replace(first, node=snapshot.node.name)


def _gap(position: Position, found: Loss, following: Checkpoint) -> LedgerEntry:
    copied = position.next_offset
    # where the copies are gone as well, the entry parts the ledger: what stands before it counts
    # for nothing any more
    ahead = (
        copied is not None
        and not position.recreated
        and not position.destination_lost
        and copied < found.resume
    )
    source = OffsetRange(
        position.topic_partition,
        copied if copied is not None and ahead else found.resume,
        found.resume,
    )
    place = max(0, following.destination_next_offset)
    return LedgerEntry(
        mirror=following.mirror,
        source=source,
        destination=OffsetRange(following.destination, place, place),
        records=0,
        size_bytes=0,
        batches=0,
        rewritten=0,
        skipped={str(Skipped.LOST): len(source)} if ahead else {},
        digest=f"{0:08x}",
        node=following.node,
        window="",
        run_id=following.run_id,
        committed_at_ms=following.committed_at_ms,
        gap="; ".join(each.what for each in losses(position)),
    )

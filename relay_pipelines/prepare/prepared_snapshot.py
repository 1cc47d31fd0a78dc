"""The snapshot that a run copies from: new topics have start records, and losses are accepted.

Accepts losses if the configuration says so: moves checkpoints past them, with a ledger entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from relay_pipelines.errors import (
    FencedError,
    RelayError,
    RetriableError,
    TopicRecreatedError,
    TransactionPendingError,
)
from relay_pipelines.ledger.checkpoint import StateRecord, start_record
from relay_pipelines.ledger.fencing import decide
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.model import OffsetRange
from relay_pipelines.plan.blockers import Blocker, losses
from relay_pipelines.plan.owners import start_id
from relay_pipelines.plan.positions import OnDataLoss, Position
from relay_pipelines.prepare import topics
from relay_pipelines.prepare.checkpoint_moves import (
    Move,
    checkpoint_before,
    move_checkpoint,
    without_logs,
)
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.snapshot import state_topics
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def prepare_snapshot(
    take_snapshot: Callable[[], ClusterSnapshot],
    waits: Callable[[ClusterSnapshot], bool] = lambda _: False,
) -> ClusterSnapshot:
    """Take a snapshot, write what a run must know before it copies, and take it again.

    At the mirror's first run, its topics get their start records; with `on_data_loss: continue`,
    losses are accepted.

    Args:
        waits: whether another deployment copies the mirror, by a snapshot: then nothing is written.

    Raises:
        ConfigError: the topics of checkpoints and ledger would lose the mirror's state.
        RelayError: `take_snapshot` raises it; or the destination does not answer, or refuses.
    """
    snapshot = take_snapshot()
    if waits(snapshot):
        return snapshot
    with snapshot.destination_client() as client:
        if snapshot.news or snapshot.new_starts:
            state_topics.refuse(client, snapshot)
        if not snapshot.checkpoints:
            _prove_clusters(client, snapshot)
        while snapshot.new_starts:
            # fenced by another driver that records the same starts: the next snapshot has them
            with suppress(FencedError):
                record_starts(client, snapshot)
            snapshot = take_snapshot()
        accepts = snapshot.sides.mirror.on_data_loss is OnDataLoss.CONTINUE
        if not accepts or not snapshot.held_for(Blocker.LOST):
            return snapshot
        accepted = accept_losses(client, snapshot)
    return replace(take_snapshot(), accepted=tuple(accepted))


def _prove_clusters(destination: ClusterClient, snapshot: ClusterSnapshot) -> None:
    """Connect to the brokers of both clusters, before anything is copied.

    Raises:
        WrongClusterError: an address leads to another cluster.
        UnsupportedError: a broker does not serve what a copy needs.
        RelayError: no broker answers.
    """
    with snapshot.source_client() as source:
        for client in (source, destination):
            client.retry(client.refuse_other_clusters)


def record_starts(client: ClusterClient, snapshot: ClusterSnapshot) -> None:
    """Write the start records of a snapshot in one transaction; existing ones are kept.

    Those of a mirror's first run are written all together or, if another driver was first, not.

    Raises:
        FencedError: another driver records starts of this mirror at the same time.
        RelayError: the destination does not answer, or refuses.
    """
    topics.create_state_topics(client, snapshot)

    def decision() -> list[StateRecord]:
        committed = read_state(client, settled=True).of(snapshot.name)
        is_first = any(not start.topic for start in snapshot.new_starts)
        if is_first and committed.has_begun:
            return []
        started = {tp.topic for tp in committed.checkpoints}.union(committed.starts)
        return [
            start_record(new_start)
            for new_start in snapshot.new_starts
            if new_start.topic not in started
        ]

    decide(client, start_id(snapshot.name), decision)  # one id for all topics


_LOG = logging.getLogger(__name__)


def accept_losses(client: ClusterClient, snapshot: ClusterSnapshot) -> list[RelayError]:
    """Move every checkpoint with a loss to where the copy can resume, and return what was lost.

    A checkpoint that has moved since the snapshot is left alone: another driver has dealt with it.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    accepted: list[RelayError] = []
    lost = snapshot.held_for(Blocker.LOST)
    topics.create_state_topics(client, snapshot)
    for position in snapshot.positions:
        if (tp := position.topic_partition) not in lost:
            continue
        try:
            is_moved = _accept_loss(client, snapshot, position)
        except FencedError:
            continue  # another driver deals with it at the same time
        except TransactionPendingError as failed:  # of this id, not of the destination
            _LOG.warning("%s: %s; the loss stays held back", snapshot.name, failed.of(tp))
            continue
        except RetriableError as failed:
            if not accepted:
                raise
            _LOG.warning(
                "%s: %s; losses that are not accepted yet stay held back",
                snapshot.name,
                failed,
            )
            break
        if is_moved:
            accepted.append(lost[tp])
    return accepted


def _accept_loss(client: ClusterClient, snapshot: ClusterSnapshot, position: Position) -> bool:
    """Move one checkpoint; return whether it was moved, and not by another driver."""
    lost = list(losses(position))
    resume, before = lost[0].resume, checkpoint_before(snapshot, position)
    is_recreated = lost[0].error is TopicRecreatedError
    # what is given up; nothing if the offsets now mean other records, or other copies
    is_kept = not position.recreated and not position.destination_lost
    start = min(position.begin, resume) if is_kept else resume
    rewound = is_recreated or resume < before.next_offset
    known = without_logs(snapshot, before) if is_recreated else before
    moved = known.decided(
        client.clock.now_ms(),
        resume,
        anew=start == resume,
        fingerprint=None if rewound else before.fingerprint,
        copies=None if position.destination_lost else before.copies,
        destination=before.bound_to or snapshot.destination_of(before.source),
    )
    gap = OffsetRange(position.topic_partition, start, resume)
    return move_checkpoint(
        client, snapshot, Move(moved, "; ".join(each.what for each in lost), gap)
    )

"""The snapshot that a run copies from: new topics have start records, and losses are accepted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from relay_pipelines.errors import DataLossError, FencedError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.fencing import commit, take_over
from relay_pipelines.plan.positions import OnDataLoss, data_loss
from relay_pipelines.prepare import losses, topics
from relay_pipelines.prepare.edits_taken_back import decide_again
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import state_topics
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def prepare_snapshot(
    take_snapshot: Callable[[], ClusterSnapshot], mirror: Mirror, clock: Clock, run_id: str = ""
) -> ClusterSnapshot:
    """Take a snapshot, write what a run must know before it copies, and take it again.

    At the mirror's first run, its topics get their start records; with `on_data_loss: continue`,
    losses are accepted; a run that lives while a person takes an edit back says so.

    Args:
        run_id: of the run, as in `take_snapshot`.

    Raises:
        ConfigError: the topics of checkpoints and ledger would lose the mirror's state.
        RelayError: `take_snapshot` raises it; or the destination does not answer, or refuses.
    """
    snapshot = take_snapshot()
    state_topics.refuse(snapshot.state_topics)
    while snapshot.new_starts:
        # fenced by another driver that records the same starts: the next snapshot has them
        with suppress(FencedError):
            record_starts(snapshot, mirror, clock)
        snapshot = take_snapshot()
    if decide_again(snapshot, mirror, run_id, clock):
        snapshot = take_snapshot()
    lost = any(isinstance(data_loss(position), DataLossError) for position in snapshot.positions)
    if mirror.on_data_loss is OnDataLoss.FAIL or not lost:
        return snapshot
    accepted = losses.accept_losses(snapshot, mirror, clock)
    return replace(take_snapshot(), accepted=tuple(accepted))


def record_starts(snapshot: ClusterSnapshot, mirror: Mirror, clock: Clock) -> None:
    """Write the start records of a snapshot in one transaction; existing ones are kept.

    Those of a mirror's first run are written all together or, if another driver was first, not.

    Raises:
        FencedError: another driver records starts of this mirror at the same time.
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    topics.create_state_topics(snapshot, mirror.destination.replication_factor, options, clock)
    with destination_client(snapshot.mirror, snapshot.destination, options) as client:
        # one id for all topics: only the last driver that takes it over can commit, and that driver
        # has read what the others committed
        producer = take_over(client, f"relay.{snapshot.mirror}.start", options, clock)
        checkpoint.wait_for_open_transactions(
            client, checkpoint.homes(checkpoint.TOPIC), options, clock
        )
        committed = checkpoint.read_all(client, snapshot.mirror, clock)
        is_first = any(not start.topic for start in snapshot.new_starts)
        if is_first and committed.has_begun:
            return
        started = {at.topic for at in committed.checkpoints}.union(committed.starts)
        batches = [
            (
                checkpoint.home(checkpoint.TOPIC, checkpoint.start_key(start.mirror, start.topic)),
                checkpoint.start_batch(start),
            )
            for start in snapshot.new_starts
            if start.topic not in started
        ]
        if batches:
            commit(client, producer, batches, options, clock)

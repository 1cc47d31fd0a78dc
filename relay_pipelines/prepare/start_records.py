"""What is decided before a copy, once for all drivers: where new topics start, and which losses are accepted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from relay_pipelines.errors import DataLossError, DestinationError, FencedError
from relay_pipelines.plan.positions import OnDataLoss, data_loss
from relay_pipelines.prepare import losses, topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.state import checkpoint as checkpoints
from relay_pipelines.state.fencing import commit, take_over


def prepare_snapshot(
    take: Callable[[], ClusterSnapshot], mirror: Mirror, clock: Clock
) -> ClusterSnapshot:
    """Take a snapshot for those who copy: what is open is decided, and the survey is taken again.

    New topics get their start records; with `on_data_loss: continue` losses are accepted.

    Args:
        take: takes the survey.

    Raises:
        RelayError: `take` raises it; or the destination does not answer, or refuses.
    """
    snapshot = take()
    while snapshot.new_starts:
        with suppress(
            FencedError
        ):  # another driver decides at the same time: the next survey sees what it has decided
            record_starts(snapshot, mirror, clock)
        snapshot = take()
    lost = any(isinstance(data_loss(one), DataLossError) for one in snapshot.positions)
    if mirror.on_data_loss is OnDataLoss.FAIL or not lost:
        return snapshot
    accepted = losses.accept_losses(snapshot, mirror, clock)
    return replace(take(), accepted=tuple(accepted))


def record_starts(snapshot: ClusterSnapshot, mirror: Mirror, clock: Clock) -> None:
    """Write the start records of new topics, all in one transaction. Topics that have one by now keep it.

    Raises:
        FencedError: another driver records starts of this mirror at the same time.
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    topics.create_own(snapshot, mirror.destination.replication_factor, options, clock)
    with ClusterClient(
        snapshot.destination,
        DestinationError,
        f"relay-{snapshot.mirror}",
        options.request_timeout_ms,
    ) as client:
        # one id for all topics: only the last driver that takes it over can commit, and that one
        # has read what others committed
        producer = take_over(client, f"relay.{snapshot.mirror}.start", options, clock)
        checkpoints.wait_for_open_transactions(
            client, checkpoints.homes(checkpoints.TOPIC), options, clock
        )
        known = checkpoints.read_all(client, snapshot.mirror, clock)
        begun = {at.topic for at in known.checkpoints}.union(known.starts)
        new = [one for one in snapshot.new_starts if one.topic not in begun]
        batches = [
            (
                checkpoints.home(checkpoints.TOPIC, checkpoints.start_key(one.mirror, one.topic)),
                checkpoints.start_batch(one),
            )
            for one in new
        ]
        if batches:
            commit(client, producer, batches, options, clock)

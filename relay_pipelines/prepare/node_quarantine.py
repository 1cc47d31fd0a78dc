"""Source nodes that hold other records than were copied: not read until an operator clears them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.fencing import commit, take_over
from relay_pipelines.model import CopyOptions
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror


def set_quarantine(name: str, mirror: Mirror, reasons: Mapping[str, str], clock: Clock) -> None:
    """Write why nodes must not be read; the checkpoint topic must exist at the destination.

    Args:
        reasons: by node name; an empty one ends the quarantine.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    with destination_client(name, mirror.destination_cluster, options) as client:
        for node, why in reasons.items():
            write = partial(_write, client, name, node, why, options, clock)
            retry(write, name, options, clock, client)


def _write(
    client: ClusterClient, name: str, node: str, why: str, options: CopyOptions, clock: Clock
) -> None:
    # no task uses this id: topic names are never empty
    producer = take_over(client, f"relay.{name}..{node}", options, clock)
    home = checkpoint.home(checkpoint.TOPIC, checkpoint.quarantine_key(name, node))
    batch = checkpoint.quarantine_batch(name, node, why, clock.now_ms())
    commit(client, producer, [(home, batch)], options, clock)

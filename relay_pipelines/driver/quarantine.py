"""Nodes of a source that hold other records than were copied: not read until somebody has rebuilt and cleared them."""

from __future__ import annotations

from collections.abc import Mapping

from relay_pipelines.copy import checkpoint
from relay_pipelines.copy.clock import Clock
from relay_pipelines.driver.owning import commit, take_over
from relay_pipelines.errors import DestinationError
from relay_pipelines.settings import Mirror
from relay_pipelines.wire.cluster import ClusterClient


def put(name: str, mirror: Mirror, reasons: Mapping[str, str], clock: Clock) -> None:
    """Write down why nodes are not to be read; the destination's topic of checkpoints must be there.

    Args:
        reasons: by the node's name; empty to clear it.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    with ClusterClient(mirror.destination_cluster, DestinationError, f"relay-{name}", options.request_timeout_ms) as client:
        for node, why in reasons.items():
            # no topic has an empty name: nobody copies under this id
            producer = take_over(client, f"relay.{name}..{node}", options, clock)
            home = checkpoint.home(checkpoint.TOPIC, checkpoint.quarantine_key(name, node))
            commit(producer, {home: checkpoint.quarantine_batch(name, node, why, clock.now_ms())})

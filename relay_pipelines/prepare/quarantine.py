"""Nodes of a source that hold other records than were copied: not read until somebody has rebuilt and cleared them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from relay_pipelines.copy.position import diverged, matches_fingerprint
from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.model import Checkpoint, Cluster, CopyOptions
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror
from relay_pipelines.state import checkpoint
from relay_pipelines.state.fencing import commit, take_over


def put(name: str, mirror: Mirror, reasons: Mapping[str, str], clock: Clock) -> None:
    """Write down why nodes are not to be read; the destination's topic of checkpoints must be there.

    Args:
        reasons: by the node's name; empty to clear it.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    with ClusterClient(
        mirror.destination_cluster, DestinationError, f"relay-{name}", options.request_timeout_ms
    ) as client:
        for node, why in reasons.items():
            retry(
                partial(_put, client, name, node, why, options, clock), name, options, clock, client
            )


def _put(
    client: ClusterClient, name: str, node: str, why: str, options: CopyOptions, clock: Clock
) -> None:
    # no topic has an empty name: nobody copies under this id
    producer = take_over(client, f"relay.{name}..{node}", options, clock)
    home = checkpoint.home(checkpoint.TOPIC, checkpoint.quarantine_key(name, node))
    line = checkpoint.quarantine_batch(name, node, why, clock.now_ms())
    commit(client, producer, [(home, line)], options, clock)


def compare(
    name: str, node: Cluster, checkpoints: Iterable[Checkpoint], timeout_ms: int, clock: Clock
) -> str:
    """Compare the last record copied of every topic-partition with what a node holds; what differs, empty if nothing does.

    Topic-partitions that the node does not have that far are left out: that is no divergence, and
    makes it ineligible anyway.

    Raises:
        RelayError: the node does not answer, or refuses.
    """
    with ClusterClient(node, SourceError, f"relay-{name}-divergence", timeout_ms) as client:
        there = client.metadata().topics
        wanted = {
            one.source: one
            for one in checkpoints
            if one.source.topic in there and one.source.partition in there[one.source.topic].leaders
        }
        ends = client.list_offsets(wanted, LATEST, READ_COMMITTED)
        for at, one in sorted(wanted.items()):
            if ends[at] >= one.next_offset and not matches_fingerprint(client, one, clock):
                return str(diverged(node.name, one))
    return ""

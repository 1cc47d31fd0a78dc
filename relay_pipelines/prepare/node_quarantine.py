"""Source nodes that hold other records than were copied: not read until an operator clears them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from relay_pipelines.copy.position import has_diverged, log_of, other_records
from relay_pipelines.errors import RelayError
from relay_pipelines.model import Checkpoint, Cluster, CopyOptions
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.clients import destination_client, source_client
from relay_pipelines.state import checkpoint
from relay_pipelines.state.fencing import commit, take_over


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


def find_divergence(
    name: str, node: Cluster, checkpoints: Iterable[Checkpoint], timeout_ms: int, clock: Clock
) -> RelayError | None:
    """Compare the last copied record of every topic-partition with the node's.

    Topic-partitions that end earlier at the node, or have no leader there, are left out: they make
    the node ineligible anyway.

    Returns:
        the first difference: a `DivergedNodeError`, or a `TopicRecreatedError` if the node holds
            another topic than it did, which the guards hold back without a quarantine; None if
            there is none.

    Raises:
        RelayError: the node does not answer, or refuses.
    """
    with source_client(name, node, timeout_ms, "divergence") as client:
        topics = client.metadata().topics
        by_source = {
            committed.source: committed
            for committed in checkpoints
            if committed.source.topic in topics
            and topics[committed.source.topic].has_leader(committed.source.partition)
        }
        ends = client.list_offsets(by_source, LATEST, READ_COMMITTED)
        for at, committed in sorted(by_source.items()):
            if ends[at] >= committed.next_offset and has_diverged(client, committed, clock):
                return other_records(log_of(client, at.topic), committed)
    return None

"""Whether a source node holds the records that were copied, from it or from another node."""

from __future__ import annotations

from collections.abc import Iterable

from relay_pipelines.copy.position import has_diverged, log_of, other_records
from relay_pipelines.errors import RelayError
from relay_pipelines.model import Checkpoint, Cluster
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED
from relay_pipelines.protocol.clients import source_client
from relay_pipelines.protocol.clock import Clock


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

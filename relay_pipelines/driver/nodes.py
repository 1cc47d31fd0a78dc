"""The nodes of a source, asked all at once: a slow one delays no verdict on the others."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from relay_pipelines.copy.clock import Clock
from relay_pipelines.errors import RelayError, SourceError
from relay_pipelines.model import Cluster
from relay_pipelines.plan.topics import select
from relay_pipelines.settings import Mirror
from relay_pipelines.wire.cluster import LATEST, READ_COMMITTED, ClusterClient


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node answered.

    Args:
        end_offsets: sum of the last stable offsets of all mirrored topic-partitions.
        latency_ms: of the whole answer.
        error: why there is none, in one line; empty if there is one.
    """

    node: Cluster
    end_offsets: int = 0
    latency_ms: float = 0.0
    error: str = ""


def probe(name: str, mirror: Mirror, clock: Clock) -> list[NodeState]:
    """Ask every node, in the order of the configuration."""
    with ThreadPoolExecutor(max_workers=len(mirror.nodes), thread_name_prefix="probe") as pool:
        return list(pool.map(lambda node: _probe(name, mirror, node, clock), mirror.nodes))


def behind(states: Collection[NodeState]) -> dict[str, int]:
    """How many offsets each node that answered is behind the one that has most."""
    most = max((one.end_offsets for one in states if not one.error), default=0)
    return {one.node.name: most - one.end_offsets for one in states if not one.error}


def _probe(name: str, mirror: Mirror, node: Cluster, clock: Clock) -> NodeState:
    began = clock.monotonic()
    try:
        with ClusterClient(node, SourceError, f"relay-{name}-health", mirror.copy_options.request_timeout_ms) as client:
            topics = client.metadata().topics
            chosen = [one.topic for one in select(topics, mirror.topics.allow, mirror.topics.deny) if one.included]
            wanted = [one for topic in chosen for one in topics[topic].topic_partitions]
            ends = client.list_offsets(wanted, LATEST, READ_COMMITTED)
    except RelayError as error:
        return NodeState(node, latency_ms=(clock.monotonic() - began) * 1000, error=str(error))
    return NodeState(node, sum(ends.values()), (clock.monotonic() - began) * 1000)

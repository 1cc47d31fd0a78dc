"""Refuses a mirror that would copy its own copies, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping

from relay_pipelines.errors import ConfigError, PermissionDeniedError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.state import checkpoint


def refuse_copies_onto_themselves(cluster: Cluster, destinations: Mapping[str, str]) -> None:
    """Refuse a topic that would be copied to itself, if source and destination are one cluster.

    Args:
        destinations: source topic -> destination topic.
    """
    for topic, destination in destinations.items():
        if topic == destination:
            raise ConfigError(
                f"source node {cluster} and the destination are the same cluster,"
                f" and topic {topic!r} would be copied to itself",
                remedy="set topics.rename so that the copies get other names,"
                " or correct bootstrap_servers",
            )


def refuse_copies_of_copies(
    source: ClusterClient, destination_id: str, destinations: Mapping[str, str], clock: Clock
) -> None:
    """Refuse topics that are themselves copies from the destination: it would create a loop.

    Within one cluster, a copy of a copy is allowed, unless it is written back to the first topic.

    Args:
        destinations: source topic -> destination topic.
    """
    try:
        checkpoints = checkpoint.read_all_mirrors(source, clock)
    except PermissionDeniedError:
        return  # without the permission, a loop cannot be detected
    one_cluster = source.cluster_id == destination_id
    for committed in checkpoints:
        topic = committed.destination.topic
        if (
            topic in destinations
            and destination_id in committed.cluster_ids.values()
            and (not one_cluster or destinations[topic] == committed.source.topic)
        ):
            raise ConfigError(
                f"topic {topic!r} at source node {source.cluster} is a copy of topic"
                f" {committed.source.topic!r} of the destination, made by mirror"
                f" {committed.mirror!r}: copying it would create a loop",
                remedy=f"add {topic!r} to topics.deny",
            )

"""Copies that would go around: refused before anything is read."""

from __future__ import annotations

from collections.abc import Mapping

from relay_pipelines.errors import ConfigError, PermissionDeniedError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.state import checkpoint


def refuse_onto_itself(cluster: Cluster, renamed: Mapping[str, str]) -> None:
    """Refuse a topic that would be copied onto itself, where source and destination are one cluster."""
    same = [topic for topic, destination in renamed.items() if topic == destination]
    if same:
        raise ConfigError(
            f"source node {cluster} is the destination itself, and topic {same[0]!r} would be copied onto itself",
            remedy="set topics.rename so that the copies get names of their own, or correct bootstrap_servers",
        )


def refuse(
    source: ClusterClient, destination_id: str, renamed: Mapping[str, str], clock: Clock
) -> None:
    """Refuse topics that are themselves copies from the destination: their records would go around.

    Within one cluster a copy of a copy is lawful, as long as it does not end where it began.
    """
    try:
        found = checkpoint.read_all_mirrors(source, clock)
    except PermissionDeniedError:
        return  # who may not read it cannot know
    within = source.cluster_id == destination_id
    for one in found:
        topic = one.destination.topic
        if (
            topic in renamed
            and destination_id in one.cluster_ids.values()
            and (not within or renamed[topic] == one.source.topic)
        ):
            raise ConfigError(
                f"topic {topic!r} at source node {source.cluster} is a copy of topic {one.source.topic!r} of the destination,"
                f" made by mirror {one.mirror!r}: records would go around",
                remedy=f"add {topic!r} to topics.deny",
            )

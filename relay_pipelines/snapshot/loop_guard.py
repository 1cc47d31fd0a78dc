"""Refuses topics that are copies of this mirror, or would become ones, before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relay_pipelines.errors import ConfigError, PermissionDeniedError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock


def copies_onto_sources(
    destination: Cluster, written: Mapping[str, Sequence[str]], selects: Callable[[str], bool]
) -> dict[str, ConfigError]:
    """Return why topics are refused whose copies the mirror would copy, in one cluster for both.

    The names decide, so that a topic is refused before its copy exists.

    Args:
        written: source topic -> the destination topics that get its records.
        selects: whether the mirror copies a source topic of this name.
    """
    return {
        topic: ConfigError(
            f"topic {topic!r} would be copied to {'itself' if name == topic else repr(name)}: this"
            f" mirror reads {name!r}, too, because a source node and the {destination} are the same"
            " cluster",
            remedy=f"change topics.rename, or add {name!r} to topics.deny",
        )
        for topic, names in written.items()
        if (name := next(filter(selects, names), None)) is not None
    }


def copies_of_copies(
    mirror: str,
    source: ClusterClient,
    destination_id: str,
    destinations: Mapping[str, str],
    clock: Clock,
) -> dict[str, ConfigError]:
    """Return why topics are refused that are copies from the destination: it would create a loop.

    Within one cluster, a copy of another mirror's copy is allowed, unless it is written back to the
    first topic.

    Args:
        destinations: source topic -> destination topic.
    """
    try:
        checkpoints = checkpoint.read_all_mirrors(source, clock)
    except PermissionDeniedError:
        return {}  # without the permission, a loop cannot be detected
    one_cluster = source.cluster_id == destination_id
    return {
        topic: ConfigError(
            f"topic {topic!r} at source node {source.cluster} is a copy of topic"
            f" {committed.source.topic!r} of the destination, made by mirror"
            f" {committed.mirror!r}: copying it would create a loop",
            remedy=f"add {topic!r} to topics.deny",
        )
        for committed in checkpoints
        if (topic := committed.destination.topic) in destinations
        and destination_id in committed.cluster_ids.values()
        and (
            not one_cluster
            or committed.mirror == mirror
            or destinations[topic] == committed.source.topic
        )
    }

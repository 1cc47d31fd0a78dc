"""Destination topic-partitions that another mirror, or a replay of it, has copied to.

Neither mirror could prove its copies: the records of the other one are foreign to it.

Refuses topics that are copies of this mirror, or would become ones, before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Cluster, Hop, TopicPartition
from relay_pipelines.plan import hops
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.metadata import Metadata


def other_mirrors(client: ClusterClient, mirror: str) -> dict[TopicPartition, str]:
    """Return destination topic-partition -> the other mirror whose copies it holds.

    Copies in a topic that was deleted since do not count.

    Args:
        client: of the destination.
        mirror: the own one, or a replay of it.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    if not client.has_topic(checkpoint.TOPIC):
        return {}
    ours = checkpoint.family_of(mirror)
    found = {
        source_checkpoint.copies: other
        for source_checkpoint in checkpoint.read_all_mirrors(client)
        if source_checkpoint.copies is not None
        and (other := checkpoint.family_of(source_checkpoint.mirror)) != ours
    }
    topics = client.metadata(sorted({copies.topic_partition.topic for copies in found})).topics
    return {
        copies.topic_partition: other
        for copies, other in found.items()
        if not (known := topics[copies.topic_partition.topic]).error_code
        and copies.topic_id in {"", known.topic_id}
    }


def refusals(
    client: ClusterClient,
    at_destination: Metadata,
    mirror: str,
    wanted: Mapping[TopicPartition, TopicPartition],
) -> dict[str, RelayError]:
    """Return source topic -> why it must not be copied to where another mirror has copied.

    Args:
        client: of the destination.
        at_destination: its topics that concern the mirror.
        wanted: source topic-partition -> destination, of those of which nothing was copied.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    topics = at_destination.topics
    led = {
        to
        for to in wanted.values()
        if to.topic in topics and topics[to.topic].has_leader(to.partition)
    }
    ends = client.list_offsets(led, LATEST, READ_UNCOMMITTED) if led else {}
    written = {tp: to for tp, to in wanted.items() if ends.get(to)}
    others = other_mirrors(client, mirror) if written else {}
    # of several topic-partitions, the first is named
    return {
        tp.topic: _refusal(tp.topic, to.topic, others[to]).of(tp)
        for tp, to in sorted(written.items(), reverse=True)
        if to in others
    }


def _refusal(topic: str, to: str, other: str) -> ConfigError:
    """Return the error for a source topic that would be copied to where another mirror copies."""
    return ConfigError(
        f"topic {topic!r} would be copied to {to!r}, which already holds what mirror {other!r}"
        " copied: neither mirror could prove its copies",
        remedy=f"give the copy another name with topics.rename; or pin it to a partition, such as"
        f" '{to}:0', if both belong there; if {other!r} is the former name of this mirror, take it"
        " again",
    )


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


def passed(
    mirror: str,
    source: ClusterClient,
    destination_id: str,
    topics: Sequence[str],
    *,
    settled: bool,
) -> dict[str, tuple[Hop, ...]]:
    """Return source topic -> the hops by which copies came to it, of those that hold copies.

    Args:
        source: where other mirrors may copy to.
        destination_id: of the cluster that this mirror copies to.
        settled: as of `checkpoint.read_all_mirrors`.
    """
    try:
        checkpoints = checkpoint.read_all_mirrors(source, settled=settled)
    except PermissionDeniedError:
        return {}  # without the permission, nobody knows where topics come from
    # a mirror goes on only after what its own way back has brought home
    others = [
        each for each in checkpoints if not checkpoint.is_way_back(each, mirror, destination_id)
    ]
    return hops.hops_to(source.cluster_id, topics, others)

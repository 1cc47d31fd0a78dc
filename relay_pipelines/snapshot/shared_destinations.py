"""Destination topic-partitions that another mirror, or a replay of it, has copied to.

Neither mirror could prove its copies: the records of the other one are foreign to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import REPLAY
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient, Metadata
from relay_pipelines.protocol.clock import Clock


def other_mirrors(client: ClusterClient, mirror: str, clock: Clock) -> dict[TopicPartition, str]:
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
    ours = mirror.partition(REPLAY)[0]
    found = {
        each.copies: other
        for each in checkpoint.read_all_mirrors(client, clock)
        if each.copies is not None and (other := each.mirror.partition(REPLAY)[0]) != ours
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
    clock: Clock,
) -> dict[str, RelayError]:
    """Return source topic -> why it must not be copied to where another mirror has copied.

    Args:
        client: of the destination.
        at_destination: all its topics.
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
    written = {at: to for at, to in wanted.items() if ends.get(to)}
    others = other_mirrors(client, mirror, clock) if written else {}
    # of several topic-partitions, the first is named
    return {
        at.topic: _refusal(at.topic, to.topic, others[to]).of(at)
        for at, to in sorted(written.items(), reverse=True)
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

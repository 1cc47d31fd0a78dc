"""Destination topic-partitions that another mirror, or a replay of it, has copied to.

Neither mirror could prove its copies: the records of the other one are foreign to it.

Refuses topics that are copies of this mirror, or would become ones, before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from relay_pipelines.errors import ConfigError, PermissionDeniedError, RelayError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.state_table import UnreadableCheckpoint, read_any_state, read_state
from relay_pipelines.model import Cluster, Hop, TopicPartition
from relay_pipelines.plan import hops
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.metadata import Metadata


class Other(NamedTuple):
    """Another mirror whose copies a topic-partition holds, or may hold.

    Args:
        holds: what the topic holds, or may hold, as a part of a sentence.
    """

    mirror: str
    holds: str


def other_mirrors(
    client: ClusterClient, mirror: str, written: Collection[TopicPartition]
) -> dict[TopicPartition, Other]:
    """Return destination topic-partition -> the other mirror whose copies it holds.

    Copies in a topic that was deleted since do not count. A checkpoint of another mirror that
    cannot be read counts for every topic that may hold its copies.

    Args:
        client: of the destination.
        mirror: the own one, or a replay of it.
        written: destination topic-partitions with records of somebody.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    ours = checkpoint.family_of(mirror)
    every = read_any_state(client)
    claims = {
        source_checkpoint.copies: other
        for source_checkpoint in every.checkpoints
        if source_checkpoint.copies is not None
        and (other := checkpoint.family_of(source_checkpoint.mirror)) != ours
    }
    topics = client.metadata(sorted({copies.topic_partition.topic for copies in claims})).topics
    hidden = every.hidden_in(client, {tp.topic for tp in written}, ours)
    maybe = {
        tp: Other(checkpoint.family_of(each.mirror), each.may_be_there)
        for tp in written
        if (each := hidden.get(tp.topic))
    }
    return maybe | {
        copies.topic_partition: Other(other, f"holds what mirror {other!r} copied")
        for copies, other in claims.items()
        if not (known := topics[copies.topic_partition.topic]).error_code
        and copies.topic_id in {"", known.topic_id}
    }


def refusals(
    client: ClusterClient,
    at_destination: Metadata,
    mirror: str,
    new: Mapping[TopicPartition, TopicPartition],
) -> dict[str, RelayError]:
    """Return source topic -> why it must not be copied to where another mirror has copied.

    Args:
        client: of the destination.
        at_destination: its topics that concern the mirror.
        new: source topic-partition -> destination, of those of which nothing was copied.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    led = set(filter(at_destination.has_leader, new.values()))
    ends = client.list_offsets(led, LATEST, READ_UNCOMMITTED) if led else {}
    written = {tp: to for tp, to in new.items() if ends.get(to)}
    others = other_mirrors(client, mirror, written.values()) if written else {}
    # of several topic-partitions, the first is named
    return {
        tp.topic: _refusal(tp.topic, to.topic, others[to]).of(tp)
        for tp, to in sorted(written.items(), reverse=True)
        if to in others
    }


def _refusal(topic: str, to: str, other: Other) -> ConfigError:
    """Return the error for a source topic that would be copied to where another mirror copies."""
    return ConfigError(
        f"topic {topic!r} would be copied to {to!r}, which already {other.holds}: neither mirror"
        " could prove its copies",
        remedy=f"give the copy another name with topics.rename; or pin it to a partition, such as"
        f" '{to}:0', if both belong there; if {other.mirror!r} is the former name of this mirror,"
        " take it again",
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
            f" mirror reads {name!r}, too, because an upstream and the {destination} are the same"
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
) -> tuple[dict[str, tuple[Hop, ...]], dict[str, RelayError]]:
    """Return source topic -> the hops by which copies came to it, of those that hold copies.

    And topics that may hold copies of which nobody can read how they came, with the reason.

    Args:
        source: where other mirrors may copy to.
        destination_id: of the cluster that this mirror copies to.
        settled: as of `read_state`.
    """
    try:
        every = read_state(source, settled=settled)
    except PermissionDeniedError as denied:
        what = f"relay cannot see which topics of the source are copies: {denied.what}"
        return {}, dict.fromkeys(topics, PermissionDeniedError(what, remedy=denied.remedy))
    # a mirror goes on only after what its own way back has brought home
    others = [
        each
        for each in every.checkpoints
        if not checkpoint.is_way_back(each, mirror, destination_id)
    ]
    hidden = every.hidden_in(source, topics)
    unknown = {topic: _unknown_hops(topic, each) for topic, each in hidden.items()}
    return hops.hops_to(source.cluster_id, topics, others), unknown


def _unknown_hops(topic: str, hidden: UnreadableCheckpoint) -> RelayError:
    """Return why a topic is not copied into which a mirror with such a checkpoint may copy."""
    why = hidden.error
    return type(why)(
        f"topic {topic!r} may hold copies of mirror {hidden.mirror!r} that came from the"
        f" destination: at the source, its checkpoint of {hidden.source} cannot be read:"
        f" {why.what}",
        remedy=why.remedy,
    )

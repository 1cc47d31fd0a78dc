"""Topics at the destination: our own two, and those that are mirrored; made where they are missing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from relay_pipelines.copy.transaction import QUARANTINE
from relay_pipelines.errors import DestinationError, RelayError
from relay_pipelines.model import CopyOptions, TimestampType, TopicPartition
from relay_pipelines.protocol.admin import NewTopic, absent, create_topics, grow_topics
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.state import checkpoint, ledger

_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
_QUARANTINE_MESSAGE_BYTES = (
    95 << 20
)  # records that are too large for their topic go there; brokers take requests of 100 MiB
_TIMESTAMP_TYPE = "message.timestamp.type"
_KEEPS_TIMESTAMPS = {_TIMESTAMP_TYPE: str(TimestampType.CREATE_TIME)}
_NEAREST = 3
_OWN = (
    NewTopic(checkpoint.TOPIC, checkpoint.PARTITIONS, checkpoint.CONFIGS),
    NewTopic(ledger.TOPIC, checkpoint.PARTITIONS, ledger.CONFIGS),
)


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a destination topic takes."""

    max_message_bytes: int
    timestamp_type: TimestampType


def missing(snapshot: ClusterSnapshot) -> list[NewTopic]:
    """Return the mirrored topics to be created, with the partitions they need and the configuration that the source sets.

    Where several source topics share one, the configuration is that of the first. A quarantine
    keeps what it has until somebody has looked at it, however old the records are.
    """
    return [
        NewTopic(destination, count, _configs(snapshot, destination))
        for destination, count in snapshot.partitions_needed().items()
        if destination not in snapshot.destination_topics
    ]


def _configs(snapshot: ClusterSnapshot, destination: str) -> dict[str, str]:
    source = snapshot.first_sources[destination]
    if destination != snapshot.destinations[source]:
        return {
            **_KEEPS_TIMESTAMPS,
            "retention.ms": "-1",
            "max.message.bytes": str(_QUARANTINE_MESSAGE_BYTES),
        }
    followed = snapshot.source_configs[source]
    # said explicitly, as the destination's brokers may stamp by default; who lists the key wants
    # the source's
    own = {} if _TIMESTAMP_TYPE in followed else _KEEPS_TIMESTAMPS
    return {**own, **{key: one.value for key, one in followed.items() if not one.is_default}}


def needed(snapshot: ClusterSnapshot) -> list[NewTopic]:
    """Return the topics that a run makes sure of: our own two, and those of the mirror that nobody has seen yet."""
    new = missing(snapshot)
    return [*_OWN, *new] if new or not snapshot.checkpoint_ends else []


def to_grow(snapshot: ClusterSnapshot) -> dict[str, int]:
    """Return the destination topics that follow their sources, which have grown, and how many partitions they need.

    Only topics that this mirror has copied to before: others are somebody's own.
    """
    ours = snapshot.copied_to
    return {
        topic: count
        for topic, count in _short(snapshot).items()
        if topic.removesuffix(QUARANTINE) in ours
    }


def too_few_partitions(snapshot: ClusterSnapshot) -> list[str]:
    """Return the other destination topics that have fewer partitions than their source: records would have nowhere to go."""
    growing = to_grow(snapshot)
    return [topic for topic in _short(snapshot) if topic not in growing]


def _short(snapshot: ClusterSnapshot) -> dict[str, int]:
    there = snapshot.destination_topics
    return {
        topic: count
        for topic, count in snapshot.partitions_needed().items()
        if topic in there and len(there[topic].leaders) < count
    }


def create(
    snapshot: ClusterSnapshot, replication_factor: int | None, options: CopyOptions, clock: Clock
) -> None:
    """Create what is missing, grow what has to follow, and wait until every new topic-partition has a leader that serves.

    Raises:
        RelayError: the destination refuses, or a topic has too few partitions.
    """
    for topic in too_few_partitions(snapshot):
        raise RelayError(
            f"topic {topic!r} has fewer partitions at the destination than its records need",
            remedy=f"add partitions to it: kafka-topics.sh --alter --topic {topic} --partitions N",
        )
    wanted, growing = needed(snapshot), to_grow(snapshot)
    if wanted:
        _create(snapshot, wanted, replication_factor, options, clock)
    if growing:
        with ClusterClient(
            snapshot.destination,
            DestinationError,
            f"relay-{snapshot.mirror}",
            options.request_timeout_ms,
        ) as client:
            retry(lambda: grow_topics(client, growing), snapshot.mirror, options, clock, client)
            _wait_for_leaders(client, growing, snapshot.mirror, options, clock)


def create_own(
    snapshot: ClusterSnapshot, replication_factor: int | None, options: CopyOptions, clock: Clock
) -> None:
    """Create the topics of checkpoints and ledger, where they are missing."""
    if not snapshot.checkpoint_ends:
        _create(snapshot, _OWN, replication_factor, options, clock)


def limits(snapshot: ClusterSnapshot, source_topic: str) -> TopicLimits:
    """Return what the destination topic takes: as it is, or as it will be created."""
    destination = snapshot.destinations[source_topic]
    configs = (
        snapshot.destination_configs.get(destination)
        or snapshot.source_configs[snapshot.first_sources[destination]]
    )
    size, kind = configs.get("max.message.bytes"), configs.get(_TIMESTAMP_TYPE)
    return TopicLimits(
        int(size.value) if size else _DEFAULT_MAX_MESSAGE_BYTES,
        TimestampType(kind.value) if kind else TimestampType.CREATE_TIME,
    )


def conflicts(snapshot: ClusterSnapshot) -> list[str]:
    """Say in words which destination topics would alter the records they are given, and what to do about it."""
    found = []
    for destination in dict.fromkeys(snapshot.destinations.values()):
        there = (
            snapshot.destination_configs.get(destination)
            or snapshot.source_configs[snapshot.first_sources[destination]]
        )
        kind, codec = there.get(_TIMESTAMP_TYPE), there.get("compression.type")
        if kind and kind.value == TimestampType.LOG_APPEND_TIME:
            found.append(
                f"{destination}: message.timestamp.type=LogAppendTime, so the destination sets its own timestamps;"
                " set it to CreateTime to keep those of the source"
            )
        if codec and codec.value != "producer":
            found.append(
                f"{destination}: compression.type={codec.value}, so the destination recompresses batches of other codecs;"
                " set it to producer to keep them as they are"
            )
    return found


def deleted(snapshot: ClusterSnapshot) -> list[str]:
    """Say in words which topics were copied and are gone from the source; at the destination nothing is ever deleted for that."""
    return [
        f"{topic}: it was copied, and node {snapshot.node.name} has no such topic any more, or hides it from the user;"
        f" the copy {destination} stays"
        for topic, destination in snapshot.deleted.items()
    ]


def unseen(snapshot: ClusterSnapshot) -> list[RelayError]:
    """Return an error for each topic that relay.yaml names and the source does not show: nobody would miss it otherwise."""
    return [
        RelayError(
            f"topics.allow names {topic!r}, and node {snapshot.node} shows no such topic",
            remedy=f"{_meant([topic], snapshot)}If it is there, grant the user Describe on it",
        )
        for topic in snapshot.unseen
    ]


def nothing_selected(snapshot: ClusterSnapshot, allow: Sequence[str]) -> list[str]:
    """Say in words that the patterns select no topic of the source, if so: it may not be there yet, or be hidden.

    Args:
        allow: the patterns.
    """
    if snapshot.unseen or any(one.included for one in snapshot.decisions):
        return []
    shown = [one.topic for one in snapshot.decisions if not one.topic.startswith("__")]
    names = [pattern.replace("\\.", ".").replace(".*", "") for pattern in allow]
    what = f"of the {len(shown)} topics that node {snapshot.node} shows, topics.allow and topics.deny leave none"
    return [
        f"no topic is selected: {what}; {_meant(names, snapshot)}If there are more, grant the user Describe on them"
    ]


def _meant(names: Sequence[str], snapshot: ClusterSnapshot) -> str:
    shown = [one.topic for one in snapshot.decisions]
    close = dict.fromkeys(near for name in names for near in difflib.get_close_matches(name, shown))
    return f"did you mean {' or '.join(map(repr, list(close)[:_NEAREST]))}? " if close else ""


def _create(
    snapshot: ClusterSnapshot,
    wanted: Sequence[NewTopic],
    replication_factor: int | None,
    options: CopyOptions,
    clock: Clock,
) -> None:
    with ClusterClient(
        snapshot.destination,
        DestinationError,
        f"relay-{snapshot.mirror}",
        options.request_timeout_ms,
    ) as client:

        def ask() -> None:
            # not those that are there, which the user may not be allowed to create
            create_topics(client, absent(client, wanted), replication_factor)

        retry(ask, snapshot.mirror, options, clock, client)
        _wait_for_leaders(
            client, {one.name: one.partitions for one in wanted}, snapshot.mirror, options, clock
        )


def _wait_for_leaders(
    client: ClusterClient,
    partitions: Mapping[str, int],
    mirror: str,
    options: CopyOptions,
    clock: Clock,
) -> None:
    for topic, count in partitions.items():
        # a broker may be named leader before it knows that it is: an answer to ListOffsets proves
        # that it serves
        ask = partial(
            client.list_offsets,
            [TopicPartition(topic, one) for one in range(count)],
            LATEST,
            READ_COMMITTED,
        )
        retry(ask, mirror, options, clock, client)

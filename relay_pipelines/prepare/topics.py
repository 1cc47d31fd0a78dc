"""Creates the topics that are missing at the destination: the mirrored ones, and our own two."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from relay_pipelines.errors import FencedError, RelayError
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import CreatedRecord, Key, StateKind, state_record
from relay_pipelines.ledger.fencing import decide
from relay_pipelines.model import TimestampType, TopicPartition
from relay_pipelines.plan.owners import start_id
from relay_pipelines.plan.topic_selection import QUARANTINE
from relay_pipelines.protocol.admin import (
    CLEANUP_POLICY,
    NewTopic,
    absent,
    broker_configs,
    compacts,
    create_topics,
    grow_topics,
    topic_configs,
)
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.config_requests import ConfigValue
from relay_pipelines.protocol.metadata import TopicMetadata
from relay_pipelines.protocol.producer import timeout_too_long
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
# for records that are too large for their topic; brokers accept requests of 100 MiB
_QUARANTINE_MESSAGE_BYTES = 95 << 20
_TIMESTAMP_TYPE = "message.timestamp.type"
_KEEP_TIMESTAMPS = {_TIMESTAMP_TYPE: str(TimestampType.CREATE_TIME)}
_MOST_TIMEOUT = "transaction.max.timeout.ms"
_SUGGESTIONS = 3
_ASKED_TOGETHER = 100  # topics whose leaders are waited for together
_OPENING_SECONDS = 0.25  # between two looks while brokers open logs

T = TypeVar("T")

STATE_TOPICS = (
    NewTopic(checkpoint.TOPIC, checkpoint.PARTITIONS, checkpoint.CONFIGS),
    NewTopic(ledger_topic.TOPIC, checkpoint.PARTITIONS, ledger_topic.CONFIGS),
)
"""The topics of the mirrors' state, as they are created."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Which records a destination topic accepts."""

    max_message_bytes: int
    timestamp_type: TimestampType
    requires_keys: bool


def known_keys(client: ClusterClient, snapshot: ClusterSnapshot) -> frozenset[str]:
    """Return the keys of the source's topics that the destination's brokers know, too.

    They show them of the checkpoint topic; none if it does not exist yet.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    if absent(client, STATE_TOPICS[:1]):
        return frozenset()
    keys = {key for configs in snapshot.configs.source.values() for key in configs}
    return frozenset(topic_configs(client, [checkpoint.TOPIC], sorted(keys))[checkpoint.TOPIC])


def missing(snapshot: ClusterSnapshot, known_keys: Collection[str] = frozenset()) -> list[NewTopic]:
    """Return the mirrored topics to create, with their partitions and the source's configuration.

    It is what applies at the source, whoever sets it: the defaults of the destination's brokers
    decide nothing. Defaults of keys that those brokers do not know are left out, of a newer Kafka.
    If several source topics share one, it gets the configuration of the first. A quarantine keeps
    records of any age until an operator has looked at them.

    Args:
        known_keys: as `known_keys` returns them.
    """
    return [
        NewTopic(destination, count, _configs(snapshot, destination, known_keys))
        for destination, count in snapshot.partitions_needed().items()
        if destination not in snapshot.at_destination.topics
    ]


def _configs(
    snapshot: ClusterSnapshot, destination: str, known_keys: Collection[str]
) -> dict[str, str]:
    source = snapshot.first_sources[destination]
    if destination != snapshot.destinations[source]:
        return {
            **_KEEP_TIMESTAMPS,
            CLEANUP_POLICY: "delete",
            "retention.ms": "-1",
            "max.message.bytes": str(_QUARANTINE_MESSAGE_BYTES),
        }
    configs = snapshot.configs.source[source]
    # explicit, as the brokers' default may be LogAppendTime; `topics.config_keys` takes precedence
    ours = {} if _TIMESTAMP_TYPE in configs else _KEEP_TIMESTAMPS
    return {
        **ours,
        **{
            key: config.value
            for key, config in configs.items()
            if key in known_keys or not config.is_default
        },
    }


def to_create(
    snapshot: ClusterSnapshot, known_keys: Collection[str] = frozenset()
) -> list[NewTopic]:
    """Return the topics that a run creates if they do not exist: the missing ones and our own."""
    new = missing(snapshot, known_keys)
    return [*STATE_TOPICS, *new] if new or not snapshot.state.ends else []


def to_grow(snapshot: ClusterSnapshot) -> dict[str, int]:
    """Return the destination topics that need more partitions, and how many in all.

    Only topics that this mirror has copied to or created: other topics are never altered.
    """
    return {
        topic: count
        for topic, count in _too_small(snapshot).items()
        if topic.removesuffix(QUARANTINE) in snapshot.copied_to
        or snapshot.at_destination.topics[topic].topic_id == snapshot.state.created.get(topic)
    }


def more_partitions(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield which destination topics have more partitions than their sources.

    A copy is as it should be. But producers that move to it choose the partition of a key among
    more: another one than that which has the earlier records of the key.
    """
    for source, accepted in snapshot.accepted_topics.items():
        topic, pinned = accepted.target
        if pinned is not None or topic not in snapshot.at_destination.topics:
            continue
        there = len(snapshot.at_destination.topics[topic].leaders)
        here = len(accepted.metadata.leaders)
        if there > here:
            yield warning(
                Kind.MORE_PARTITIONS,
                topic,
                f"it has {there} partitions, and its source {here}: producers that move there would"
                " write a key to another partition than its earlier records",
                "copy to a topic with as many (topics.rename), or, before producers move, add"
                f" partitions at the source: kafka-topics.sh --alter --topic {source} --partitions"
                f" {there}",
            )


def too_small(snapshot: ClusterSnapshot) -> dict[str, RelayError]:
    """Return why a run refuses topics with too few partitions, other than those that it grows."""
    growing = to_grow(snapshot)
    return {
        topic: RelayError(
            f"topic {topic!r} has fewer partitions at the destination than its records need",
            remedy=f"add partitions to it: kafka-topics.sh --alter --topic {topic} --partitions N",
        )
        for topic in _too_small(snapshot)
        if topic not in growing
    }


def _too_small(snapshot: ClusterSnapshot) -> dict[str, int]:
    existing = snapshot.at_destination.topics
    return {
        topic: count
        for topic, count in snapshot.partitions_needed().items()
        if topic in existing and len(existing[topic].leaders) < count
    }


def create(client: ClusterClient, snapshot: ClusterSnapshot) -> dict[str, RelayError]:
    """Create missing topics, add partitions, and wait until every new one has a serving leader.

    Returns:
        the source topics that cannot be copied, and why: their destination topics have too few
            partitions, or the destination refuses to change or create them.

    Raises:
        RelayError: the destination does not answer, or refuses the topics of the mirror's state.
    """
    refused = too_small(snapshot)
    growing = to_grow(snapshot)
    if to_create(snapshot):
        factor = snapshot.sides.mirror.destination.replication_factor
        create_state(client, factor)
        known = client.retry(partial(known_keys, client, snapshot))
        refused |= _create_mirrored(client, missing(snapshot, known), factor)
    if growing:
        refused |= _grow(client, growing)
    return by_source(snapshot, refused)


def by_source(
    snapshot: ClusterSnapshot, refused: Mapping[str, RelayError]
) -> dict[str, RelayError]:
    """Return the errors of destination topics as errors of their source topics."""
    return {
        source: refused[topic].of(TopicPartition(source, 0))
        for source, to in snapshot.targets.items()
        for topic in (to.topic, to.topic + QUARANTINE)
        if topic in refused
    }


def create_state_topics(client: ClusterClient, snapshot: ClusterSnapshot) -> None:
    """Create the checkpoint topic and the ledger if the snapshot has seen no checkpoint topic.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    if not snapshot.state.ends:
        create_state(client, snapshot.sides.mirror.destination.replication_factor)


def limits(snapshot: ClusterSnapshot, source_topic: str) -> TopicLimits:
    """Return the limits of the destination topic, as it is or as it will be created."""
    destination = snapshot.destinations[source_topic]
    configs = _configs_at_destination(snapshot, destination)
    size, kind, cleanup = map(configs.get, ("max.message.bytes", _TIMESTAMP_TYPE, CLEANUP_POLICY))
    return TopicLimits(
        int(size.value) if size else _DEFAULT_MAX_MESSAGE_BYTES,
        TimestampType(kind.value) if kind else TimestampType.CREATE_TIME,
        requires_keys=compacts(cleanup.value if cleanup else ""),
    )


def conflicts(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield which destination topics would alter the records they get."""
    accepted = snapshot.accepted_topics.values()
    for destination in dict.fromkeys(topic.target.topic for topic in accepted):
        configs = _configs_at_destination(snapshot, destination)
        kind, codec = configs.get(_TIMESTAMP_TYPE), configs.get("compression.type")
        if kind and kind.value == TimestampType.LOG_APPEND_TIME:
            yield warning(
                Kind.ALTERED_RECORDS,
                destination,
                "message.timestamp.type=LogAppendTime, so the destination sets its own timestamps",
                "set it to CreateTime to keep those of the source",
            )
        if codec and codec.value != "producer":
            yield warning(
                Kind.ALTERED_RECORDS,
                destination,
                f"compression.type={codec.value}, so the destination recompresses batches of other"
                " codecs",
                "set it to producer to keep them as they are",
            )


def _configs_at_destination(
    snapshot: ClusterSnapshot, destination: str
) -> Mapping[str, ConfigValue]:
    return (
        snapshot.configs.destination.get(destination)
        or snapshot.configs.source[snapshot.first_sources[destination]]
    )


def deleted(snapshot: ClusterSnapshot) -> list[Finding]:
    """Return which topics the source no longer has; nothing is deleted at the destination."""
    gone = f"upstream {snapshot.upstream.name} no longer has it"
    copied = "delete the copy when it is no longer needed, and add the topic to topics.deny"
    return [
        warning(
            Kind.TOPIC_DELETED,
            topic,
            f"it was copied, and {gone}; the copy {destination} is kept"
            if destination
            else f"it was selected, and {gone}; nothing of it was copied",
            copied if destination else "add the topic to topics.deny",
        )
        for topic, destination in snapshot.selected.deleted.items()
    ]


def unseen(snapshot: ClusterSnapshot) -> list[RelayError]:
    """Return an error for each topic that relay.yaml spells out and the source does not have."""
    return [
        RelayError(
            f"topics.allow names {topic!r}, and upstream {snapshot.upstream} has no such topic",
            remedy=f"{_did_you_mean([topic], snapshot)}create it, or remove it from topics.allow",
        )
        for topic in snapshot.selected.unseen
    ]


def nothing_selected(snapshot: ClusterSnapshot) -> list[Finding]:
    """Return a finding if no topic is selected: it may not exist yet, or be hidden."""
    selected = snapshot.selected
    if selected.unseen or any(decision.included for decision in selected.decisions):
        return []
    shown = selected.shown
    allow = snapshot.sides.mirror.topics.allow
    names = [pattern.replace("\\.", ".").replace(".*", "") for pattern in allow]
    what = f"no topic is selected: upstream {snapshot.upstream} shows no topic"
    if shown:
        what = (
            "no topic is selected: topics.allow and topics.deny select none of the"
            f" {len(shown)} topics that upstream {snapshot.upstream} shows"
        )
    remedy = f"{_did_you_mean(names, snapshot)}if there are more, grant the user Describe on them"
    return [warning(Kind.NOTHING_SELECTED, "", what, remedy)]


def _did_you_mean(names: Sequence[str], snapshot: ClusterSnapshot) -> str:
    shown = [decision.topic for decision in snapshot.selected.decisions]
    close = dict.fromkeys(near for name in names for near in difflib.get_close_matches(name, shown))
    suggestions = " or ".join(map(repr, list(close)[:_SUGGESTIONS]))
    return f"did you mean {suggestions}? " if close else ""


def require_transaction_timeout(client: ClusterClient) -> None:
    """Refuse a transaction timeout that the destination would refuse once topics are created.

    Who may not see the configuration of brokers is told then.

    Raises:
        ConfigError: a broker allows less.
        RelayError: the destination does not answer.
    """
    for configs in broker_configs(client, [_MOST_TIMEOUT]).values():
        most = configs.get(_MOST_TIMEOUT)
        if most and int(most.value) < client.options.transaction_timeout_ms:
            raise timeout_too_long(client, most.value)


def create_state(client: ClusterClient, replication_factor: int | None) -> None:
    """Create the topics of the mirror's state, before others whose logs a broker opens first.

    The broker creates `__transaction_state` when somebody first looks for a coordinator.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    client.retry(partial(require_transaction_timeout, client))
    with suppress(RelayError):  # whoever needs the coordinator looks again, and waits for it
        client.coordinator(start_id(client.mirror))
    _, refused = _create(client, STATE_TOPICS, replication_factor)
    for error in refused.values():
        raise error
    wait_for_leaders(client, {topic.name: topic.partitions for topic in STATE_TOPICS})


def _create_mirrored(
    client: ClusterClient, topics: Sequence[NewTopic], replication_factor: int | None
) -> dict[str, RelayError]:
    """Create topics; note that they are ours while the brokers open their logs."""
    created, refused = _create(client, topics, replication_factor)
    if ours := created - refused.keys():
        client.retry(partial(_note_created, client, ours), also=(FencedError,))
    wait_for_leaders(
        client, {topic.name: topic.partitions for topic in topics if topic.name not in refused}
    )
    return refused


def _create(
    client: ClusterClient, topics: Sequence[NewTopic], replication_factor: int | None
) -> tuple[set[str], dict[str, RelayError]]:
    """Create topics; return those that did not exist, and why some are refused."""
    created: set[str] = set()

    def create_some(some: Mapping[str, NewTopic]) -> None:
        # not those that exist: the user may not be allowed to create them
        new = absent(client, list(some.values()))
        try:
            made = create_topics(client, new, replication_factor)
        except RelayError:  # the answer is lost, or refuses some: what is there then is ours
            created.update(topic.name for topic in new)
            raise
        created.update(made)
        # before Kafka 4, a topic that is being deleted is still there for the controller alone
        _require_shown(client, {topic.name for topic in new}.difference(made))

    refused = client.retry_each(create_some, {topic.name: topic for topic in topics})
    return created, refused


def _note_created(client: ClusterClient, topics: Collection[str]) -> None:
    """Commit which topics we have created, so that they may grow before anything was copied."""
    records = []
    for name, topic in _require_shown(client, topics).items():
        if topic.topic_id:  # brokers before 2.8 have none
            key, now_ms = Key(client.mirror, StateKind.CREATED, name), client.clock.now_ms()
            created = CreatedRecord(client.mirror, name, topic.topic_id, now_ms)
            records.append(state_record(key, created, now_ms))
    if records:
        decide(client, start_id(client.mirror), lambda: records)


def _require_shown(client: ClusterClient, topics: Collection[str]) -> Mapping[str, TopicMetadata]:
    """Return what a broker knows of topics; raise if it has not heard of one yet."""
    shown = client.metadata(sorted(topics)).topics if topics else {}
    for name, topic in shown.items():
        if topic.error_code:
            doing, permission = f"Metadata of topic {name}", f"Describe on topic {name}"
            raise client.failure(topic.error_code, doing, permission=permission)
    return shown


def _grow(client: ClusterClient, growing: Mapping[str, int]) -> dict[str, RelayError]:
    refused = client.retry_each(partial(grow_topics, client), growing)
    grown = {topic: count for topic, count in growing.items() if topic not in refused}
    wait_for_leaders(client, grown)
    return refused


def wait_for_leaders(client: ClusterClient, partitions: Mapping[str, int]) -> None:
    """Wait until leaders serve all of them, for as long as brokers go on to open logs.

    They open logs in an order of their own, so those that are asked about first stand for the rest.
    """
    topics = iter(partitions.items())
    while some := list(islice(topics, _ASKED_TOGETHER)):
        _wait_for_leaders_of(client, some)


def _wait_for_leaders_of(client: ClusterClient, partitions: Iterable[tuple[str, int]]) -> None:
    waiting = [
        TopicPartition(topic, number) for topic, count in partitions for number in range(count)
    ]
    moved_at = client.clock.monotonic()

    def require_leaders() -> None:
        nonlocal waiting, moved_at
        while errors := client.unserved(waiting):
            if len(errors) == len(waiting):
                raise next(iter(errors.values()))
            waiting, moved_at = list(errors), client.clock.monotonic()
            client.clock.sleep(_OPENING_SECONDS)

    client.retry(require_leaders, progress_at=lambda: moved_at)

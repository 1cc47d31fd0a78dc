"""What both clusters say before a run, read once. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random

from relay_pipelines.copy import checkpoint as checkpoints
from relay_pipelines.copy.clock import Clock
from relay_pipelines.driver import nodes
from relay_pipelines.errors import ConfigError, DestinationError, RetriableError, SourceError
from relay_pipelines.model import Checkpoint, Cluster, TopicPartition
from relay_pipelines.plan.topics import TopicDecision, destinations, select
from relay_pipelines.plan.windows import Position
from relay_pipelines.settings import Mirror
from relay_pipelines.wire.admin import ConfigValue, sizes_on_disk, topic_configs
from relay_pipelines.wire.cluster import EARLIEST, LATEST, READ_COMMITTED, ClusterClient, TopicMetadata

KEPT_CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "retention.bytes",
    "retention.ms",
)
_ATTEMPTS = 3

Belongs = Callable[[str], bool]
Configs = Mapping[str, Mapping[str, ConfigValue]]


@dataclass(frozen=True, slots=True)
class Survey:
    """What both clusters say.

    Args:
        node: the source node that was asked, and will be read.
        decisions: on every topic of the source.
        destinations: source topic -> destination topic, of the included ones.
        positions: every topic-partition of the included topics.
        checkpoint_ends: how far each partition of the checkpoint topic was read; empty if it does not exist yet.
        source_topics, destination_topics: metadata by name; of the destination only those that exist.
        source_configs, destination_configs: the configurations that a copy depends on; empty if nobody asked for them.
        sizes_bytes: on the source's disk, where it tells.
        node_why: why this node is read.
        other_nodes: those to go on with when it fails, in order.
    """

    mirror: str
    node: Cluster
    destination: Cluster
    decisions: Sequence[TopicDecision]
    destinations: Mapping[str, str]
    positions: Sequence[Position]
    checkpoints: Mapping[TopicPartition, Checkpoint]
    checkpoint_ends: Mapping[TopicPartition, int]
    source_topics: Mapping[str, TopicMetadata]
    destination_topics: Mapping[str, TopicMetadata]
    source_configs: Configs
    destination_configs: Configs
    sizes_bytes: Mapping[TopicPartition, int]
    node_why: str = ""
    other_nodes: tuple[Cluster, ...] = ()


def everything(_topic: str) -> bool:
    """Answer a survey of all topics."""
    return True


def take(
    name: str,
    mirror: Mirror,
    clock: Clock,
    only_topic: str | None = None,
    *,
    belongs: Belongs = everything,
    first_node: int = 0,
    configs: bool = True,
) -> Survey:
    """Ask the first source node that answers, and the destination.

    Args:
        only_topic: leave all other topics alone.
        belongs: leave all topics alone for which it says no.
        first_node: which one to ask first, counted around the source's nodes; the others follow in order.
        configs: whether to ask for the topics' configurations, the dearest question: only those who copy need them.

    Raises:
        ConfigError: source and destination are the same topic of the same cluster, or `only_topic` is not mirrored.
        RelayError: no node answers, or the destination does not; the user lacks a permission.
    """
    for attempt in Retrying(
        retry=retry_if_exception_type(RetriableError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(0.1, max=1.0) + wait_random(0, 0.1),
        sleep=clock.sleep,
        reraise=True,
    ):
        with attempt:
            return _take(name, mirror, clock, only_topic, belongs, first_node, configs=configs)
    raise AssertionError("Retrying returns or raises")


def checkpoints_of(name: str, mirror: Mirror, clock: Clock) -> dict[TopicPartition, Checkpoint]:
    """Read a mirror's checkpoints alone.

    Raises:
        RelayError: the destination does not answer.
    """
    timeout_ms = mirror.copy_options.request_timeout_ms
    with ClusterClient(mirror.destination_cluster, DestinationError, f"relay-{name}", timeout_ms) as destination:
        exist = not destination.metadata([checkpoints.TOPIC]).topics[checkpoints.TOPIC].error_code
        return _checkpoints(destination, name, clock, exist=exist)[0]


def _take(
    name: str, mirror: Mirror, clock: Clock, only_topic: str | None, belongs: Belongs, first_node: int, *, configs: bool
) -> Survey:
    timeout_ms = mirror.copy_options.request_timeout_ms
    with ClusterClient(mirror.destination_cluster, DestinationError, f"relay-{name}", timeout_ms) as destination:
        at_destination = destination.metadata()
        found, ends = _checkpoints(destination, name, clock, exist=checkpoints.TOPIC in at_destination.topics)
        reading = nodes.to_read(name, mirror, found, clock, first_node)
        with ClusterClient(reading.node, SourceError, f"relay-{name}", timeout_ms) as source:
            at_source = source.metadata()
            decisions = select(at_source.topics, mirror.topics.allow, mirror.topics.deny)
            included = [one.topic for one in decisions if one.included and only_topic in {None, one.topic} and belongs(one.topic)]
            if only_topic is not None and not included:
                raise _not_mirrored(only_topic, decisions)
            # of all topics, as those of other lanes and runs must not land on the same ones
            everywhere = destinations([one.topic for one in decisions if one.included], mirror.topics.rename)
            renamed = {topic: everywhere[topic] for topic in included}
            if at_source.cluster_id == at_destination.cluster_id:
                _refuse_onto_itself(source.cluster, renamed)
            existing = [topic for topic in renamed.values() if topic in at_destination.topics]
            return Survey(
                mirror=name,
                node=source.cluster,
                destination=destination.cluster,
                decisions=decisions,
                destinations=renamed,
                positions=_positions(source, included, found),
                checkpoints=found,
                checkpoint_ends=ends,
                source_topics={topic: at_source.topics[topic] for topic in included},
                destination_topics={topic: at_destination.topics[topic] for topic in existing},
                source_configs=topic_configs(source, included, KEPT_CONFIGS) if configs else {},
                destination_configs=topic_configs(destination, existing, KEPT_CONFIGS) if configs else {},
                sizes_bytes=sizes_on_disk(source, included),
                node_why=reading.why,
                other_nodes=reading.others,
            )


def _positions(source: ClusterClient, topics: Sequence[str], found: Mapping[TopicPartition, Checkpoint]) -> list[Position]:
    wanted = [one for topic in topics for one in source.topic(topic).topic_partitions]
    low = source.list_offsets(wanted, EARLIEST, READ_COMMITTED)
    end = source.list_offsets(wanted, LATEST, READ_COMMITTED)
    return [_position(source, one, low[one], end[one], found.get(one)) for one in wanted]


def _position(source: ClusterClient, at: TopicPartition, low: int, end: int, checkpoint: Checkpoint | None) -> Position:
    if checkpoint is None:
        return Position(at, low, end)
    # brokers before Kafka 2.8 tell no topic ids; identical nodes have different ones
    ids = checkpoint.topic_ids.get(source.cluster.name), source.topic(at.topic).topic_id
    return Position(at, low, end, checkpoint.next_offset, recreated=all(ids) and ids[0] != ids[1])


def _checkpoints(
    destination: ClusterClient, name: str, clock: Clock, *, exist: bool
) -> tuple[dict[TopicPartition, Checkpoint], dict[TopicPartition, int]]:
    return checkpoints.read_all(destination, name, clock) if exist else ({}, {})


def _refuse_onto_itself(cluster: Cluster, renamed: Mapping[str, str]) -> None:
    same = [topic for topic, destination in renamed.items() if topic == destination]
    if same:
        raise ConfigError(
            f"source node {cluster} is the destination itself, and topic {same[0]!r} would be copied onto itself",
            remedy="set topics.rename so that the copies get names of their own, or correct bootstrap_servers",
        )


def _not_mirrored(topic: str, decisions: Sequence[TopicDecision]) -> ConfigError:
    why = next((one.why for one in decisions if one.topic == topic), "the source has no such topic")
    return ConfigError(f"topic {topic!r} is not mirrored: {why}", remedy="see `relay plan` for every topic and why")

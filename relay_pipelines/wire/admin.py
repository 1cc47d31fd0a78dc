"""What an administrator asks a cluster: topic configurations, new topics, sizes on disk. On the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest, DescribeLogDirsRequest

from relay_pipelines.errors import PermissionDeniedError
from relay_pipelines.model import TopicPartition
from relay_pipelines.wire import failures
from relay_pipelines.wire.cluster import ClusterClient

_TOPIC = 2
_DEFAULT_CONFIG = 5
_BROKER_DEFAULT = -1
_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A topic's configuration value; `is_default` if neither topic nor broker sets it."""

    value: str
    is_default: bool


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def topic_configs(client: ClusterClient, topics: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, ConfigValue]]:
    """Return the effective configuration of each topic; keys that the broker does not know are left out.

    Raises:
        PermissionDeniedError: the user may not describe them.
    """
    configs: dict[str, dict[str, ConfigValue]] = {}
    resource = DescribeConfigsRequest.DescribeConfigsResource
    for first in range(0, len(topics), _PER_REQUEST):
        resources = [
            resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=list(keys))
            for topic in topics[first : first + _PER_REQUEST]
        ]
        request = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
        for result in client.call_any(request, 2).results:
            if result.error_code != failures.NONE:
                raise client.failure(result.error_code, f"DescribeConfigs of topic {result.resource_name}")
            configs[result.resource_name] = {
                one.name: ConfigValue(one.value, one.config_source == _DEFAULT_CONFIG)
                for one in result.configs
                if one.value is not None
            }
    return configs


def create_topics(client: ClusterClient, topics: Sequence[NewTopic], replication_factor: int | None) -> None:
    """Create topics; one that exists already is left as it is.

    Args:
        replication_factor: None for the broker's default (Kafka 2.4, KIP-464).

    Raises:
        PermissionDeniedError: the user may not create them.
        RelayError: the cluster refuses one, by policy or for lack of brokers.
    """
    if not topics:
        return
    creatable = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            creatable(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=replication_factor or _BROKER_DEFAULT,
                assignments=[],
                configs=[creatable.CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
            )
            for topic in topics
        ],
        timeout_ms=client.timeout_ms,
        validate_only=False,
    )
    _raise_for(client, client.call_any(request, 4).topics, "CreateTopics", tolerated=failures.TOPIC_ALREADY_EXISTS)


def grow_topics(client: ClusterClient, partitions: Mapping[str, int]) -> None:
    """Add partitions to topics until they have so many.

    Raises:
        PermissionDeniedError: the user may not alter them.
        RelayError: the cluster refuses, by policy or because a topic has more already.
    """
    if not partitions:
        return
    wanted = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in partitions.items()
    ]
    request = CreatePartitionsRequest(topics=wanted, timeout_ms=client.timeout_ms, validate_only=False)
    _raise_for(client, client.call_any(request, 1).results, "CreatePartitions")


def _raise_for(client: ClusterClient, results: Iterable[Any], doing: str, tolerated: int = failures.NONE) -> None:
    """Raise the first error among the results per topic, with what the broker says of it."""
    for result in results:
        if result.error_code not in {failures.NONE, tolerated}:
            raise failures.failure(
                result.error_code,
                f"{doing} of {result.name}",
                at=str(client.cluster),
                retriable=client.retriable,
                detail=result.error_message or "",
            )


def sizes_on_disk(client: ClusterClient, topics: Sequence[str]) -> dict[TopicPartition, int]:
    """Return bytes on the leader's disk per topic-partition; empty if the user may not know."""
    by_leader: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name in topics:
        for partition, leader in client.topic(name).leaders.items():
            by_leader[leader][name].append(partition)
    sizes: dict[TopicPartition, int] = {}
    describable = DescribeLogDirsRequest.DescribableLogDirTopic
    for broker_id, names in by_leader.items():
        request = DescribeLogDirsRequest(topics=[describable(topic=name, partitions=these) for name, these in names.items()])
        try:
            answer = client.call(broker_id, request, 1)
        except PermissionDeniedError:
            return {}
        for folder in answer.results:
            for topic in folder.topics:
                sizes |= {TopicPartition(topic.name, one.partition_index): one.partition_size for one in topic.partitions}
    return sizes

"""What an administrator asks a cluster: topic configurations, new topics, sizes on disk. On the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.admin import (
    ACLOperation,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from relay_pipelines.errors import PermissionDeniedError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import error_codes
from relay_pipelines.protocol.client import ClusterClient

_TOPIC = 2
_TOPIC_CONFIG = 1
_DEFAULT_CONFIG = 5
_SET = 0
_DELETE = 1
_BROKER_DEFAULT = -1
_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A topic's configuration value.

    Args:
        is_default: neither the topic nor a broker sets it.
        is_own: the topic itself sets it.
    """

    value: str
    is_default: bool
    is_own: bool


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def topic_configs(
    client: ClusterClient, topics: Sequence[str], keys: Sequence[str]
) -> dict[str, dict[str, ConfigValue]]:
    """Return the effective configuration of each topic; keys that the broker does not know are left out.

    Raises:
        PermissionDeniedError: the user may not describe them.
    """
    configs: dict[str, dict[str, ConfigValue]] = {topic: {} for topic in topics}
    if not keys:
        return configs  # the protocol takes no keys for all of them
    resource = DescribeConfigsRequest.DescribeConfigsResource
    for first in range(0, len(topics), _PER_REQUEST):
        resources = [
            resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=list(keys))
            for topic in topics[first : first + _PER_REQUEST]
        ]
        request = DescribeConfigsRequest(
            resources=resources, include_synonyms=False, include_documentation=False
        )
        for result in client.call_any(request, 2).results:
            if result.error_code != error_codes.NONE:
                raise client.failure(
                    result.error_code, f"DescribeConfigs of topic {result.resource_name}"
                )
            configs[result.resource_name] = {
                one.name: ConfigValue(
                    one.value,
                    one.config_source == _DEFAULT_CONFIG,
                    one.config_source == _TOPIC_CONFIG,
                )
                for one in result.configs
                if one.value is not None
            }
    return configs


def absent(client: ClusterClient, topics: Sequence[NewTopic]) -> list[NewTopic]:
    """Return those that do not exist, or that the user may not see."""
    there = client.metadata([topic.name for topic in topics]).topics if topics else {}
    return [topic for topic in topics if there[topic.name].error_code]


def unreadable(client: ClusterClient, topics: Collection[str]) -> list[str]:
    """Return the topics that exist and that the user may not read, as far as the broker tells (KIP-430)."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=True,
    )
    return [
        topic.name
        for topic in client.call_any(request, 8).topics
        if not topic.error_code
        and topic.authorized_operations
        and ACLOperation.READ not in topic.authorized_operations
    ]


def create_topics(
    client: ClusterClient,
    topics: Sequence[NewTopic],
    replication_factor: int | None,
    *,
    validate_only: bool = False,
) -> None:
    """Create topics; one that exists already is left as it is.

    Args:
        replication_factor: None for the broker's default (Kafka 2.4, KIP-464).
        validate_only: only find out whether they could be.

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
                configs=[
                    creatable.CreatableTopicConfig(name=key, value=value)
                    for key, value in topic.configs.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=client.timeout_ms,
        validate_only=validate_only,
    )
    answers = client.call_any(request, 4).topics
    permission = "Create on the topic or the cluster"
    _raise_for(
        client, answers, "CreateTopics", permission, tolerated=error_codes.TOPIC_ALREADY_EXISTS
    )


def grow_topics(
    client: ClusterClient, partitions: Mapping[str, int], *, validate_only: bool = False
) -> None:
    """Add partitions to topics until they have so many; one that has as many, or more, is left as it is.

    Args:
        validate_only: only find out whether they could be added.

    Raises:
        PermissionDeniedError: the user may not alter them.
        RelayError: the cluster refuses, by policy for instance.
    """
    if not partitions:
        return
    wanted = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in partitions.items()
    ]
    request = CreatePartitionsRequest(
        topics=wanted, timeout_ms=client.timeout_ms, validate_only=validate_only
    )
    results = client.call_any(request, 1).results
    _raise_for(
        client,
        results,
        "CreatePartitions",
        "Alter on the topic",
        tolerated=error_codes.INVALID_PARTITIONS,
    )


def alter_topic_configs(
    client: ClusterClient,
    changes: Mapping[str, Mapping[str, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Set keys of topics, and leave their other keys alone (KIP-339).

    Args:
        changes: topic -> key -> value; None takes the key off the topic, so that the broker's own
        value holds.
        validate_only: only find out whether they could be set.

    Raises:
        PermissionDeniedError: the user may not alter them.
        RelayError: the cluster refuses a value, or has a policy against it.
    """
    if not changes:
        return
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=_TOPIC,
                resource_name=topic,
                configs=[
                    resource.AlterableConfig(
                        name=key, config_operation=_DELETE if value is None else _SET, value=value
                    )
                    for key, value in keys.items()
                ],
            )
            for topic, keys in changes.items()
        ],
        validate_only=validate_only,
    )
    for result in client.call_any(request, 1).responses:
        if result.error_code != error_codes.NONE:
            raise error_codes.failure(
                result.error_code,
                f"IncrementalAlterConfigs of topic {result.resource_name}",
                at=str(client.cluster),
                retriable=client.retriable,
                detail=result.error_message or "",
                permission=f"AlterConfigs on topic {result.resource_name}",
            )


def _raise_for(
    client: ClusterClient,
    results: Iterable[Any],
    doing: str,
    permission: str,
    tolerated: int = error_codes.NONE,
) -> None:
    """Raise the first error among the results per topic, with what the broker says of it."""
    for result in results:
        if result.error_code not in {error_codes.NONE, tolerated}:
            raise error_codes.failure(
                result.error_code,
                f"{doing} of {result.name}",
                at=str(client.cluster),
                retriable=client.retriable,
                detail=result.error_message or "",
                permission=permission,
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
        request = DescribeLogDirsRequest(
            topics=[describable(topic=name, partitions=these) for name, these in names.items()]
        )
        try:
            answer = client.call(broker_id, request, 1)
        except PermissionDeniedError:
            return {}
        for folder in answer.results:
            for topic in folder.topics:
                sizes |= {
                    TopicPartition(topic.name, one.partition_index): one.partition_size
                    for one in topic.partitions
                }
    return sizes

"""Topics: their configurations and sizes, creating them and growing them. On the driver.

Access control lists of topics: what a cluster has, and adding to it. On the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    CreateAclsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteAclsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from relay_pipelines.errors import PermissionDeniedError, RelayError
from relay_pipelines.model import Acl, Operation, Permission, TopicPartition
from relay_pipelines.protocol import config_requests, error_codes
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.config_requests import ConfigValue

CLEANUP_POLICY = "cleanup.policy"
RETENTIONS = ("retention.ms", "retention.bytes")
"""The keys of what deletes a topic's records; -1 keeps them for ever."""

# codes of Kafka's protocol
_TOPIC = 2
_SET = 0
_BROKER_DEFAULT = -1
_TOPICS_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def topic_configs(
    client: ClusterClient, topics: Sequence[str], keys: Sequence[str]
) -> dict[str, Mapping[str, ConfigValue]]:
    """Return the effective configuration of each topic, without keys that the broker does not know.

    Raises:
        PermissionDeniedError: the user may not describe them.
    """
    configs, refused = readable_topic_configs(client, topics, keys)
    for error in refused.values():
        raise error
    return configs


def compacts(cleanup_policy: str) -> bool:
    """Whether a cleaner may remove records of a topic for later ones of their keys.

    Args:
        cleanup_policy: of its configuration; empty if the broker does not know the key.
    """
    return "compact" in cleanup_policy


def is_compacted(client: ClusterClient, topic: str) -> bool:
    """Ask whether a topic is compacted now, as `compacts`.

    Raises:
        PermissionDeniedError: the user may not describe it.
    """
    policy = topic_configs(client, [topic], [CLEANUP_POLICY])[topic].get(CLEANUP_POLICY)
    return compacts(policy.value if policy else "")


def readable_topic_configs(
    client: ClusterClient, topics: Sequence[str], keys: Sequence[str]
) -> tuple[dict[str, Mapping[str, ConfigValue]], dict[str, PermissionDeniedError]]:
    """Return the configurations as `topic_configs` does, and the topics that it would refuse.

    Returns:
        the configuration of each topic, empty if it is refused; and topic -> why it is refused.
    """
    configs, errors = each_topic_configs(client, topics, keys)
    refused = {}
    for topic, error in errors.items():
        if not isinstance(error, PermissionDeniedError):
            raise error
        refused[topic] = error
    return configs, refused


def each_topic_configs(
    client: ClusterClient, topics: Sequence[str], keys: Sequence[str]
) -> tuple[dict[str, Mapping[str, ConfigValue]], dict[str, RelayError]]:
    """Return the configurations as `topic_configs` does, and why a topic's is not known.

    Returns:
        the configuration of each topic, empty if there is an error; and topic -> the error, such as
        that it does not exist.
    """
    configs: dict[str, Mapping[str, ConfigValue]] = {topic: {} for topic in topics}
    errors: dict[str, RelayError] = {}
    if not keys:
        return configs, errors  # in the protocol, no keys means all keys
    for first in range(0, len(topics), _TOPICS_PER_REQUEST):
        body = config_requests.encode(topics[first : first + _TOPICS_PER_REQUEST], keys)
        answer = client.any_connection().exchange(*config_requests.DESCRIBE, body)
        for described in config_requests.decode(answer):
            topic = described.name
            permission = f"DescribeConfigs on topic {topic}"
            doing = f"DescribeConfigs of topic {topic}"
            if error := client.refusal(described, doing, permission):
                errors[topic] = error
            else:
                configs[topic] = described.configs
    return configs, errors


def broker_configs(
    client: ClusterClient, keys: Sequence[str]
) -> dict[int, Mapping[str, ConfigValue]]:
    """Return the configuration of each broker; empty without DescribeConfigs on the cluster.

    Raises:
        RelayError: a broker does not answer.
    """
    by_broker: dict[int, Mapping[str, ConfigValue]] = {}
    for broker in client.metadata([]).brokers:
        body = config_requests.encode([str(broker)], keys, config_requests.BROKER)
        answer = client.connection(broker).exchange(*config_requests.DESCRIBE, body)
        (described,) = config_requests.decode(answer)
        try:
            client.raise_for_error(described, f"DescribeConfigs of broker {broker}")
        except PermissionDeniedError:
            return {}
        by_broker[broker] = described.configs
    return by_broker


def delete_topics(client: ClusterClient, names: Sequence[str]) -> None:
    """Delete topics.

    Raises:
        PermissionDeniedError: the user may not delete them.
        RelayError: the cluster refuses.
    """
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=client.timeout_ms)
    for result in client.call_controller(request, 3).responses:
        client.raise_for_error(result, f"DeleteTopics of {result.name}", "Delete on the topic")


def absent(client: ClusterClient, topics: Sequence[NewTopic]) -> list[NewTopic]:
    """Return the topics that do not exist, or that the user may not see."""
    shown = client.metadata([topic.name for topic in topics]).topics if topics else {}
    return [topic for topic in topics if shown[topic.name].error_code]


def unreadable(client: ClusterClient, topics: Collection[str]) -> list[str]:
    """Return the existing topics that, as brokers report (KIP-430), the user may not read."""
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
) -> list[str]:
    """Create topics and return their names; those that exist stay as they are.

    Args:
        replication_factor: None for the broker's default (Kafka 2.4, KIP-464).
        validate_only: the broker only checks whether it could create them.

    Raises:
        PermissionDeniedError: the user may not create them.
        RelayError: the cluster refuses one, by policy or because it has too few brokers.
    """
    if not topics:
        return []
    creatable = CreateTopicsRequest.CreatableTopic
    creations = [
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
    ]
    request = CreateTopicsRequest(
        topics=creations, timeout_ms=client.timeout_ms, validate_only=validate_only
    )
    results = client.call_controller(request, 4).topics
    for result in results:
        client.raise_for_error(
            result,
            f"CreateTopics of {result.name}",
            "Create on the topic or the cluster",
            tolerated=error_codes.TOPIC_ALREADY_EXISTS,
        )
    return [result.name for result in results if result.error_code == error_codes.NONE]


def grow_topics(
    client: ClusterClient, partitions: Mapping[str, int], *, validate_only: bool = False
) -> None:
    """Add partitions to topics until they have this many; a topic never shrinks.

    Args:
        validate_only: the broker only checks whether it could add them.

    Raises:
        PermissionDeniedError: the user may not alter them.
        RelayError: the cluster refuses, by policy for instance.
    """
    if not partitions:
        return
    growths = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in partitions.items()
    ]
    request = CreatePartitionsRequest(
        topics=growths, timeout_ms=client.timeout_ms, validate_only=validate_only
    )
    for result in client.call_controller(request, 1).results:
        client.raise_for_error(
            result,
            f"CreatePartitions of {result.name}",
            "Alter on the topic",
            tolerated=error_codes.INVALID_PARTITIONS,
        )


def alter_topic_configs(
    client: ClusterClient,
    changes: Mapping[str, Mapping[str, str]],
    *,
    validate_only: bool = False,
) -> None:
    """Set keys of topics, and leave their other keys alone (KIP-339).

    Args:
        changes: topic -> key -> value.
        validate_only: the broker only checks whether it could set them.

    Raises:
        PermissionDeniedError: the user may not alter them.
        RelayError: the cluster refuses a value, or has a policy against it.
    """
    if not changes:
        return
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [
        resource(
            resource_type=_TOPIC,
            resource_name=topic,
            configs=[
                resource.AlterableConfig(name=key, config_operation=_SET, value=value)
                for key, value in keys.items()
            ],
        )
        for topic, keys in changes.items()
    ]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    for result in client.call_any(request, 1).responses:
        topic = result.resource_name
        permission = f"AlterConfigs on topic {topic}"
        client.raise_for_error(result, f"IncrementalAlterConfigs of topic {topic}", permission)


def sizes_on_disk(client: ClusterClient, topics: Sequence[str]) -> dict[TopicPartition, int]:
    """Return bytes on the leader's disk per topic-partition; empty without the permission."""
    partitions = [tp for name in topics for tp in client.topic(name).topic_partitions]
    sizes: dict[TopicPartition, int] = {}
    describable = DescribeLogDirsRequest.DescribableLogDirTopic
    by_leader, _ = client.by_leader(partitions)
    for broker_id, names in by_leader.items():
        request = DescribeLogDirsRequest(
            topics=[describable(topic=name, partitions=led) for name, led in names.items()]
        )
        try:
            answer = client.call(broker_id, request, 1)
        except PermissionDeniedError:
            return {}
        for folder in answer.results:
            for topic in folder.topics:
                sizes |= {
                    TopicPartition(topic.name, partition.partition_index): partition.partition_size
                    for partition in topic.partitions
                }
    return sizes


def size_on_disk(client: ClusterClient, tp: TopicPartition) -> int | None:
    """Return bytes on the leader's disk; None without the permission."""
    return sizes_on_disk(client, [tp.topic]).get(tp)


_LITERAL, _PREFIXED = ACLResourcePatternType.LITERAL, ACLResourcePatternType.PREFIXED
_OPERATIONS = frozenset(Operation)
_VERSION = 3


def topic_acls(client: ClusterClient) -> list[Acl] | None:
    """Return every ACL on topics; None if the cluster has no authorizer.

    Raises:
        PermissionDeniedError: the user may not describe the cluster.
    """
    request = DescribeAclsRequest(
        resource_type_filter=ACLResourceType.TOPIC,
        resource_name_filter=None,
        pattern_type_filter=ACLResourcePatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
    )
    answer = client.call_any(request, _VERSION)
    if answer.error_code == error_codes.SECURITY_DISABLED:
        return None
    client.raise_for_error(answer, "DescribeAcls", "Describe on the cluster")
    return [
        Acl(
            resource=resource.resource_name,
            permission=Permission(acl.permission_type),
            principal=acl.principal,
            host=acl.host,
            operation=Operation(acl.operation),
            prefixed=resource.pattern_type == _PREFIXED,
        )
        for resource in answer.resources
        if resource.pattern_type in {_LITERAL, _PREFIXED}
        for acl in resource.acls
        if acl.operation in _OPERATIONS
    ]


def create_acls(client: ClusterClient, acls: Sequence[Acl]) -> None:
    """Add ACLs; those that exist stay as they are.

    Raises:
        PermissionDeniedError: the user may not alter the cluster, or it has no authorizer.
        RelayError: the cluster refuses one; others may have been created.
    """
    creations = [
        CreateAclsRequest.AclCreation(
            resource_type=ACLResourceType.TOPIC,
            resource_name=acl.resource,
            resource_pattern_type=_PREFIXED if acl.prefixed else _LITERAL,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    answer = client.call_any(CreateAclsRequest(creations=creations), _VERSION)
    for acl, result in zip(acls, answer.results, strict=True):
        client.raise_for_error(result, f"CreateAcls of {acl}", "Alter on the cluster")


def delete_acls(client: ClusterClient, acls: Sequence[Acl]) -> None:
    """Delete exactly these ACLs; those that are gone are none.

    Raises:
        PermissionDeniedError: the user may not alter the cluster.
        RelayError: the cluster refuses one; others may have been deleted.
    """
    filters = [
        DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=ACLResourceType.TOPIC,
            resource_name_filter=acl.resource,
            pattern_type_filter=_PREFIXED if acl.prefixed else _LITERAL,
            principal_filter=acl.principal,
            host_filter=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    answer = client.call_any(DeleteAclsRequest(filters=filters), _VERSION)
    for acl, result in zip(acls, answer.filter_results, strict=True):
        client.raise_for_error(result, f"DeleteAcls of {acl}", "Alter on the cluster")

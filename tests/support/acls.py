"""ACLs, as an administrator grants them and takes them back with an independent client."""

from collections.abc import Iterable

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from relay_pipelines.model import Cluster
from tests.support.independent import client, producer, until

TOPIC, GROUP, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
CLUSTER = ResourceType.BROKER  # librdkafka's name for it; the resource is `kafka-cluster`
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY


def acl(
    name: str,
    user: str,
    operation: AclOperation,
    permission: AclPermissionType = ALLOW,
    *,
    kind: ResourceType = TOPIC,
    pattern: ResourcePatternType = LITERAL,
) -> AclBinding:
    """Return an ACL of a user on all hosts, by default one that allows something on a topic."""
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def grant(cluster: Cluster, acls: Iterable[AclBinding]) -> None:
    """Create ACLs as whoever the cluster's credentials name, and wait until they hold."""
    wanted = set(acls)
    admin = AdminClient(client(cluster))  # which is to live until it has answered
    for granted in admin.create_acls(list(wanted)).values():
        granted.result(150)
    # the controller answers a moment before the brokers know
    until(lambda: wanted <= _known(admin), "the ACLs")


def as_filter(acl: AclBinding) -> AclBindingFilter:
    resource = acl.restype, acl.name, acl.resource_pattern_type
    return AclBindingFilter(*resource, acl.principal, acl.host, acl.operation, acl.permission_type)


def revoke(cluster: Cluster, acls: Iterable[AclBinding]) -> None:
    gone = set(acls)
    admin = AdminClient(client(cluster))
    for deleted in admin.delete_acls(list(map(as_filter, gone))).values():
        deleted.result(150)
    until(lambda: not gone & _known(admin), "the end of the ACLs")


def _known(admin: AdminClient) -> set[AclBinding]:
    every = AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY),
        *(None, None, AclOperation.ANY, AclPermissionType.ANY),
    )
    return set(admin.describe_acls(every).result(150))


def may_write(cluster: Cluster, topic: str) -> bool:
    """Whether the broker accepts a record of the cluster's user."""
    told: list[KafkaError | None] = []
    sender = producer(cluster)
    sender.produce(topic, b"more", on_delivery=lambda error, _: told.append(error))
    sender.flush(30)
    (error,) = told
    if error is None:
        return True
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    return False

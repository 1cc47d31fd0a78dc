"""Access control lists of topics: what a cluster has, and adding to it. On the driver."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    CreateAclsRequest,
    DescribeAclsRequest,
)

from relay_pipelines.model import Acl, Operation, Permission
from relay_pipelines.protocol import error_codes
from relay_pipelines.protocol.client import ClusterClient

_PATTERNS = frozenset({ACLResourcePatternType.LITERAL, ACLResourcePatternType.PREFIXED})
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
    _raise_for(client, answer, "DescribeAcls", "Describe on the cluster")
    return [
        Acl(
            resource=resource.resource_name,
            permission=Permission(one.permission_type),
            principal=one.principal,
            host=one.host,
            operation=Operation(one.operation),
            prefixed=resource.pattern_type == ACLResourcePatternType.PREFIXED,
        )
        for resource in answer.resources
        if resource.pattern_type in _PATTERNS
        for one in resource.acls
        if one.operation in _OPERATIONS
    ]


def create_acls(client: ClusterClient, acls: Sequence[Acl]) -> None:
    """Add ACLs; those that exist already are left as they are.

    Raises:
        PermissionDeniedError: the user may not alter the cluster, or it has no authorizer.
        RelayError: the cluster refuses one; others may have been created.
    """
    creation = CreateAclsRequest.AclCreation
    request = CreateAclsRequest(
        creations=[
            creation(
                resource_type=ACLResourceType.TOPIC,
                resource_name=one.resource,
                resource_pattern_type=ACLResourcePatternType.PREFIXED
                if one.prefixed
                else ACLResourcePatternType.LITERAL,
                principal=one.principal,
                host=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
            for one in acls
        ]
    )
    for one, result in zip(acls, client.call_any(request, _VERSION).results, strict=True):
        _raise_for(client, result, f"CreateAcls of {one}", "Alter on the cluster")


def _raise_for(client: ClusterClient, answer: object, doing: str, permission: str) -> None:
    code, message = (
        getattr(answer, "error_code", error_codes.NONE),
        getattr(answer, "error_message", None),
    )
    if code != error_codes.NONE:
        raise error_codes.failure(
            code,
            doing,
            at=str(client.cluster),
            retriable=client.retriable,
            detail=message or "",
            permission=permission,
        )

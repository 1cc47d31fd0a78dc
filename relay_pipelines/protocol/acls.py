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

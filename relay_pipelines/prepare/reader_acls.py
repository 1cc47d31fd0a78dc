"""The ACLs of a mirror's topics at the source, and what the destination has of them; adding what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from relay_pipelines.errors import DestinationError, SourceError
from relay_pipelines.model import Acl, Permission
from relay_pipelines.plan.acl_decisions import AclDecision, State, first_acls, plan_acls
from relay_pipelines.protocol.acls import create_acls, topic_acls
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot


@dataclass(frozen=True, slots=True)
class AclReport:
    """What the destination lacks.

    Args:
        decisions: on every ACL of the source on a mirrored topic.
        unsecured: the clusters that have no authorizer; there are no decisions then.
        first: topics without any ACL that would get their first.
    """

    decisions: Sequence[AclDecision] = ()
    unsecured: Sequence[str] = ()
    first: Sequence[str] = ()

    @property
    def missing(self) -> list[Acl]:
        """What the destination lacks, denials first."""
        return sorted(
            (one.acl for one in self.decisions if one.state is State.MISSING),
            key=lambda one: one.permission,
        )


def report(name: str, mirror: Mirror, clock: Clock) -> AclReport:
    """Ask both clusters; `plan.acls` has the rules. Nothing is written.

    Raises:
        PermissionDeniedError: the user may not describe one of the clusters.
        RelayError: one of them does not answer.
    """
    snapshot = cluster_snapshot.take_snapshot(name, mirror, clock, configs=False)
    timeout_ms = mirror.copy_options.request_timeout_ms
    with (
        ClusterClient(snapshot.node, SourceError, f"relay-{name}-acls", timeout_ms) as source,
        ClusterClient(
            snapshot.destination, DestinationError, f"relay-{name}-acls", timeout_ms
        ) as destination,
    ):
        here, there = (
            retry(partial(topic_acls, one), name, mirror.copy_options, clock, one)
            for one in (source, destination)
        )
    if here is None or there is None:
        return AclReport(
            unsecured=[
                str(one)
                for one, acls in ((snapshot.node, here), (snapshot.destination, there))
                if acls is None
            ]
        )
    decisions = plan_acls(here, there, snapshot.destinations, snapshot.copied_to)
    return AclReport(decisions, first=first_acls(decisions, there))


def apply(name: str, mirror: Mirror, found: AclReport, clock: Clock) -> None:
    """Create what the destination lacks: all denials, and only when it has them the grants.

    Raises:
        PermissionDeniedError: the user may not alter the destination's ACLs.
        RelayError: the destination refuses one, or does not answer.
    """
    options = mirror.copy_options
    with ClusterClient(
        mirror.destination_cluster,
        DestinationError,
        f"relay-{name}-acls",
        options.request_timeout_ms,
    ) as client:
        for permission in (Permission.DENY, Permission.ALLOW):
            wanted = [one for one in found.missing if one.permission is permission]
            if wanted:
                retry(partial(create_acls, client, wanted), name, options, clock, client)
                retry(partial(_see, client, wanted), name, options, clock, client)


def _see(client: ClusterClient, created: Sequence[Acl]) -> None:
    """Find out whether the destination shows new ACLs: a broker learns of them a moment after the controller."""
    if not set(created).issubset(topic_acls(client) or ()):
        raise DestinationError(f"{client.cluster} took new ACLs and does not show them")

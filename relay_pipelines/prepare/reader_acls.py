"""Compares the ACLs of a mirror's topics with the destination's, and creates missing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from relay_pipelines.errors import DestinationError
from relay_pipelines.model import Acl, Permission
from relay_pipelines.plan.acl_decisions import AclDecision, State, first_acls, plan_acls
from relay_pipelines.protocol.acls import create_acls, topic_acls
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clients import destination_client, source_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot


@dataclass(frozen=True, slots=True)
class AclReport:
    """Which ACLs the destination is missing.

    Args:
        decisions: on every ACL of the source on a mirrored topic.
        unsecured: the clusters without an authorizer; if there are any, there are no decisions.
        first: topics without any ACL that would get their first.
    """

    decisions: Sequence[AclDecision] = ()
    unsecured: Sequence[str] = ()
    first: Sequence[str] = ()

    @property
    def missing(self) -> list[Acl]:
        """The ACLs to create, denials first."""
        return sorted(
            (decision.acl for decision in self.decisions if decision.state is State.MISSING),
            key=lambda acl: acl.permission,
        )


def report(name: str, mirror: Mirror, clock: Clock) -> AclReport:
    """Ask both clusters; `plan.acl_decisions` has the rules. Nothing is written.

    Raises:
        PermissionDeniedError: the user may not describe one of the clusters.
        RelayError: one of them does not answer.
    """
    snapshot = cluster_snapshot.take_snapshot(name, mirror, clock, configs=False)
    options = mirror.copy_options
    with (
        source_client(name, snapshot.node, options.request_timeout_ms, "acls") as source,
        destination_client(name, snapshot.destination, options, "acls") as destination,
    ):
        source_acls, destination_acls = (
            retry(partial(topic_acls, client), name, options, clock, client)
            for client in (source, destination)
        )
    if source_acls is None or destination_acls is None:
        answers = (snapshot.node, source_acls), (snapshot.destination, destination_acls)
        return AclReport(unsecured=[str(cluster) for cluster, acls in answers if acls is None])
    decisions = plan_acls(source_acls, destination_acls, snapshot.destinations, snapshot.copied_to)
    return AclReport(decisions, first=first_acls(decisions, destination_acls))


def apply(name: str, mirror: Mirror, acl_report: AclReport, clock: Clock) -> None:
    """Create the missing ACLs: all denials first, and the grants once the denials exist.

    Raises:
        PermissionDeniedError: the user may not alter the destination's ACLs.
        RelayError: the destination refuses one, or does not answer.
    """
    options = mirror.copy_options
    with destination_client(name, mirror.destination_cluster, options, "acls") as client:
        for permission in (Permission.DENY, Permission.ALLOW):
            wanted = [acl for acl in acl_report.missing if acl.permission is permission]
            if wanted:
                retry(partial(create_acls, client, wanted), name, options, clock, client)
                retry(partial(_verify_created, client, wanted), name, options, clock, client)


def _verify_created(client: ClusterClient, created: Sequence[Acl]) -> None:
    """Read the ACLs back: a broker sees new ones a moment after the controller has answered."""
    if not set(created).issubset(topic_acls(client) or ()):
        raise DestinationError(f"{client.cluster} accepted new ACLs and does not show them")

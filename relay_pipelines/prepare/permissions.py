"""Which permissions a run would miss: makes its requests so that they change nothing.

Compares the ACLs of a mirror's topics with the destination's, and creates missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from relay_pipelines.errors import DestinationError, PermissionDeniedError, RelayError, page
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import Acl, Permission
from relay_pipelines.plan.acl_decisions import AclDecision, State, first_acls, plan_acls
from relay_pipelines.plan.owners import own_id
from relay_pipelines.prepare import topic_configs, topics
from relay_pipelines.protocol.admin import (
    NewTopic,
    absent,
    alter_topic_configs,
    create_acls,
    create_topics,
    grow_topics,
    topic_acls,
    unreadable,
)
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.producer import add_partitions, partition_errors
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_STATE_TOPICS = (checkpoint.TOPIC, ledger_topic.TOPIC)
_REFUSED = frozenset({29, 53})  # TOPIC_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def missing_permissions(snapshot: ClusterSnapshot) -> Iterator[RelayError]:
    """Yield the first missing permission for each of reading, creating, writing and configuring.

    Covers only what a broker can be asked. Nothing is written.
    """
    mirror = snapshot.sides.mirror
    with snapshot.source_client() as source, snapshot.destination_client() as destination:
        attempts: list[Callable[[], None]] = [
            lambda: _read(source, snapshot.destinations),
            lambda: _read(destination, _STATE_TOPICS),
            lambda: _create(destination, snapshot),
            lambda: _write(destination, snapshot),
            lambda: alter_topic_configs(
                destination,
                topic_configs.changes(snapshot) if mirror.topics.sync_configs else {},
                validate_only=True,
            ),
        ]
        for attempt in attempts:
            try:
                attempt()
            except RelayError as error:
                yield error


def _read(client: ClusterClient, names: Collection[str]) -> None:
    for topic in unreadable(client, names):
        raise PermissionDeniedError(
            f"{client.cluster} does not let the user read topic {topic}",
            remedy=f"grant the user Read on topic {topic}",
        )


def _create(client: ClusterClient, snapshot: ClusterSnapshot) -> None:
    planned = topics.to_create(snapshot, topics.known_keys(client, snapshot))
    new = absent(client, planned)
    factor = snapshot.sides.mirror.destination.replication_factor
    create_topics(client, new, factor, validate_only=True)
    _require_only_validated(client, new)
    grow_topics(client, topics.to_grow(snapshot), validate_only=True)


def _require_only_validated(client: ClusterClient, new: Sequence[NewTopic]) -> None:
    """Say which topics exist now: some makes of brokers create what they should only validate."""
    left = {topic.name for topic in absent(client, new)}
    if created := [topic.name for topic in new if topic.name not in left]:
        raise RelayError(
            f"{client.cluster} has created {', '.join(created)}, although it was asked only whether"
            " it could (validate_only of CreateTopics), unless another client has created them just"
            " now",
            remedy="delete them if no mirror is to copy there; such brokers keep no promise that a"
            f" mirror rests on: see {page('Kafka versions')}",
        )


def _write(client: ClusterClient, snapshot: ClusterSnapshot) -> None:
    """Add the topics to a transaction of a producer that does not exist.

    Any broker checks the permissions, and does so before it looks for the producer. The coordinator
    is not asked for: a broker without transactions so far would create its topic for them.
    """
    if not snapshot.positions:
        return
    # one id, as the same prefix grants the others
    name = own_id(snapshot.name, snapshot.positions[0].topic_partition)
    copies = (topic.target.topic for topic in snapshot.accepted_topics.values())
    request = add_partitions(name, -1, -1, {topic: [0] for topic in (*copies, *_STATE_TOPICS)})
    for tp, code in partition_errors(client.call_any(request, 2)).items():
        if code in _REFUSED:
            raise client.failure(code, f"AddPartitionsToTxn of {name}", topic_partition=tp)


@dataclass(frozen=True, slots=True)
class AclReport:
    """Which ACLs the destination is missing.

    Args:
        decisions: on every ACL of the source on a mirrored topic.
        unsecured: the clusters without an authorizer; if there are any, there are no decisions.
        first: topics without any ACL that would get their first.
        destination_id: of the cluster that was asked.
    """

    decisions: Sequence[AclDecision] = ()
    unsecured: Sequence[str] = ()
    first: Sequence[str] = ()
    destination_id: str = ""

    @property
    def missing(self) -> list[Acl]:
        """The ACLs to create, denials first."""
        return sorted(
            (decision.acl for decision in self.decisions if decision.state is State.MISSING),
            key=lambda acl: acl.permission,
        )


def report(sides: Sides) -> AclReport:
    """Ask both clusters; `plan.acl_decisions` has the rules. Nothing is written.

    Raises:
        PermissionDeniedError: the user may not describe one of the clusters.
        RelayError: one of them does not answer.
    """
    snapshot = read_clusters.take_snapshot(sides)
    with (
        snapshot.source_client("acls") as source,
        snapshot.destination_client("acls") as destination,
    ):
        source_acls, destination_acls = (
            client.retry(partial(topic_acls, client)) for client in (source, destination)
        )
    if source_acls is None or destination_acls is None:
        answers = (snapshot.upstream, source_acls), (snapshot.destination, destination_acls)
        return AclReport(unsecured=[str(cluster) for cluster, acls in answers if acls is None])
    decisions = plan_acls(source_acls, destination_acls, snapshot.destinations, snapshot.copied_to)
    first = first_acls(decisions, destination_acls)
    return AclReport(decisions, first=first, destination_id=snapshot.destination.id)


def apply(sides: Sides, acl_report: AclReport) -> None:
    """Create the missing ACLs: all denials first, and the grants once the denials exist.

    Raises:
        PermissionDeniedError: the user may not alter the destination's ACLs.
        RelayError: the destination refuses one, or does not answer.
    """
    with sides.at(acl_report.destination_id).destination("acls") as client:
        for permission in (Permission.DENY, Permission.ALLOW):
            lacking = [acl for acl in acl_report.missing if acl.permission is permission]
            if lacking:
                client.retry(partial(create_acls, client, lacking))
                client.retry(partial(_verify_created, client, lacking))


def _verify_created(client: ClusterClient, created: Sequence[Acl]) -> None:
    """Read the ACLs back: a broker sees new ones a moment after the controller has answered."""
    if not set(created).issubset(topic_acls(client) or ()):
        raise DestinationError(f"{client.cluster} accepted new ACLs and does not show them")

"""The copy through listeners that ask who we are, and what it says when they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from relay_pipelines.copy import checkpoint, ledger
from relay_pipelines.copy.copier import RangeCopier, transactional_id
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.embedded import EmbeddedCluster, Listener
from relay_pipelines.model import Cluster, Outcome, Status, TopicPartition
from tests.copying import Mirror, numbered
from tests.independent import client, until

PASSWORD, STRANGERS = "relay-secret", "stranger-secret"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """A broker with every listener, two users, and ACLs in force for all but the nameless."""
    users = {"relay": PASSWORD, "stranger": STRANGERS}
    folder = tmp_path_factory.mktemp("guarded")
    with EmbeddedCluster("guarded", listeners=tuple(Listener), folder=folder, users=users, authorizer=True) as cluster:
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            for principal in ("User:relay", "User:CN=client"):
                allow(cluster, principal, kind, "*")
        yield cluster


def allow(cluster: EmbeddedCluster, principal: str, kind: ResourceType, name: str) -> None:
    """Give a user everything on a resource."""
    facts = (kind, name, ResourcePatternType.LITERAL, principal, "*", AclOperation.ALL, AclPermissionType.ALLOW)
    acl = AclBinding(*facts)
    admin = AdminClient(client(cluster.cluster(Listener.PLAINTEXT)))
    admin.create_acls([acl])[acl].result(30)
    until(lambda: acl in admin.describe_acls(AclBindingFilter(*facts)).result(30), "the ACL")


@pytest.fixture
def mirror(guarded: EmbeddedCluster, topic_name: str) -> Mirror:
    """A filled topic and its copy, within the cluster, seen and judged by somebody without a name."""
    plain = guarded.cluster(Listener.PLAINTEXT)
    mirror = Mirror(plain, plain, topic_name, to=TopicPartition(f"{topic_name}-copy", 0))
    mirror.write(numbered(20), numbered(20, 2000, 20))
    return mirror


def copy_as(mirror: Mirror, source: Cluster, destination: Cluster) -> Outcome:
    """Copy with other ways to the same clusters."""
    wanted = mirror.range()
    (outcome,) = copy_ranges(replace(mirror.job, node=source, destination=destination), [wanted])
    return outcome


WAYS = [
    (Listener.SASL_PLAINTEXT, "PLAIN", False),
    (Listener.SASL_PLAINTEXT, "SCRAM-SHA-256", False),
    (Listener.SASL_PLAINTEXT, "SCRAM-SHA-512", False),
    (Listener.SSL, "PLAIN", True),
    (Listener.SASL_SSL, "PLAIN", False),
    (Listener.SASL_SSL, "SCRAM-SHA-512", False),
]


@pytest.mark.parametrize(("listener", "mechanism", "certificate"), WAYS)
def test_every_listener(
    guarded: EmbeddedCluster, mirror: Mirror, listener: Listener, mechanism: str, *, certificate: bool
) -> None:
    """A copy goes through every listener, records of many kilobytes included."""
    way = guarded.cluster(listener, mechanism=mechanism, client_certificate=certificate)
    outcome = copy_as(mirror, way, way)
    assert (outcome.status, outcome.error) == (Status.DONE, "")
    mirror.assert_equal()


def assert_refused(outcome: Outcome, *said: str) -> None:
    """Refused at once, in one line that says what it must and no secret."""
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "PermissionDeniedError")
    assert "\n" not in outcome.error
    assert not [secret for secret in (PASSWORD, STRANGERS, "wrong-secret") if secret in outcome.error]
    assert not [one for one in said if one not in outcome.error]
    assert outcome.records == outcome.chunks == 0


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password(
    guarded: EmbeddedCluster, mirror: Mirror, mechanism: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said in one line without the password, and tried once: no account is locked by insisting."""
    attempts: list[object] = []
    attempt = RangeCopier._attempt
    monkeypatch.setattr(RangeCopier, "_attempt", lambda self: (attempts.append(self), attempt(self)))
    way = guarded.cluster(Listener.SASL_PLAINTEXT, mechanism=mechanism)
    wrong = replace(way, security=replace(way.security, password="wrong-secret"))
    outcome = copy_as(mirror, wrong if side == "source" else way, way if side == "source" else wrong)
    assert_refused(outcome, "'relay'", "security.username, password")
    assert len(attempts) == 1


def test_a_mechanism_that_is_not_offered(guarded: EmbeddedCluster, mirror: Mirror) -> None:
    """What the broker offers instead is named."""
    way = guarded.cluster(Listener.SASL_PLAINTEXT)
    other = replace(way, security=replace(way.security, mechanism="OAUTHBEARER"))
    assert_refused(copy_as(mirror, other, way), "OAUTHBEARER", "SCRAM-SHA-512")


def test_missing_acls_are_told_one_by_one(guarded: EmbeddedCluster, mirror: Mirror) -> None:
    """Each missing ACL is one line that names what was asked for; with all of them the copy is done."""
    stranger = guarded.cluster(Listener.SASL_PLAINTEXT, username="stranger")
    assert mirror.to is not None
    identity = transactional_id(mirror.name, mirror.at)
    needed = [
        (ResourceType.TRANSACTIONAL_ID, identity, identity),
        (ResourceType.TOPIC, checkpoint.TOPIC, checkpoint.TOPIC),
        (ResourceType.TOPIC, mirror.at.topic, mirror.at.topic),
        (ResourceType.TOPIC, mirror.to.topic, ""),
        (ResourceType.TOPIC, ledger.TOPIC, ""),
    ]
    for kind, name, said in needed:
        assert_refused(copy_as(mirror, stranger, stranger), said, "ACL")
        allow(guarded, "User:stranger", kind, name)
    outcome = copy_as(mirror, stranger, stranger)
    assert (outcome.status, outcome.error) == (Status.DONE, "")
    mirror.assert_equal()


def test_an_authority_that_is_not_trusted(guarded: EmbeddedCluster, mirror: Mirror) -> None:
    """A broker whose certificate nobody vouches for is refused, naming the setting."""
    way = guarded.cluster(Listener.SASL_SSL)
    assert_refused(copy_as(mirror, replace(way, security=replace(way.security, ca_location=None)), way), "security.ca_location")


@pytest.mark.parametrize(
    ("listener", "protocol"),
    [
        (Listener.SSL, "PLAINTEXT"),
        (Listener.SASL_PLAINTEXT, "PLAINTEXT"),
        (Listener.PLAINTEXT, "SSL"),
        (Listener.SSL, "SASL_PLAINTEXT"),
    ],
)
def test_the_wrong_protocol(guarded: EmbeddedCluster, mirror: Mirror, listener: Listener, protocol: str) -> None:
    """A protocol that does not fit the listener ends in one line that names the setting, not in silence."""
    way = guarded.cluster(listener, client_certificate=listener is Listener.SSL)
    security = replace(guarded.cluster(Listener.SASL_PLAINTEXT).security, protocol=protocol)
    mirror.with_options(max_attempts=2)
    outcome = copy_as(mirror, replace(way, security=security), mirror.destination)
    assert outcome.status is Status.FAILED
    assert "\n" not in outcome.error
    assert "security.protocol" in outcome.error or "listener speaks TLS" in outcome.error
    assert PASSWORD not in outcome.error

"""A broker with authentication, ACLs and every listener, shared by the security tests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclBinding, AclOperation, AdminClient

from relay_pipelines.local_kafka import Certificates, Listener, LocalCluster
from relay_pipelines.local_kafka.configuration import MECHANISMS
from relay_pipelines.model import Cluster, TopicPartition
from tests.copying import KEPT, numbered
from tests.support import independent
from tests.support.acls import DENY, ID, PREFIXED, TOPIC, acl, grant, revoke
from tests.support.certificates import make_certificates
from tests.support.token_endpoint import CLIENT, TokenEndpoint, token_endpoint

PASSWORD = "correct-horse"
OAUTHBEARER = "OAUTHBEARER"
# users by what they will lack; relay lacks nothing that a copy needs, and owner may do everything
LACKING = ("source", "destination", "id", "checkpoints", "unread", "ledger", "unfollowed", "create")
USER = "unfollowed"  # who may read what a test lets it
# where sessions end; the broker refuses to begin another one within a second
SESSION_MS = 1500
ENDING = [(Listener.SASL_PLAINTEXT, "SCRAM-SHA-256"), (Listener.SASL_SSL, OAUTHBEARER)]


@pytest.fixture(scope="module")  # an idle broker takes 2 % of a core
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker with every listener; all users need ACLs, and topics are copied within it."""
    listeners = [Listener.PLAINTEXT, Listener.SASL_PLAINTEXT, Listener.SSL, Listener.SASL_SSL]
    users = dict.fromkeys(("relay", "owner", *LACKING), PASSWORD)
    folder = tmp_path_factory.mktemp("guarded")
    with LocalCluster(
        "guarded",
        listeners=listeners,
        users=users,
        certificates=make_certificates(folder / "tls"),
        authorizer=True,
        folder=folder,
        config=more_properties(),
    ) as cluster:
        let_own(cluster)
        independent.transactional(
            cluster.cluster(), "first"
        )  # a coordinator that is still being elected is retried, not refused
        yield cluster


def let_own(cluster: LocalCluster) -> None:
    everything = [acl("*", "owner", AclOperation.ALL, kind=kind) for kind in (TOPIC, ID)]
    grant(cluster.cluster(), everything)


def more_properties() -> dict[str, object]:
    """Enable unsecured tokens, client certificates beside passwords, and sessions that expire."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    properties: dict[str, object] = {
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        # as brokers before 3.6: a late batch may open a transaction
        "transaction.partition.verification.enable": False,
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        properties[f"listener.name.{listener}.sasl.enabled.mechanisms"] = ",".join(
            [*MECHANISMS, OAUTHBEARER]
        )
        properties[f"listener.name.{listener}.oauthbearer.sasl.jaas.config"] = module
    for listener, mechanism in ENDING:
        properties[
            f"listener.name.{listener.lower()}.{mechanism.lower()}.connections.max.reauth.ms"
        ] = SESSION_MS
    return properties


@pytest.fixture(scope="session")
def issuer() -> Iterator[TokenEndpoint]:
    """A token endpoint that knows the secret of the client."""
    with token_endpoint(PASSWORD) as endpoint:
        yield endpoint


@pytest.fixture
def tokens(issuer: TokenEndpoint, topic_name: str) -> TokenEndpoint:
    """The same endpoint at an address that no other test has used."""
    issuer.url = f"{issuer.url.rpartition('/')[0]}/{topic_name}"
    issuer.seconds, issuer.answer, issuer.subject = 3600.0, None, CLIENT
    issuer.asked.clear()
    return issuer


@dataclass(frozen=True)
class Permitted:
    """A user who may read all topics of a name, until a test hides some of them."""

    cluster: LocalCluster
    name: str
    user: str = USER

    def create(self, topic: str) -> str:
        independent.create(self.cluster.cluster(), topic, 1, KEPT)
        return topic

    def write(self, topic: str, count: int) -> None:
        independent.write(self.cluster.cluster(), TopicPartition(topic, 0), numbered(count))

    def allow(self) -> None:
        operations = AclOperation.READ, AclOperation.DESCRIBE_CONFIGS
        mine = [acl(self.name, self.user, operation, pattern=PREFIXED) for operation in operations]
        grant(self.cluster.cluster(), mine)
        self.wait(self.name, is_shown=True)

    def hide(self, *topics: str) -> None:
        grant(self.cluster.cluster(), map(self._hiding, topics))
        for topic in topics:
            self.wait(topic, is_shown=False)

    def forbid_reading(self, topic: str) -> None:
        """Let the user see the topic, and not its records."""
        grant(self.cluster.cluster(), [acl(topic, self.user, AclOperation.READ, DENY)])
        user = AdminClient(independent.client(self.as_user()))

        def allowed() -> list[AclOperation]:
            asked = TopicCollection([topic])
            (found,) = user.describe_topics(asked, include_authorized_operations=True).values()
            return found.result(150).authorized_operations or []

        independent.until(lambda: AclOperation.READ not in allowed(), f"{topic} is unreadable")

    def show(self, *topics: str) -> None:
        revoke(self.cluster.cluster(), map(self._hiding, topics))
        for topic in topics:
            self.wait(topic, is_shown=True)

    def as_user(self) -> Cluster:
        return self.cluster.cluster(Listener.SASL_PLAINTEXT, username=self.user)

    def wait(self, topic: str, *, is_shown: bool) -> None:
        user = AdminClient(independent.client(self.as_user()))
        independent.until(
            lambda: (topic in user.list_topics(timeout=30).topics) == is_shown,
            f"{topic} is {'shown' if is_shown else 'hidden'}",
        )

    def _hiding(self, topic: str) -> AclBinding:
        return acl(topic, self.user, AclOperation.DESCRIBE, DENY)


def way_in(
    guarded: LocalCluster, listener: Listener, mechanism: str, tokens: TokenEndpoint
) -> Cluster:
    """The cluster with the credentials that `relay` needs at a listener."""
    if mechanism != OAUTHBEARER:
        username = "relay" if listener.sasl else None
        return guarded.cluster(
            listener,
            mechanism=mechanism,
            username=username,
            client_certificate=listener is Listener.SASL_SSL,
        )
    plain = way_in(guarded, listener, MECHANISMS[0], tokens)
    plain = secured(plain, mechanism=mechanism, username=None, password=None, scope="kafka")
    return secured(plain, token_endpoint=tokens.url, client_id=CLIENT, client_secret=PASSWORD)


def secured(way: Cluster, **changes: Any) -> Cluster:
    return replace(way, security=replace(way.security, **changes))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority, and certificates that it signed."""
    return make_certificates(tmp_path_factory.mktemp("stranger"))

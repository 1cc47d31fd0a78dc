"""Copies between clusters with authentication: every mechanism, and how refusals are reported."""

import json
import math
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.protocol.metadata import MetadataRequest

from relay_pipelines import model
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import PermissionDeniedError, SourceError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import Certificates, Listener, LocalCluster
from relay_pipelines.local_kafka.configuration import MECHANISMS, SCRAM
from relay_pipelines.model import ClassSpec, Cluster, CopyOptions, Outcome, Security, Status
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol import idle_connections
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.connection import Connection
from tests.copying import Mirror, numbered
from tests.integration.guarded import ENDING, OAUTHBEARER, PASSWORD, SESSION_MS, secured, way_in
from tests.support import independent, token_providers
from tests.support.acls import ID, acl, grant
from tests.support.certificates import CLIENT_PRINCIPAL
from tests.support.sleeping_clock import Untiring
from tests.support.token_endpoint import TokenEndpoint

WAYS = [
    (Listener.SSL, ""),
    *(
        (listener, mechanism)
        for listener in (Listener.SASL_PLAINTEXT, Listener.SASL_SSL)
        for mechanism in (*MECHANISMS, OAUTHBEARER)
    ),
]


@pytest.fixture
def mirror(guarded: LocalCluster, topic_name: str) -> Mirror:
    """A topic with records, created by a user with all permissions."""
    made = Mirror(
        guarded.cluster(),
        guarded.cluster(),
        topic_name,
        to=model.TopicPartition(f"{topic_name}-copy", 0),
    )
    made.write(numbered(10), numbered(10, 2000, first=10))
    return made


def allow_copy(mirror: Mirror, user: str) -> None:
    read, write = AclOperation.READ, AclOperation.WRITE
    assert mirror.to is not None
    needed = [
        acl(mirror.topic, user, read),
        acl(mirror.to.topic, user, write),
        acl(own_id(mirror.name, mirror.at), user, write, kind=ID),
        acl(checkpoint.TOPIC, user, write),
        acl(checkpoint.TOPIC, user, read),
        acl(ledger_topic.TOPIC, user, write),
    ]
    grant(mirror.source, needed)


def copy_as(
    mirror: Mirror,
    source: Cluster,
    destination: Cluster | None = None,
    *,
    is_tried_once: bool = False,
) -> Outcome:
    """Copy the topic with other credentials; an error must be one line without the password."""
    job, clock = mirror.job, SystemClock()
    if is_tried_once:
        # a first retry would be later than the clock bears
        job = replace(
            job, options=replace(job.options, backoff_min_ms=60_000, backoff_max_ms=60_000)
        )
        clock = Untiring(seconds=5)
    job = replace(job, upstream=source, destination=destination or source)
    (outcome,) = copy_ranges(job, [mirror.range()], clock)
    assert "\n" not in outcome.error
    assert PASSWORD not in f"{outcome}{job}"
    return outcome


def provided(
    guarded: LocalCluster,
    name: str,
    provider: str = "issued",
    *,
    way: Cluster | None = None,
    **more: Any,
) -> Cluster:
    """The cluster, or another way into it, with tokens of a provider of our own."""
    way = way or guarded.cluster(Listener.SASL_PLAINTEXT)
    spec = ClassSpec(f"tests.support.token_providers:{provider}", json.dumps({"name": name} | more))
    tokens = Security(way.security.protocol, mechanism=OAUTHBEARER, token_provider=spec)
    if way.security.ca_location:
        files = ("ca_location", "certificate_location", "key_location")
        tokens = replace(tokens, **{key: getattr(way.security, key) for key in files})
    return replace(way, security=tokens)


def assert_refused(mirror: Mirror, outcome: Outcome, kind: str = "PermissionDeniedError") -> None:
    """Check that the range failed, and that nothing was copied."""
    assert (outcome.status, outcome.error_kind, outcome.exit_code) == (Status.FAILED, kind, 1)
    assert mirror.copied() == []


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_a_copy_over_every_protocol_and_mechanism(
    guarded: LocalCluster, mirror: Mirror, listener: Listener, mechanism: str, tokens: TokenEndpoint
) -> None:
    """It is complete with minimal ACLs; one token, with its scope, serves all connections."""
    allow_copy(mirror, "relay")
    # batches larger than any buffer of TLS
    large = 8 if (listener, mechanism) == WAYS[-1] else 0
    mirror.write(*(numbered(9, 100_000, first=n * 9 + 20) for n in range(large)))
    way = way_in(guarded, listener, mechanism, tokens)
    outcome = copy_as(mirror, way, way)
    assert (outcome.error, outcome.records) == ("", 20 + 9 * large)
    asked = [{"grant_type": "client_credentials", "scope": "kafka"}]
    assert tokens.asked == (asked if mechanism == OAUTHBEARER else [])
    mirror.assert_equal()
    mirror.assert_ledger_closes()


def test_a_client_certificate_names_the_user(guarded: LocalCluster, mirror: Mirror) -> None:
    """Without a password, the broker takes the user from the certificate."""
    way = guarded.cluster(Listener.SSL, client_certificate=True)
    assert_refused(mirror, copy_as(mirror, way, is_tried_once=True))
    allow_copy(mirror, CLIENT_PRINCIPAL)
    assert copy_as(mirror, way).error == ""
    mirror.assert_equal()


@pytest.mark.parametrize("giver", ["endpoint", "provider"])
def test_expiring_sessions_are_renewed_during_a_copy(
    guarded: LocalCluster,
    mirror: Mirror,
    tokens: TokenEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    giver: str,
) -> None:
    """A slow copy outlives several sessions on the connections it began with."""
    tokens.seconds = 2 * SESSION_MS / 1000
    ways = [way_in(guarded, listener, mechanism, tokens) for listener, mechanism in ENDING]
    if giver == "provider":
        ways[1] = provided(guarded, mirror.topic, way=ways[1], seconds=tokens.seconds)
    mirror.write(*(numbered(9, 2_000, first=n * 9 + 20) for n in range(14)))
    connected = spied(monkeypatch)
    idle_connections.close_all()
    # none of three clusters, with that of the test itself, shares kept connections with another
    allow_copy(mirror, "relay")
    assert copy_as(mirror, ways[0], replace(ways[0], name="other")).error == ""
    needed = len(connected)
    connected.clear()

    mirror.name = f"{mirror.name}-slow"
    allow_copy(mirror, "relay")
    idle_connections.close_all()
    outcome = copy_as(
        mirror.with_options(max_bytes_per_second=64 << 10, backoff_min_ms=60_000), *ways
    )

    assert (outcome.error, outcome.records) == ("", 20 + 14 * 9)
    assert outcome.seconds > 2 * SESSION_MS / 1000
    assert len(connected) == needed
    assert max(len(tokens.asked), token_providers.calls[mirror.topic]) > 1
    mirror.assert_ledger_closes()


def connected_by(way: Cluster) -> Connection:
    """Open a connection of our own, outside any client."""
    port = int(way.bootstrap_servers[0].rpartition(":")[2])
    return Connection(way, ("127.0.0.1", port), "test", SourceError, 10.0)


def test_responses_survive_reauthentication(
    guarded: LocalCluster, tokens: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses under way when a session ends are still received, in order."""
    connection = connected_by(way_in(guarded, *ENDING[0], tokens))

    def ask() -> int:
        return connection.send(MetadataRequest.API_KEY, 4, b"\0\0\0\0\0")  # of no topics

    first = connection.receive(ask())
    as_it_came = bytes(first)
    asked = [ask(), ask()]
    with monkeypatch.context() as later:
        now = time.monotonic
        later.setattr(time, "monotonic", lambda: now() + SESSION_MS / 1000)
        asked.append(ask())
    assert bytes(first) == as_it_came
    assert connection.unanswered == 3
    assert [bytes(connection.receive(correlation_id)) for correlation_id in asked] == [
        as_it_came
    ] * 3
    connection.close()


@pytest.mark.parametrize("way", ENDING)
def test_a_request_after_the_end_of_a_session_is_lost(
    guarded: LocalCluster, tokens: TokenEndpoint, way: tuple[Listener, str]
) -> None:
    """A process that stood still learns that the broker has closed, also if TLS says so itself."""
    connection = connected_by(way_in(guarded, *way, tokens))
    connection._authenticate_at = math.inf  # it stands still after having looked at the clock
    time.sleep(SESSION_MS / 1000 + 0.1)
    with pytest.raises(SourceError, match="cannot be reached: the broker closed the connection"):
        connection.call(MetadataRequest(topics=[]), 4)


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize(("provider", "kept"), [("issued", "kept"), ("plain", "")])
def test_tokens_from_a_provider(
    guarded: LocalCluster, mirror: Mirror, provider: str, kept: str, side: str
) -> None:
    """A copy is complete with a provider on either side; a token with an expiry is shared."""
    allow_copy(mirror, "relay")
    way = provided(guarded, mirror.topic, provider)
    extended = replace(way.security, sasl_extensions=(("logicalCluster", "lkc"), ("pool", "p 1")))
    way = replace(way, security=extended)
    ways = (way, mirror.destination) if side == "source" else (mirror.source, way)
    outcome = copy_as(mirror, *ways)
    assert (outcome.error, outcome.records) == ("", 20)
    mirror.assert_equal()
    assert (token_providers.calls[mirror.topic] == 1) is bool(kept)


def test_the_broker_gets_the_extensions(guarded: LocalCluster, mirror: Mirror) -> None:
    """The broker refuses an extension that KIP-342 does not allow, so it reads them."""
    way = secured(provided(guarded, mirror.topic), sasl_extensions=(("not_letters", "x"),))
    outcome = copy_as(mirror, way, is_tried_once=True)
    assert_refused(mirror, outcome)
    assert "refused the token of token provider 'tests.support.token_providers:" in outcome.error


DENIED, UNSUPPORTED = "PermissionDeniedError", "UnsupportedError"


def test_a_copy_recovers_with_its_provider_or_leaves_the_upstream(
    guarded: LocalCluster, mirror: Mirror
) -> None:
    """While one upstream's provider hangs, another is read; the provider's token is not lost."""
    allow_copy(mirror, "relay")
    token_providers.go_on.clear()
    hanging = replace(provided(guarded, mirror.topic, "hanging"), name="hanging")
    right = replace(guarded.cluster(), name="right")
    mirror.with_options(request_timeout_ms=300)
    job = replace(mirror.job, upstream=hanging, other_upstreams=(right,), destination=right)
    (outcome,) = copy_ranges(job, [mirror.range()])
    assert (outcome.error, outcome.records, outcome.upstream) == ("", 20, "right")
    mirror.assert_equal()
    token_providers.go_on.set()
    mirror.write(numbered(10, first=20))
    assert copy_as(mirror, hanging, mirror.destination).error == ""
    mirror.assert_equal()


def test_a_token_is_renewed_before_it_expires_and_kept_if_it_cannot_be(
    guarded: LocalCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection gets a token that is not about to expire, or the last one while it is valid."""
    way = provided(guarded, topic_name, seconds=100.0)
    now, later = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now() + later)

    def calls_after(seconds: float) -> int:
        nonlocal later
        later += seconds
        connected_by(way).close()
        return token_providers.calls[topic_name]

    assert calls_after(0) == 1
    assert calls_after(81) == 2
    token_providers.failing.add(topic_name)
    assert calls_after(81) == 3
    assert calls_after(1) == 3
    assert calls_after(6) == 4
    with pytest.raises(SourceError, match="the signer does not answer"):
        calls_after(10)
    token_providers.failing.remove(topic_name)
    assert calls_after(0) == 6


@pytest.mark.parametrize(
    ("mechanism", "side"),
    [*((mechanism, "source") for mechanism in MECHANISMS), (MECHANISMS[-1], "destination")],
)
def test_a_wrong_password_is_refused_once(
    guarded: LocalCluster, mirror: Mirror, mechanism: str, side: str, tokens: TokenEndpoint
) -> None:
    """The line names broker and user but no password, on either side."""
    right = way_in(guarded, Listener.SASL_PLAINTEXT, mechanism, tokens)
    wrong = secured(right, password="wrong-horse")
    allow_copy(mirror, "relay")
    ways = (wrong, right) if side == "source" else (right, wrong)
    outcome = copy_as(mirror, *ways, is_tried_once=True)
    assert_refused(mirror, outcome)
    assert f"guarded broker {right.bootstrap_servers[0]} refused user 'relay'" in outcome.error
    assert outcome.error.endswith("; check security.username, password and mechanism")
    assert "wrong-horse" not in outcome.error


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_user_name_with_commas_and_equals_signs(
    guarded: LocalCluster, mirror: Mirror, mechanism: str
) -> None:
    """SCRAM escapes commas and equals signs in a user name (RFC 5802)."""
    user = "CN=relay=3D,O=eu"
    info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096)
    credential = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
    admin = AdminClient(independent.client(mirror.source))
    admin.alter_user_scram_credentials([credential])[user].result(150)
    allow_copy(mirror, user)
    way = guarded.cluster(Listener.SASL_PLAINTEXT, mechanism=mechanism)
    outcome = copy_as(mirror, secured(way, username=user, password=PASSWORD))
    assert (outcome.error, outcome.records) == ("", 20)


def test_an_upstream_that_refuses_is_not_tried_again(
    guarded: LocalCluster, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once, however many attempts there are, and another one is read if there is."""
    right = replace(guarded.cluster(), name="right")
    way = guarded.cluster(Listener.SASL_PLAINTEXT, username="relay")
    a, b = (replace(secured(way, password="wrong-horse"), name=name) for name in "ab")
    down = replace(right, name="down", bootstrap_servers=("127.0.0.1:1",))
    asked = spied(monkeypatch)
    mirror.with_options(backoff_min_ms=10, backoff_max_ms=10)
    job = replace(mirror.job, upstream=a, other_upstreams=(b,), destination=right)
    (outcome,) = copy_ranges(job, [mirror.range()])
    assert_refused(mirror, outcome)
    assert "a broker 127.0.0.1" in outcome.error
    assert [name for name in asked if name in {"a", "b"}] == ["a", "b"]

    asked.clear()
    job = replace(job, upstream=down, other_upstreams=(a, right))
    (outcome,) = copy_ranges(job, [mirror.range()])
    assert (outcome.error, outcome.records, outcome.upstream) == ("", 20, "right")
    assert asked.count("a") == 1
    mirror.assert_equal()


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the clusters that connections are opened to."""
    connect = Connection._connect
    connected: list[str] = []

    def connect_and_tell(self: Connection) -> Any:
        connected.append(self.cluster.name)
        return connect(self)

    monkeypatch.setattr(Connection, "_connect", connect_and_tell)
    return connected


def test_a_mechanism_that_a_listener_does_not_take_is_named(
    guarded: LocalCluster, mirror: Mirror
) -> None:
    """With those that it offers."""
    way = guarded.cluster(Listener.SASL_PLAINTEXT, username="relay")
    outcome = copy_as(mirror, secured(way, mechanism="GSSAPI"), is_tried_once=True)
    assert_refused(mirror, outcome)
    said = "does not offer GSSAPI; set security.mechanism to one of "
    assert all(text in outcome.error for text in (said, *MECHANISMS)), outcome.error


def test_everything_listens_on_loopback_alone(guarded: LocalCluster) -> None:
    """No listener of an embedded broker accepts connections from another machine."""
    connections = psutil.Process(guarded.brokers[0].pid).net_connections()
    listening = [each.laddr for each in connections if each.status == psutil.CONN_LISTEN]
    assert len(listening) == len(Listener) + 1
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


WHAT_TO_CHECK = "check security.token_endpoint, client_id, client_secret and scope"
REFUSED = "{url} refused client 'relay' (HTTP %s); " + WHAT_TO_CHECK
NO_OTHER = "{url} gave no token; check security.token_endpoint"
AWAY = "{url} cannot be reached: Connection refused; check security.token_endpoint"
WRONG_SECRET = "401: invalid_client unknown client relay:***"
# what it answers, what is changed in the security of the client, and what is said
NO_TOKEN: dict[str, tuple[tuple[int, Any] | None, dict[str, str], str, str]] = {
    "503": ((503, None), {}, "SourceError", "{url} gives no token now (HTTP 503); see its log"),
    "404": ((404, "nothing here"), {}, DENIED, REFUSED % 404),
    "302": ((302, None), {}, DENIED, REFUSED % 302),
    "a wrong secret, which it repeats": (
        *(None, {"client_secret": "wrong-horse"}, DENIED, REFUSED % WRONG_SECRET),
    ),
    "nobody": (None, {"token_endpoint": "http://127.0.0.1:1/token"}, "SourceError", AWAY),
    "another document": ((200, {"token_type": "Bearer"}), {}, UNSUPPORTED, NO_OTHER),
    "a control character": ((200, {"access_token": "a\x01b"}), {}, UNSUPPORTED, NO_OTHER),
    "another issuer's": (
        *((200, {"access_token": "a.b.c"}), {}, DENIED, "refused the token of client 'relay' ("),
    ),
}


@pytest.mark.parametrize("what", NO_TOKEN)
def test_a_token_endpoint_without_a_usable_token(
    guarded: LocalCluster, mirror: Mirror, tokens: TokenEndpoint, what: str
) -> None:
    """One line says which endpoint and what it returned; a refused token is not used again."""
    tokens.answer, changes, kind, said = NO_TOKEN[what]
    way = secured(way_in(guarded, Listener.SASL_PLAINTEXT, OAUTHBEARER, tokens), **changes)
    for asked in (1, 2):
        outcome = copy_as(mirror.with_options(give_up_after_ms=0), way, mirror.destination)
        assert_refused(mirror, outcome, kind)
        assert said.format(url=f"token endpoint {way.security.token_endpoint}") in outcome.error
        assert "wrong-horse" not in outcome.error
        assert len(tokens.asked) == (0 if what == "nobody" else asked)


@pytest.mark.parametrize(
    ("rotated", "refused"),
    [
        (("ca_location",), "its certificate is not trusted"),
        (("certificate_location", "key_location"), "refused the client certificate"),
    ],
)
def test_the_next_connection_uses_rotated_files(
    guarded: LocalCluster,
    stranger: Certificates,
    tmp_path: Path,
    rotated: tuple[str, ...],
    refused: str,
) -> None:
    """A process reads certificate files again after they were replaced."""
    way = guarded.cluster(Listener.SASL_SSL, client_certificate=True)
    known = guarded.certificates
    assert known is not None
    files = {
        "ca_location": (known.authority, stranger.authority),
        "certificate_location": (known.client_certificate, stranger.client_certificate),
        "key_location": (known.client_key, stranger.client_key),
    }
    own = {key: str(shutil.copy(right, tmp_path / key)) for key, (right, _) in files.items()}
    way = secured(way, **own)

    def rotate(generation: int) -> None:
        for key in rotated:
            fresh = tmp_path / "fresh"
            fresh.write_bytes(files[key][generation].read_bytes())
            fresh.replace(own[key])

    def connect() -> None:
        with ClusterClient(way, SourceError) as client:
            client.retry(partial(client.metadata, []))  # another test may just have woken it

    connect()
    with ClusterClient(way, SourceError) as standing:
        standing.metadata([])
        rotate(1)
        standing.metadata([])  # an open connection keeps what it began with
        standing.close()  # as a broker does when it restarts
        for refuse in (connect, standing.metadata):
            with pytest.raises(PermissionDeniedError, match=refused):
                refuse()
        rotate(0)
        standing.metadata([])
    connect()


@pytest.mark.parametrize(
    ("protocol", "listener", "kind"),
    [
        (Listener.PLAINTEXT, Listener.SSL, UNSUPPORTED),
        (Listener.SASL_PLAINTEXT, Listener.SASL_SSL, UNSUPPORTED),
        # a broker that is just stopping ends a handshake in the same way
        (Listener.SSL, Listener.PLAINTEXT, "DestinationError"),
        (Listener.SASL_SSL, Listener.SASL_PLAINTEXT, "DestinationError"),
        (Listener.PLAINTEXT, Listener.SASL_PLAINTEXT, "DestinationError"),
        (Listener.SASL_PLAINTEXT, Listener.PLAINTEXT, "PermissionDeniedError"),
    ],
)
def test_a_protocol_that_does_not_match_the_listener(
    guarded: LocalCluster, mirror: Mirror, protocol: Listener, listener: Listener, kind: str
) -> None:
    """The line names the broker and points to security.protocol."""
    way = replace(guarded.cluster(protocol), bootstrap_servers=guarded.address(listener))
    outcome = copy_as(mirror.with_options(give_up_after_ms=0), mirror.source, way)
    assert_refused(mirror, outcome, kind)
    assert guarded.address(listener)[0] in outcome.error
    assert "security.protocol" in outcome.error


@pytest.mark.timeout(60)
@pytest.mark.parametrize("listener", [Listener.SASL_PLAINTEXT, Listener.SASL_SSL])
def test_a_frozen_broker_is_given_up(guarded: LocalCluster, listener: Listener) -> None:
    """The timeout holds with and without TLS, for open and for new connections."""
    (broker,) = guarded.brokers
    way = guarded.cluster(listener, client_certificate=listener.tls)
    with ClusterClient(way, SourceError, options=CopyOptions(request_timeout_ms=1000)) as client:
        client.retry(partial(client.metadata, []))  # it may just have been woken
        broker.pause()
        try:
            for _ in range(2):
                with pytest.raises(SourceError, match="no answer within 1 s"):
                    client.metadata([])
                client.close()
        finally:
            broker.resume()

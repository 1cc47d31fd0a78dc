"""`relay check` reports missing permissions, bad certificates and wrong passwords in advance."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AclOperation, AdminClient

from relay_pipelines import model, settings
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import (
    DestinationError,
    FencedError,
    PermissionDeniedError,
    RelayError,
    SourceError,
)
from relay_pipelines.finding import Finding, Severity
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import Certificates, Listener, LocalCluster
from relay_pipelines.local_kafka.configuration import MECHANISMS
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, CopyRange, Security, TopicPartition
from relay_pipelines.prepare import topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.records import BatchBuilder, Record
from relay_pipelines.run import preflight, run_plan
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import configs, read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, ensure_homes, numbered
from tests.integration.guarded import LACKING, PASSWORD, secured, way_in
from tests.support import independent
from tests.support.acls import DENY, ID, acl, grant, revoke
from tests.support.certificates import encrypted
from tests.support.sleeping_clock import Untiring
from tests.support.token_endpoint import TokenEndpoint

MIRROR = "checked"
DESCRIBE, CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
REFUSED = "-0: destination ({servers}) answered AddPartitionsToTxn of relay.checked.{topic}.0"
# what is said of the missing permission, and what to grant
SAYS = {
    "source": ("does not let the user read topic {topic}; ", "Read on topic {topic}"),
    "destination": ("{topic}-copy" + REFUSED + " with TOPIC_", "Write on topic {topic}-copy"),
    "id": (
        "{topic}-copy" + REFUSED + " with TRANSACTIONAL_ID_",
        "Write on transactional id relay.checked.{topic}.0",
    ),
    "checkpoints": ("__relay_checkpoints" + REFUSED, "Write on topic __relay_checkpoints"),
    # where there is something to read, reading it fails before anybody asks whether it may be read
    "unread": ("__relay_checkpoints", "Read on topic __relay_checkpoints"),
    "ledger": ("__relay_ledger" + REFUSED + " with TOPIC_", "Write on topic __relay_ledger"),
    "unfollowed": ("__relay_ledger", ""),
    "create": ("answered CreateTopics of {topic}-copy with TOPIC_AUTHORIZATION_FAILED", ""),
}


def written(cluster: Cluster) -> dict[str, Any]:
    """The section of relay.yaml that describes a cluster."""
    said = {
        field.name: value
        for field in fields(Security)
        if (value := getattr(cluster.security, field.name)) != field.default
    }
    return {"bootstrap_servers": list(cluster.bootstrap_servers), "security": said}


def configured(
    folder: Path,
    topic: str,
    destination: Cluster,
    *upstreams: Cluster,
    give_up_after: object = "60s",
) -> settings.Mirror:
    path = folder / "relay.yaml"
    names = ("one", "two")
    mirror = {
        "source": {
            "upstreams": [
                {"name": name} | written(upstream)
                for name, upstream in zip(names, upstreams, strict=False)
            ]
        },
        "give_up_after": give_up_after,
        "destination": written(destination),
        "topics": {"allow": [topic], "rename": "{topic}-copy"},
    }
    path.write_text(yaml.safe_dump({"mirrors": {MIRROR: mirror}}))
    return settings.load(path).mirror(MIRROR)


def checked(folder: Path, source: Cluster, destination: Cluster, topic: str) -> list[Finding]:
    return list(preflight.check(Sides(MIRROR, configured(folder, topic, destination, source))))


def errors(found: list[Finding]) -> list[str]:
    lines = [str(finding) for finding in found if finding.severity is Severity.ERROR]
    assert not [line for line in lines if "\n" in line or PASSWORD in line]
    return lines


def allow_run(guarded: LocalCluster, user: str, topic: str) -> None:
    """Grant a user what a run needs, except the permission the user is named after."""
    copied = f"{topic}-copy"
    needed = {
        "source": acl(topic, user, READ),
        "destination": acl(copied, user, WRITE),
        "id": acl(f"relay.{MIRROR}.{topic}.0", user, WRITE, kind=ID),
        "checkpoints": acl(checkpoint.TOPIC, user, WRITE),
        "unread": acl(checkpoint.TOPIC, user, READ),
        "ledger": acl(ledger_topic.TOPIC, user, WRITE),
        "unfollowed": acl(ledger_topic.TOPIC, user, READ),
        "create": acl(copied, user, CREATE),
    }
    seen = [
        acl(name, user, operation)
        for name in (topic, copied, checkpoint.TOPIC, ledger_topic.TOPIC)
        for operation in (DESCRIBE, CONFIGS)
    ]
    grant(guarded.cluster(), [*seen, *(needed[what] for what in needed if what != user)])


@pytest.fixture
def topic(guarded: LocalCluster, topic_name: str) -> str:
    """A topic with records that is not copied yet, and the two internal topics."""
    independent.create(guarded.cluster(), topic_name, 1, KEPT)
    independent.write(guarded.cluster(), TopicPartition(topic_name, 0), numbered(3))
    ensure_homes(guarded.cluster())
    return topic_name


@pytest.mark.parametrize("user", ["relay", *LACKING])
def test_check_names_the_missing_permission(
    guarded: LocalCluster, topic: str, user: str, tmp_path: Path
) -> None:
    """The one missing permission is the only error, and nothing is written."""
    if user not in {"relay", "create"}:
        independent.create(guarded.cluster(), f"{topic}-copy")
    allow_run(guarded, user, topic)
    way = guarded.cluster(Listener.SASL_PLAINTEXT, username=user)
    looked = checked(tmp_path, way, way, topic)
    assert any("which of its topics are copies" in str(each) for each in looked) == (
        user == "unread"
    )
    found = errors(looked)
    if user == "relay":
        assert found == []
    else:
        (line,) = found
        said, granted = (
            each.format(topic=topic, servers=way.bootstrap_servers[0]) for each in SAYS[user]
        )
        assert said in line
        assert f"; grant the user {granted}" in line
    there = AdminClient(independent.client(guarded.cluster())).list_topics(timeout=30).topics
    assert (f"{topic}-copy" in there) == (user not in {"relay", "create"})


@pytest.mark.parametrize("hidden", ["source", "copy"])
def test_a_topic_whose_configuration_is_hidden_holds_back_no_other_one(
    guarded: LocalCluster, topic: str, hidden: str, tmp_path: Path
) -> None:
    """It is not copied, and no copy of it is created with the brokers' configuration."""
    other = f"{topic}-other"
    independent.create(guarded.cluster(), other, 1, KEPT)
    independent.write(guarded.cluster(), TopicPartition(other, 0), numbered(3))
    allow_run(guarded, "relay", topic)
    allow_run(guarded, "relay", other)
    name = other if hidden == "source" else f"{other}-copy"
    if hidden == "copy":
        independent.create(guarded.cluster(), name)
    grant(guarded.cluster(), [acl(name, "relay", CONFIGS, DENY)])
    way = guarded.cluster(Listener.SASL_PLAINTEXT, username="relay")
    mirror = configured(tmp_path, f"{topic}(-other)?", way, way)

    snapshot = configs.with_all(read_clusters.take_snapshot(Sides(MIRROR, mirror)))

    planned = run_plan.plan(snapshot)
    assert list(planned.by_topic) == [topic]
    assert [copied.source.topic_partition.topic for copied in planned.ranges] == [topic]
    (error,) = planned.held
    assert str(error).startswith(f"{other}-0: ")
    assert f"answered DescribeConfigs of topic {name} with TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert str(error).endswith(f"; grant the user DescribeConfigs on topic {name}")
    assert [new.name for new in topics.missing(snapshot)] == [f"{topic}-copy"]
    assert list(topics.conflicts(snapshot)) == []
    assert len(errors(list(preflight.check(Sides(MIRROR, mirror))))) == 1


def test_a_topic_that_exists_and_is_hidden_is_not_created(
    guarded: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """What to grant is said by name."""
    independent.create(guarded.cluster(), f"{topic}-copy")
    allow_run(guarded, "relay", topic)
    grant(guarded.cluster(), [acl(f"{topic}-copy", "relay", DESCRIBE, DENY)])
    way = guarded.cluster(Listener.SASL_PLAINTEXT, username="relay")
    snapshot = read_clusters.take_snapshot(Sides(MIRROR, configured(tmp_path, topic, way, way)))
    with snapshot.destination_client() as client:
        (error,) = topics.create(client, snapshot).values()
    assert str(error).endswith(f"; grant the user Describe on topic {topic}-copy")


@pytest.mark.parametrize("shares_id", [True, False], ids=["shared", "own"])
def test_a_right_that_is_taken_away_in_the_middle(
    guarded: LocalCluster, topic_name: str, *, shares_id: bool
) -> None:
    """Its topic fails with what to grant, and the others are copied; later it goes on."""
    cluster, user = guarded.cluster(), guarded.cluster(Listener.SASL_PLAINTEXT, username="owner")
    ensure_homes(cluster)
    # the first one takes long enough for the right to be taken away
    names = [f"{topic_name}-{number}" for number in range(3)]
    written = {name: numbered(200 if name == names[0] else 60, 5_000) for name in names}
    for name, records in written.items():
        independent.create(cluster, name, 1, KEPT)
        independent.create(cluster, f"{name}-copy", 1, KEPT)
        batches = [records[start : start + 10] for start in range(0, len(records), 10)]
        independent.write(cluster, TopicPartition(name, 0), *batches)
    first = TopicPartition(f"{names[0]}-copy", 0)
    options = CopyOptions(chunk_ms=200, max_bytes_per_second=150_000, backoff_max_ms=200)
    job = CopyJob(topic_name, "a-run", user, user, options)
    ranges = [
        CopyRange(
            model.OffsetRange(TopicPartition(name, 0), 0, len(records)),
            TopicPartition(f"{name}-copy", 0),
            owner=f"relay.{topic_name}.lane/0" if shares_id else "",
        )
        for name, records in written.items()
    ]
    denied = acl(first.topic, "owner", WRITE, DENY)
    with ThreadPoolExecutor(1) as running:
        copying = running.submit(lambda: list(copy_ranges(job, ranges)))
        independent.until(lambda: independent.settled_end(cluster, first) > 0, "the first chunk")
        grant(cluster, [denied])
        outcomes = copying.result(300)
    assert [outcome.error_kind for outcome in outcomes] == ["PermissionDeniedError", "", ""]
    assert 0 < outcomes[0].next_offset < len(written[names[0]])
    assert f"grant the user Write on topic {first.topic}" in outcomes[0].error
    revoke(cluster, [denied])
    independent.until(
        lambda: not any(outcome.error for outcome in copy_ranges(job, ranges)), "the right is back"
    )
    for copy_range, records in zip(ranges, written.values(), strict=True):
        assert independent.records_of(cluster, copy_range.destination) == records


def test_a_right_is_taken_away_from_all_that_a_transaction_holds(
    guarded: LocalCluster, topic_name: str
) -> None:
    """Its id goes on with another topic; a batch in flight is refused, and opens no transaction."""
    cluster, user = guarded.cluster(), guarded.cluster(Listener.SASL_PLAINTEXT, username="owner")
    ensure_homes(cluster)
    topic, other = (f"{topic_name}-{number}" for number in range(2))
    for name in (topic, other):
        independent.create(cluster, name)
    denied = acl(topic, "owner", WRITE, DENY)
    builder = BatchBuilder(0, 1_000)
    assert builder.extend([Record(0, 1, b"k", b"v", [])]) is None
    sent = builder.build()

    def refusal(producer: TransactionalProducer) -> RelayError | None:
        try:
            producer.send(TopicPartition(topic, 0), sent)
            producer.drain()
        except RelayError as error:
            return error
        return None

    with ClusterClient(user, DestinationError) as client:
        witness = checkpoint.homes(checkpoint.TOPIC)[0]
        producer = TransactionalProducer(client, f"relay.{topic}.lane/0", CopyOptions(), witness)
        producer.start()
        producer.add([TopicPartition(topic, 0)])
        grant(cluster, [denied])
        assert isinstance(
            independent.until(lambda: refusal(producer), "the right is gone"), PermissionDeniedError
        )
        late = copy(producer)
        producer.start()
        revoke(cluster, [denied])

        def of_late_batch() -> RelayError | None:
            error = refusal(late)
            late.release()
            return None if isinstance(error, PermissionDeniedError) else error

        found = independent.until(of_late_batch, "what was in flight is refused")
        assert isinstance(found, FencedError)
        for name in (topic, other):
            producer.add([TopicPartition(name, 0)])
            producer.send(TopicPartition(name, 0), sent)
        producer.drain()
        producer.commit()
    for name in (topic, other):
        at = TopicPartition(name, 0)
        # the marker is written after the answer
        (copied,) = independent.until(partial(independent.records_of, cluster, at), "the marker")
        assert copied.value == b"v"


def test_check_reports_that_a_topic_may_not_grow(
    guarded: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """A user without Alter on the topic cannot add the source's new partitions to the copy."""
    independent.create(guarded.cluster(), f"{topic}-copy")
    allow_run(guarded, "relay", topic)
    admin = guarded.cluster()
    job = CopyJob(MIRROR, "a-run", admin, admin)
    wanted = model.OffsetRange(TopicPartition(topic, 0), 0, 3)
    (outcome,) = copy_ranges(job, [CopyRange(wanted, TopicPartition(f"{topic}-copy", 0))])
    assert outcome.error == ""
    independent.grow(admin, topic, 2)
    way = guarded.cluster(Listener.SASL_PLAINTEXT, username="relay")
    (line,) = errors(checked(tmp_path, way, way, topic))
    assert f"answered CreatePartitions of {topic}-copy with TOPIC_AUTHORIZATION_FAILED" in line
    assert line.endswith("; grant the user Alter on the topic")


def port(cluster: Cluster) -> str:
    return cluster.bootstrap_servers[0].rpartition(":")[2]


Change = Callable[[Cluster, Certificates, Path], dict[str, Any]]
NOT_TRUSTED: dict[str, tuple[Change, str]] = {
    "another authority": (
        lambda _way, other, _folder: {"ca_location": str(other.authority)},
        "not trusted: self-signed certificate in certificate chain; check security.ca_location",
    ),
    "the system's authorities": (
        lambda _way, _other, _folder: {"ca_location": None},
        "not trusted: self-signed certificate in certificate chain; check security.ca_location",
    ),
    "a client certificate that another authority signed": (
        lambda _way, other, _folder: {
            "certificate_location": str(other.client_certificate),
            "key_location": str(other.client_key),
        },
        "/client.crt (certificate unknown); let its truststore hold the authority that signed it",
    ),
    "no client certificate": (
        lambda _way, _other, _folder: {"certificate_location": None, "key_location": None},
        "(bad certificate); set security.certificate_location and key_location",
    ),
    "the key of another certificate": (
        lambda _way, other, _folder: {"key_location": str(other.client_key)},
        "/client.key is not the key of the certificate in ",
    ),
    "a key that nobody can read without its password": (
        lambda way, _other, folder: {
            "key_location": str(encrypted(key_of(way), folder / "encrypted.key", PASSWORD))
        },
        "encrypted.key cannot be read; check security.key_password",
    ),
    "a key where the certificate should be": (
        lambda way, _other, _folder: {"certificate_location": str(key_of(way))},
        "/client.key is not a PEM file with the client's certificate; convert it to PEM",
    ),
    "a certificate without its key": (
        lambda _way, _other, _folder: {"key_location": None},
        "/client.crt is not a PEM file with the private key of the client's certificate",
    ),
    "authorities that are no PEM": (
        lambda _way, _other, folder: {"ca_location": str(junk(folder))},
        "{folder}/junk is not a PEM file with the authorities to trust; convert it to PEM",
    ),
    "authorities that are damaged": (
        lambda way, _other, folder: {"ca_location": str(damaged(way, folder))},
        "security.ca_location: the certificates in {folder}/damaged are damaged",
    ),
}


def key_of(way: Cluster) -> Path:
    return Path(way.security.key_location or "")


def junk(folder: Path) -> Path:
    target = folder / "junk"
    target.write_bytes(bytes(range(256)))
    return target


def damaged(way: Cluster, folder: Path) -> Path:
    target = folder / "damaged"
    lines = Path(way.security.ca_location or "").read_text().splitlines(keepends=True)
    target.write_text("".join([lines[0], *lines[2:]]))
    return target


@pytest.mark.parametrize("wrong", NOT_TRUSTED)
def test_check_reports_certificates_that_do_not_match(
    guarded: LocalCluster,
    topic: str,
    stranger: Certificates,
    tokens: TokenEndpoint,
    wrong: str,
    tmp_path: Path,
) -> None:
    """One line for each side says what does not match, where, and what to do."""
    way = way_in(guarded, Listener.SASL_SSL, MECHANISMS[-1], tokens)
    change, says = NOT_TRUSTED[wrong]
    bad = secured(way, **change(way, stranger, tmp_path))
    places = ("upstream one", "to destination")
    for line, place in zip(errors(checked(tmp_path, bad, bad, topic)), places, strict=True):
        assert says.format(folder=tmp_path) in line
        assert line.startswith(f"{MIRROR}: {place} (127.0.0.1:{port(way)}): ")


def test_a_host_that_the_certificate_does_not_name(
    guarded: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """The certificate must name the host of bootstrap_servers, unless verify_hostname is off."""
    way = guarded.cluster(Listener.SSL)
    other = replace(way, bootstrap_servers=(f"127.1:{port(way)}",))
    (line,) = errors(checked(tmp_path, other, guarded.cluster(), topic))
    assert (
        "Hostname mismatch, certificate is not valid for '127.1'; "
        "use a name that is in the certificate in bootstrap" in line
    )
    lax = secured(other, verify_hostname=False)
    assert errors(checked(tmp_path, lax, guarded.cluster(), topic)) == []


def test_a_wrong_password_is_not_waited_for(
    guarded: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """Not with `give_up_after: never` either; one that has the right one is read, or awaited."""
    way = guarded.cluster(Listener.SASL_PLAINTEXT, username="owner")
    locked = secured(way, password="wrong-horse")

    def taken(to: Cluster, *upstreams: Cluster, give_up_after: object = -1) -> ClusterSnapshot:
        mirror = configured(tmp_path, topic, to, *upstreams, give_up_after=give_up_after)
        return read_clusters.take_snapshot(Sides(MIRROR, mirror, Untiring()))

    for to, *upstreams in ((way, locked), (way, locked, locked), (locked, way)):
        with pytest.raises(PermissionDeniedError, match="refused user 'owner'") as caught:
            taken(to, *upstreams)
        assert caught.value.exit_code == 1
        assert "\n" not in str(caught.value)
    assert taken(way, locked, way).upstream.name == "two"
    away = replace(way, bootstrap_servers=("127.0.0.1:1",))
    line = r"one: .* refused user 'owner' .*two: .* cannot be reached"
    with pytest.raises(SourceError, match=line):
        taken(way, locked, away, give_up_after="1ms")

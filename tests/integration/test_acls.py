"""Two clusters with authorizers: readers of the source may read the copy, and groups may move."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
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

from relay_pipelines.cli import main
from relay_pipelines.errors import WrongClusterError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import Listener, LocalCluster
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.offsets.following import follow
from relay_pipelines.offsets.group_look import Following, GroupLooker
from relay_pipelines.prepare import permissions, topic_configs, topics
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import configs, read_clusters
from tests.copying import KEPT
from tests.support import commands, consumers, independent
from tests.support.acls import ALLOW, CLUSTER, DENY, GROUP, PREFIXED, TOPIC, acl, grant, may_write
from tests.support.address import Address
from tests.support.independent import Record, client, configure, until, write
from tests.support.planned_copy import at_destination, copy_planned

CLOCK = SystemClock()
OPTIONS = CopyOptions(request_timeout_ms=10_000)
PASSWORD = "correct-horse"
NAMES = ("ann", "bob", "eve", "relay", "mover", "watcher")
ORDERS, OTHER = "shop.orders", "shop.other"


def of_group(
    name: str, user: str, operation: AclOperation, permission: AclPermissionType = ALLOW
) -> AclBinding:
    return acl(name, user, operation, permission, kind=GROUP)


def granted(cluster: LocalCluster) -> set[tuple[str, ...]]:
    """Return every ACL on a topic, as an independent client sees it."""
    pattern, any_of = ResourcePatternType.ANY, (AclOperation.ANY, AclPermissionType.ANY)
    anything = AclBindingFilter(TOPIC, None, pattern, None, None, *any_of)
    admin = AdminClient(client(cluster.cluster(Listener.PLAINTEXT)))
    return {
        (
            *(found.name, found.resource_pattern_type.name, found.principal),
            *(found.operation.name, found.permission_type.name),
        )
        for found in admin.describe_acls(anything).result(150)
    }


def may_read(cluster: LocalCluster, user: str, topic: str) -> bool:
    """Whether a consumer of the user sees the topic and gets its first record."""
    with consumers.consumer(cluster.cluster(username=user), "readers") as consumer:
        if topic not in consumer.list_topics(timeout=30).topics:
            return False
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        message = until(lambda: consumer.poll(1.0), f"{topic} read by {user}")
    error = message.error()
    assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    return error is None


class Guarded:
    """Two clusters where users need ACLs, and topics of which one has been copied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        options: dict[str, Any] = {
            "listeners": (Listener.SASL_PLAINTEXT,),
            "users": dict.fromkeys(NAMES, PASSWORD),
            "authorizer": True,
        }
        self.source = LocalCluster("source", folder=folder / "source", **options)
        self.destination = LocalCluster("destination", folder=folder / "destination", **options)

    @property
    def here(self) -> Cluster:
        """The source without authentication, where everybody may do everything."""
        return self.source.cluster(Listener.PLAINTEXT)

    @property
    def there(self) -> Cluster:
        return self.destination.cluster(Listener.PLAINTEXT)

    def start(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(LocalCluster.start, (self.source, self.destination)))
        for topic in (ORDERS, OTHER):
            independent.create(self.here, topic, 1, KEPT)
            write(self.here, TopicPartition(topic, 0), [Record(None, b"first")])
        taken = read_clusters.take_snapshot(
            Sides("m", Mirror.model_validate(self.mirror(ORDERS)), CLOCK)
        )
        at_destination(taken, topics.create)
        assert len(copy_planned(taken)) == 1

    def mirror(
        self,
        allow: str = r"shop\..*",
        source: Cluster | None = None,
        destination: Cluster | None = None,
    ) -> dict[str, Any]:
        """The mirror's section of relay.yaml, by default without authentication."""
        return commands.mirror(
            source or self.here, destination or self.there, allow, topics={"rename": "copy.{topic}"}
        )

    def config(self, **mirror: Any) -> list[str]:
        path = commands.configured(self.folder, {"m": self.mirror(**mirror)})
        return ["acls", "-c", str(path)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    both, read = Guarded(tmp_path_factory.mktemp("guarded")), AclOperation.READ
    try:
        both.start()
        grant(
            both.here,
            (
                acl("shop.", "ann", read, pattern=PREFIXED),
                acl(ORDERS, "bob", AclOperation.ALL),
                acl(ORDERS, "ann", AclOperation.WRITE),
                acl("*", "*", read),
                acl("shop.o", "eve", read, DENY, pattern=PREFIXED),
                acl("elsewhere", "ann", read),
            ),
        )
        for cluster in (both.here, both.there):
            grant(cluster, [of_group("*", "*", read)])
        foreign = TopicPartition("copy.shop.foreign", 0)
        independent.create(both.there, foreign.topic, 1, KEPT)
        write(both.there, foreign, [Record(None, b"theirs")])
        until(lambda: may_read(both.source, "bob", ORDERS), "the ACLs at the source")
        yield both
    finally:
        both.source.discard()
        both.destination.discard()


def test_what_one_cluster_lacks_is_not_created_at_another(guarded: Guarded) -> None:
    """One that answers at the address after the report was not asked."""
    with Address(guarded.there) as address:
        mirror = Mirror.model_validate(guarded.mirror(destination=address.cluster))
        sides = Sides("m", mirror, CLOCK)
        report = permissions.report(sides)
        assert report.missing
        address.lead_to(guarded.here)
        with pytest.raises(WrongClusterError):
            permissions.apply(sides, report)


def test_acls_reports_then_apply_grants_reading_only(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run writes nothing; --execute creates the missing ACLs and grants only Read."""
    command, before = guarded.config(), granted(guarded.destination)
    copied = f"copy.{ORDERS}"
    assert main(command) == 0
    said = capsys.readouterr()
    assert "m: 4 ACLs missing; --execute creates them" in said.out
    none = f"{copied} has no ACLs at the destination yet: if its brokers have allow.everyone."
    assert said.err.startswith(f"warning: m: {none}")
    assert granted(guarded.destination) == before
    readers = "ann", "bob", "eve"
    assert not any(may_read(guarded.destination, user, copied) for user in readers)

    assert main([*command, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["mirrors"]
    lines = {
        (row["topic"], row["permission"], row["operation"], row["principal"], row["state"])
        for row in shown["acls"]
    }
    expected = [
        ("DENY", "READ", "User:eve"),
        ("ALLOW", "READ", "User:ann"),
        ("ALLOW", "READ", "User:bob"),
        ("ALLOW", "READ", "User:*"),
    ]
    foreign = (copied, "ALLOW", "WRITE", "User:ann", "not copied")
    assert {line for line in lines if line[0] == copied} == {
        foreign,
        *((copied, *rest, "missing") for rest in expected),
    }
    assert {line[-1] for line in lines if line[0] != copied} == {"not copied"}, (
        "nothing was copied to it yet"
    )

    assert main([*command, "--execute"]) == 0
    assert "m: 4 ACLs created" in capsys.readouterr().out
    created = granted(guarded.destination) - before
    assert created == {
        (copied, "LITERAL", principal, operation, permission)
        for permission, operation, principal in expected
    }
    for cluster, topic, writes in (
        (guarded.source, ORDERS, True),
        (guarded.destination, copied, False),
    ):
        assert [may_read(cluster, user, topic) for user in readers] == [True, True, False]
        assert [may_write(cluster.cluster(username=user), topic) for user in ("ann", "bob")] == [
            writes,
            writes,
        ]
    assert not may_read(guarded.destination, "ann", "copy.shop.foreign"), (
        "a prefix of the source opens nothing else"
    )

    assert main([*command, "--execute"]) == 0
    again = capsys.readouterr()
    assert ("m: 0 ACLs created" in again.out, again.err) == (True, "")
    assert granted(guarded.destination) - before == created


def test_a_missing_permission_is_named(
    guarded: Guarded, source_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Describe, Alter or AlterConfigs, in one line; one says that a cluster has no authorizer."""
    relay = guarded.destination.cluster(username="relay")
    everything = acl("*", "relay", AclOperation.DESCRIBE), acl("*", "relay", AclOperation.READ)
    grant(guarded.there, everything)
    until(lambda: may_read(guarded.destination, "relay", f"copy.{ORDERS}"), "the ACLs")
    assert main(guarded.config(destination=relay)) == 1
    line = capsys.readouterr().err
    assert "answered DescribeAcls with CLUSTER_AUTHORIZATION_FAILED" in line
    assert line.endswith("; grant the user Describe on the cluster\n")

    describe = acl("kafka-cluster", "relay", AclOperation.DESCRIBE, kind=CLUSTER)
    grant(guarded.there, [describe])
    grant(guarded.here, [acl(ORDERS, "ann", AclOperation.DESCRIBE_CONFIGS)])
    command = guarded.config(destination=relay)
    until(lambda: main(command) == 0, "the ACLs")
    capsys.readouterr()
    assert main([*command, "--execute"]) == 1
    line = capsys.readouterr().err
    assert (
        "answered CreateAcls of ALLOW DESCRIBE_CONFIGS on copy.shop.orders to User:ann from * "
        "with CLUSTER_AUTHORIZATION_FAILED" in line
    )
    assert line.endswith("; grant the user Alter on the cluster\n")

    configure(guarded.here, ResourceType.TOPIC, ORDERS, retention_ms=7_000_000)
    grant(guarded.there, [acl("*", "relay", AclOperation.DESCRIBE_CONFIGS)])
    following = guarded.mirror(destination=relay)
    following["topics"] |= {"sync_configs": True}
    mirror = Mirror.model_validate(following)
    taken = configs.with_all(read_clusters.take_snapshot(Sides("m", mirror, CLOCK)))
    remedy = f"grant the user AlterConfigs on topic copy.{ORDERS}"
    _, done, refused = at_destination(taken, topic_configs.sync)
    assert (done, list(refused)) == ([], [f"copy.{ORDERS}"])
    assert str(refused[f"copy.{ORDERS}"]).endswith(f"; {remedy}")
    assert remedy in [error.remedy for error in permissions.missing_permissions(taken)], (
        "known before a run"
    )

    open_to_all = source_cluster.cluster()
    independent.create(open_to_all, ORDERS, 1, KEPT)
    before = granted(guarded.destination)
    assert main([*guarded.config(source=open_to_all), "--execute"]) == 0
    said = capsys.readouterr()
    address = open_to_all.bootstrap_servers[0]
    nothing = "everybody may do everything there, and no ACLs are copied"
    assert said.out == f"m: one ({address}) has no authorizer: {nothing}\n"
    assert said.err == ""
    assert granted(guarded.destination) == before


def test_groups_that_a_user_may_not_see_or_move_stop_no_other(
    guarded: Guarded, tmp_path: Path
) -> None:
    """Each is one line with what to grant, whatever is done with them; the others are moved."""
    at, copy = TopicPartition(ORDERS, 0), TopicPartition(f"copy.{ORDERS}", 0)
    read, see = AclOperation.READ, AclOperation.DESCRIBE
    for group in ("free", "fresh", "hidden", "unseen", "unmoved"):
        consumers.commit(guarded.here, group, at, 1)
    users, own = ("mover", "watcher"), (checkpoint.TOPIC, ledger_topic.TOPIC)
    grant(guarded.here, [of_group("hidden", "mover", see, DENY)])
    grant(guarded.here, [acl(ORDERS, user, read) for user in users])
    unseen = of_group("unseen", "mover", see, DENY), of_group("unmoved", "mover", read, DENY)
    grant(guarded.there, unseen)
    grant(guarded.there, [acl(topic, user, read) for topic in own for user in users])
    grant(guarded.there, [acl(copy.topic, "watcher", see), acl(copy.topic, "mover", read)])
    grant(guarded.there, [acl(copy.topic, "watcher", read, DENY)])
    until(lambda: may_read(guarded.source, "watcher", ORDERS), "the ACLs at the source")
    until(lambda: may_read(guarded.destination, "mover", copy.topic), "those at the destination")

    def section(user: str, **more: Any) -> dict[str, Any]:
        clusters = (each.cluster(username=user) for each in (guarded.source, guarded.destination))
        return guarded.mirror(ORDERS, *clusters) | more

    def moved(user: str, action: str, *more: str) -> tuple[dict[str, Any], str]:
        config = commands.configured(tmp_path, {"m": section(user)})
        named = [f"--group={name}" for name in ("hidden", "unseen", "unmoved", "free")]
        done = commands.relay_here(config, "offsets", action, "--json", *named, *more)
        assert done.returncode == 1, done.stderr
        return {row["group"]: row for row in json.loads(done.stdout)["positions"]}, done.stderr

    for action, *more in (["translate"], ["verify"], ["apply", "--execute"]):
        rows, said = moved("mover", action, *more)
        assert list(rows) == ["unseen", "unmoved", "free"]
        assert said.count("\n") == 1
        assert "group hidden with GROUP_AUTHORIZATION_FAILED" in said
        assert said.endswith("; grant the user Describe on group hidden\n")
    assert [row["state"] for row in rows.values()] == ["refused", "refused", "committed"]
    assert rows["unseen"]["state_why"].endswith("; grant the user Describe on group unseen")
    why = f"; grant the user Read on group unmoved and topic {copy.topic}"
    assert rows["unmoved"]["state_why"].endswith(why)
    rows, said = moved("watcher", "apply", "--execute")
    assert [row["state"] for row in rows.values()] == [*(["refused"] * 3), "same"]
    assert "OffsetCommit of group hidden with TOPIC_AUTH" in rows["hidden"]["state_why"]

    chosen = {"allow": ["hidden", "unseen", "unm.*", "fresh"]}
    mirror = Mirror.model_validate(section("mover", groups=chosen))
    with closing(GroupLooker(Sides("m", mirror, CLOCK))) as looker:
        looks = {look.group: (look.state, look.why[-40:]) for look in follow(looker)}
    assert looks == {
        "fresh": (Following.FOLLOWED, ""),
        "hidden": (Following.FAILS, "; grant the user Describe on group hidden"[-40:]),
        "unmoved": (Following.FAILS, why[-40:]),
        "unseen": (Following.FAILS, "; grant the user Describe on group unseen"[-40:]),
    }
    there = guarded.there
    assert consumers.committed(there, "fresh", copy)[0] == 2

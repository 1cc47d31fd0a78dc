"""`relay convert`: the properties of MirrorMaker 2 become a relay.yaml that loads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines.cli import main
from relay_pipelines.migration.document import parse
from relay_pipelines.plan.topic_selection import destinations, select
from relay_pipelines.settings import load

MIRRORMAKER2 = r"""
# two clusters, both directions
clusters = eu, us
eu.bootstrap.servers = eu1:9092, \
    eu2:9092
us.bootstrap.servers: us1:9092
eu.security.protocol=SASL_SSL
eu.sasl.mechanism=SCRAM-SHA-512
eu.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
    username="mirror" password="hunter2";
eu.ssl.truststore.location=/etc/kafka/ca.pem
eu.ssl.truststore.type=PEM
eu.ssl.endpoint.identification.algorithm=
us.security.protocol=SASL_SSL
us.sasl.mechanism=AWS_MSK_IAM
us.sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;
us.sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler
us.ssl.truststore.location=/etc/kafka/ca.jks
us.ssl.truststore.password=hunter3

eu->us.enabled = true
eu->us.topics = orders\\..*, payments
eu->us.topics.exclude = .*\\.tmp, \\p{Alpha}+
eu->us.groups = .*
us->eu.enabled = true
us->eu.topics = .*
eu->lab.enabled = false
eu->lab.topics = .*

eu.consumer.auto.offset.reset = latest
replication.factor = 3
sync.topic.acls.enabled = false
sync.topic.configs.enabled = true
refresh.topics.interval.seconds = 60
emit.heartbeats.interval.seconds = 5
emit.checkpoints.enabled = true
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
us.producer.compression.type = zstd
tasks.max = 4
exactly.once.source.support = enabled
transforms = mask
surprising.key = x
"""
JAVA = r"""
# comment
! comment
a=1
b : 2
c 3
d\ e = x\ty
f = one, \
    two
g = \u0041\\
h
a = last
"""
SASL_SSL: dict[str, Any] = {"protocol": "SASL_SSL"}
Convert = Callable[[str], tuple[dict[str, Any], str]]


@pytest.fixture
def converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    """Convert a text; return the parsed relay.yaml, and its comments as one line."""

    def convert(text: str) -> tuple[dict[str, Any], str]:
        given = tmp_path / "given"
        given.write_text(text)
        assert main(["convert", str(given)]) == 0
        written = capsys.readouterr().out
        comments = re.findall(r"^# ?(.*)$", written, re.MULTILINE)
        return yaml.safe_load(written), re.sub(r"\s+", " ", " ".join(comments))

    return convert


def test_a_mirrormaker_in_both_directions(converted: Convert) -> None:
    """Each enabled flow is a mirror that does not copy the other's copies back."""
    tree, comments = converted(MIRRORMAKER2)
    scram = {"mechanism": "SCRAM-SHA-512", "username": "mirror", "password": "${EU_PASSWORD}"}
    tls = {"ca_location": "/etc/kafka/ca.pem", "verify_hostname": False}
    eu = {"bootstrap_servers": ["eu1:9092", "eu2:9092"], "security": SASL_SSL | scram | tls}
    tokens: dict[str, Any] = {"mechanism": "OAUTHBEARER", "token_provider": "msk_tokens:signed"}
    tokens["token_provider_config"] = {"region": "eu-west-1"}
    us = {"bootstrap_servers": ["us1:9092"], "security": SASL_SSL | tokens}
    internal = r".*[\-\.]internal"
    to_us = {
        "allow": [r"orders\..*", "payments"],
        "rename": "eu.{topic}",
        "deny": [r".*\.tmp", internal, r"(.*\.)?us\..*"],
        "sync_configs": True,
    }
    to_eu = {
        "allow": [".*"],
        "rename": "us.{topic}",
        "deny": [internal, r".*\.replica", r"(.*\.)?eu\..*"],
        "sync_configs": True,
    }
    copies = {"copy": {"parallelism": 4}}
    assert tree["mirrors"] == {
        "eu-us": {
            "source": {"nodes": [{"name": "eu", **eu}]},
            "destination": us | {"replication_factor": 3},
            "topics": to_us,
            "start": "latest",
            **copies,
        },
        "us-eu": {
            "source": {"nodes": [{"name": "us", **us}]},
            "destination": eu | {"replication_factor": 3},
            "topics": to_eu,
            **copies,
        },
    }
    assert "hunter" not in comments + str(tree)
    for key in (
        "us.sasl.mechanism: write msk_tokens.py",
        "us.ssl.truststore.location: it is not PEM",
        "eu->us.topics.exclude: Python refuses the regular expression '\\\\p{Alpha}+'",
        "eu->us.groups: write which groups are to be kept up to date under groups",
        "eu->lab.topics: the flow is not enabled",
        "sync.topic.acls.enabled: run relay acls --apply",
        "refresh.topics.interval.seconds: every run reads",
        "emit.heartbeats.interval.seconds: there are no heartbeats",
        "emit.checkpoints.enabled: write which groups",
        "checkpoints.topic.replication.factor: write which groups",
        "heartbeats.topic.replication.factor: there are no heartbeats",
        "offset-syncs.topic.replication.factor: write which groups",
        "offset.storage.replication.factor: there is no Kafka Connect",
        "status.storage.replication.factor: there is no",
        "config.storage.replication.factor: there is no",
        "us.producer.compression.type: it is for Kafka's Java clients",
        "exactly.once.source.support: every copy is exactly once",
        "transforms: write a Python class",
        "surprising.key: relay knows nothing that corresponds to it",
    ):
        assert f" {key}" in comments, key


THREE = (
    "clusters=a,b,c\na.bootstrap.servers=a:1\nb.bootstrap.servers=b:1\nc.bootstrap.servers=c:1\n"
)
TWO = THREE.replace(",c", "").partition("c.")[0] + "a->b.enabled=true\n"


def test_a_ring_of_flows_ends(converted: Convert, tmp_path: Path) -> None:
    """No record comes back by way of a third cluster: each round would copy it again."""
    text = THREE + "a->b.enabled=true\nb->c.enabled=true\nc->a.enabled=true\n"
    written = tmp_path / "ring.yaml"
    written.write_text(yaml.safe_dump(converted(text)[0]))
    topics: dict[str, set[str]] = {"a": {"x"}, "b": set(), "c": set()}
    for _ in range(4):
        for name, mirror in load(written).mirrors.items():
            source, target = name.split("-")
            decided = select(topics[source], mirror.topics.allow, mirror.topics.deny)
            copied = [decision.topic for decision in decided if decision.included]
            topics[target] |= set(destinations(copied, mirror.topics.rename).values())
    assert topics == {"a": {"x"}, "b": {"a.x"}, "c": {"b.a.x"}}


@pytest.mark.parametrize(
    ("excluded", "deny"),
    [
        ("", [r".*[\-\.]internal"]),
        ("foo", ["foo", r".*[\-\.]internal"]),
        ("[a-z&&[^b]]", [r".*[\-\.]internal"]),
    ],
)
def test_topics_that_are_never_copied(converted: Convert, excluded: str, deny: list[str]) -> None:
    """An empty list excludes nothing, and MirrorMaker's own topics are excluded by all lists."""
    text = f"{THREE}a->b.enabled=true\ntopics.exclude={excluded}\n"
    tree, comments = converted(text)
    assert tree["mirrors"]["a-b"]["topics"]["deny"] == [*deny, r"(.*\.)?b\..*"]
    assert ("topics.exclude: Python refuses" in comments) == ("&&" in excluded)


@pytest.mark.parametrize(
    ("policy", "rename", "noted"),
    [
        ("org.apache.kafka.connect.mirror.IdentityReplicationPolicy", None, ""),
        ("org.apache.kafka.connect.mirror.DefaultReplicationPolicy", "a_{topic}", ""),
        ("com.example.Mine", "a_{topic}", "replication.policy.class: relay cannot load Java"),
    ],
)
def test_the_names_of_a_replication_policy(
    converted: Convert, policy: str, rename: str | None, noted: str
) -> None:
    text = f"{TWO}replication.policy.class={policy}\nreplication.policy.separator=_\n"
    tree, comments = converted(text)
    assert tree["mirrors"]["a-b"]["topics"].get("rename") == rename
    assert noted in comments


def test_flows_whose_names_are_the_same_as_mirrors(converted: Convert) -> None:
    """None is left out; what is no number is noted."""
    servers = "".join(f"{name}.bootstrap.servers={name}:1\n" for name in ("a", "a-b", "b-c", "c"))
    flows = "a->b-c.enabled=true\na-b->c.enabled=true\n"
    text = f"clusters=a,a-b,b-c,c\n{servers}{flows}tasks.max=many\n"
    tree, comments = converted(text)
    assert list(tree["mirrors"]) == ["a-b-c", "a-b-c_2"]
    assert "tasks.max: 'many' is no whole number" in comments


def test_a_user_name_of_a_config_provider(converted: Convert) -> None:
    """Relay has no such providers; clusters of similar names have variables of their own."""
    text = "clusters=a-b,a_b\na-b->a_b.enabled=true\nconfig.providers=file\n"
    for name in ("a-b", "a_b"):
        user = 'username="${file:/etc/kafka:user}" password="${file:/etc/kafka:password}"'
        text += (
            f"{name}.bootstrap.servers={name}:1\n{name}.security.protocol=SASL_SSL\n"
            f"{name}.sasl.mechanism=PLAIN\n{name}.sasl.jaas.config=Plain required {user};\n"
        )
    tree, comments = converted(text)
    assert "${file" not in comments
    (mirror,) = tree["mirrors"].values()
    sides = mirror["destination"], mirror["source"]["nodes"][0]
    found = {side["security"][key] for side in sides for key in ("username", "password")}
    assert found == {"${A_B_USER_NAME}", "${A_B_USER_NAME_}", "${A_B_PASSWORD}", "${A_B_PASSWORD_}"}


def test_kerberos(converted: Convert, tmp_path: Path) -> None:
    """Principal, keytab and service name are taken; what is not there is one note, and no guess."""
    keytab, login = tmp_path / "relay.keytab", "com.sun.security.auth.module.Krb5LoginModule"
    keytab.touch()
    named = 'principal="relay@EXAMPLE.COM"'
    text = "clusters=a,b,c\na->b.enabled=true\nc->b.enabled=true\n"
    for name, file, own in (
        ("a", keytab, named),
        ("b", "/none/b.keytab", named),
        ("c", keytab, ""),
    ):
        text += (
            f"{name}.bootstrap.servers={name}:1\n{name}.security.protocol=SASL_SSL\n"
            f"{name}.sasl.kerberos.service.name=broker\n{name}.sasl.jaas.config={login} required"
            f' useKeyTab=true storeKey=true keyTab="{file}" {own};\n'
        )
    tree, comments = converted(text)
    sources = [mirror["source"]["nodes"][0]["security"] for mirror in tree["mirrors"].values()]
    nobody = {"protocol": "SASL_SSL", "mechanism": "GSSAPI", "service_name": "broker"}
    expected = nobody | {"principal": "relay@EXAMPLE.COM"}
    assert sources == [expected | {"keytab": str(keytab)}, nobody]
    assert tree["mirrors"]["a-b"]["destination"]["security"] == expected
    assert comments.count("sasl.jaas.config: ") == 2
    assert "/none/b.keytab is not here; set security.keytab" in comments
    no_name = f"names no principal for {keytab}; set security.principal and security.keytab"
    assert no_name in " ".join(comments.replace("#", "").split())


def test_names_in_single_quotes(converted: Convert) -> None:
    """Java reads both kinds of quotes, also in one value."""
    text = (
        f"{TWO}a.security.protocol=SASL_SSL\na.sasl.mechanism=PLAIN\n"
        "a.sasl.jaas.config=Plain required"
        " password='pass\"word' username='o\"neil' other=\"it's\";\n"
    )
    tree, comments = converted(text)
    assert tree["mirrors"]["a-b"]["source"]["nodes"][0]["security"]["username"] == 'o"neil'
    assert 'pass"word' not in f"{tree} {comments}"


def test_the_output_is_a_new_file_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that exists is never replaced."""
    given, written = tmp_path / "mm2.properties", tmp_path / "relay.yaml"
    given.write_text(TWO)
    command = ["convert", str(given), "-o", str(written)]
    assert main(command) == 0
    assert load(written).mirror("a-b").nodes[0].bootstrap_servers == ("a:1",)
    assert main(command) == 2
    assert capsys.readouterr().err == (
        f"error: {written} exists; name another file, or remove it\n"
    )


NOT_VALID = (
    r"the converted configuration is not valid: .*bootstrap_servers\[0\]: expected host:port,"
    r" got 'b'; correct the configuration that is converted"
)
NO_TOPICS = "a->b.topics: no regular expression that Python accepts; name the topics; .*"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("clusters = a, b", "no flow is enabled; .*"),
        ("clusters = a, b\na->b.enabled = true", "a.bootstrap.servers is missing; .*"),
        (TWO.replace("b:1", "b"), NOT_VALID),
        *((f"{TWO}a->b.topics={topics}", NO_TOPICS) for topics in ("", r"\\p{Alpha}+")),
    ],
)
def test_what_cannot_be_converted_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    given = tmp_path / "given"
    given.write_text(text)
    assert main(["convert", str(given)]) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(f"error: {re.escape(str(given))}: {line}\n", error), error


def test_properties_are_read_as_java_reads_them() -> None:
    """Separators, comments, continued lines and escapes."""
    expected = {"a": "last", "b": "2", "c": "3", "d e": "x\ty", "f": "one, two", "g": "A\\"}
    assert parse(JAVA) == expected | {"h": ""}

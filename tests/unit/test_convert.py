"""`relay convert`: the properties of MirrorMaker 2 become a relay.yaml that loads."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines.cli import main
from relay_pipelines.migration.document import parse
from relay_pipelines.plan.topic_selection import select, targets
from relay_pipelines.settings import load
from tests.support.wordings import Wordings

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


def test_a_mirrormaker_in_both_directions(
    wordings: Wordings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither flow copies back; a comment says what was not taken over, and no secret is in it."""
    monkeypatch.chdir(Path(__file__).parent)
    assert main(["convert", "mirrormaker2.properties"]) == 0
    written = capsys.readouterr().out
    assert "hunter" not in written
    wordings.check("convert: mirrormaker2.properties", written.strip())


def clusters(*names: str, flows: str = "") -> str:
    """Return the properties of clusters, and of flows such as `a->b c->b`."""
    servers = "".join(f"{name}.bootstrap.servers={name}:1\n" for name in names)
    enabled = "".join(f"{flow}.enabled=true\n" for flow in flows.split())
    return f"clusters={','.join(names)}\n{servers}{enabled}"


def sasl(cluster: str, mechanism: str, login: str) -> str:
    """Return the properties of a login; Kafka's own mechanism is GSSAPI."""
    named = f"{cluster}.sasl.mechanism={mechanism}\n" if mechanism else ""
    return f"{cluster}.security.protocol=SASL_SSL\n{named}{cluster}.sasl.jaas.config={login}\n"


TWO = clusters("a", "b", flows="a->b")
INTERNAL = r".*[\-\.]internal"


def test_a_ring_of_flows_ends(converted: Convert, tmp_path: Path) -> None:
    """No record comes back by way of a third cluster: each round would copy it again."""
    ring = clusters("a", "b", "c", flows="a->b b->c c->a")
    written = tmp_path / "ring.yaml"
    written.write_text(yaml.safe_dump(converted(ring)[0]))
    topics: dict[str, set[str]] = {"a": {"x"}, "b": set(), "c": set()}
    for _ in range(4):
        for name, mirror in load(written).mirrors.items():
            source, target = name.split("-")
            decided = select(topics[source], mirror.topics.allow, mirror.topics.deny)
            copied = [decision.topic for decision in decided if decision.included]
            topics[target] |= {to.topic for to in targets(copied, mirror.topics.rename).values()}
    assert topics == {"a": {"x"}, "b": {"a.x"}, "c": {"b.a.x"}}


@pytest.mark.parametrize(
    ("excluded", "deny"),
    [("", [INTERNAL]), ("foo", ["foo", INTERNAL]), ("[a-z&&[^b]]", [INTERNAL])],
)
def test_topics_that_are_never_copied(converted: Convert, excluded: str, deny: list[str]) -> None:
    """An empty list excludes nothing, and MirrorMaker's own topics are excluded by all lists."""
    tree, comments = converted(f"{TWO}topics.exclude={excluded}\n")
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
def test_policies_of_names(converted: Convert, policy: str, rename: str | None, noted: str) -> None:
    text = f"{TWO}replication.policy.class={policy}\nreplication.policy.separator=_\n"
    tree, comments = converted(text)
    assert tree["mirrors"]["a-b"]["topics"].get("rename") == rename
    assert noted in comments


def test_flows_whose_names_are_the_same_as_mirrors(converted: Convert) -> None:
    """None is left out; what is no number is noted."""
    text = clusters("a", "a-b", "b-c", "c", flows="a->b-c a-b->c")
    tree, comments = converted(f"{text}tasks.max=many\n")
    assert list(tree["mirrors"]) == ["a-b-c", "a-b-c_2"]
    assert "tasks.max: 'many' is no whole number" in comments


def test_a_user_name_of_a_config_provider(converted: Convert) -> None:
    """Relay has no such providers; clusters of similar names have variables of their own."""
    user = 'username="${file:/etc/kafka:user}" password="${file:/etc/kafka:password}"'
    logins = "".join(sasl(name, "PLAIN", f"Plain required {user};") for name in ("a-b", "a_b"))
    text = clusters("a-b", "a_b", flows="a-b->a_b") + logins
    tree, comments = converted(f"{text}config.providers=file\n")
    assert "${file" not in comments
    (mirror,) = tree["mirrors"].values()
    sides = mirror["destination"], mirror["source"]["upstreams"][0]
    found = {side["security"][key] for side in sides for key in ("username", "password")}
    assert found == {"${A_B_USER_NAME}", "${A_B_USER_NAME_}", "${A_B_PASSWORD}", "${A_B_PASSWORD_}"}


def test_kerberos(converted: Convert, tmp_path: Path) -> None:
    """Principal, keytab and service name are taken; what is not there is one note, and no guess."""
    keytab, login = tmp_path / "relay.keytab", "com.sun.security.auth.module.Krb5LoginModule"
    keytab.touch()
    named = 'principal="relay@EXAMPLE.COM"'
    text = clusters("a", "b", "c", flows="a->b c->b")
    for name, file, own in ("a", keytab, named), ("b", "/none/b.keytab", named), ("c", keytab, ""):
        options = f'useKeyTab=true storeKey=true keyTab="{file}" {own};'
        text += sasl(name, "", f"{login} required {options}")
        text += f"{name}.sasl.kerberos.service.name=broker\n"
    tree, comments = converted(text)
    sources = [mirror["source"]["upstreams"][0]["security"] for mirror in tree["mirrors"].values()]
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
    login = "Plain required password='pass\"word' username='o\"neil' other=\"it's\";"
    tree, comments = converted(TWO + sasl("a", "PLAIN", login))
    assert tree["mirrors"]["a-b"]["source"]["upstreams"][0]["security"]["username"] == 'o"neil'
    assert 'pass"word' not in f"{tree} {comments}"


def test_the_output_is_a_new_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that exists is never replaced."""
    given, written = tmp_path / "mm2.properties", tmp_path / "relay.yaml"
    given.write_text(TWO)
    command = ["convert", str(given), "-o", str(written)]
    assert main(command) == 0
    assert load(written).mirror("a-b").upstreams[0].bootstrap_servers == ("a:1",)
    assert main(command) == 2
    assert capsys.readouterr().err == f"error: {written} exists; name another file, or remove it\n"


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

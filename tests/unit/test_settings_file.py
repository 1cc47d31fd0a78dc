"""relay.yaml as a file: YAML, `${ENV_VAR}` and `${file:path}`."""

import pickle
from operator import attrgetter
from pathlib import Path

import pytest

from relay_pipelines.plan.positions import OnDataLoss
from relay_pipelines.settings import load
from tests.support.config_files import (
    MINIMAL,
    SASL,
    SECRET,
    UPSTREAM_PATH,
    changed,
    located,
    refusal,
)

REFERENCE = (
    "expected ${NAME}, ${NAME:-default} or ${file:path}, one not inside another; write $${ for a"
    " plain ${"
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("mirrors: {}\nspark: {}\nmirrors: {}\n", ":3:1", id="a section twice"),
        pytest.param("spark:\n  conf: {a: 1, b: 2, a: 3}\n", ":2:22", id="a key twice in one line"),
        pytest.param("on: 1\n", ":1:1", id="a key that YAML reads as true"),
        pytest.param("? [a, b]\n: 1\n", ":1:3", id="a list as a key"),
        pytest.param("a: 1\n b: 2\n", ":2:3", id="a key that is indented"),
        pytest.param("a: [1\n", ":2:1", id="a list that does not end"),
        pytest.param("a: \tb\nc: \x07\n", ":2:4", id="an unprintable character"),
        pytest.param("a: 1\n---\nb: 2\n", ":2:1", id="two documents"),
        pytest.param(f"password: *{SECRET}\n", ":1:11", id="an alias of nothing"),
        pytest.param(f"password: !{SECRET} x\n", ":1:11", id="an unknown tag"),
        pytest.param("a: &a\n  b: *a\n", ": ", id="an alias to its own section"),
        pytest.param("a: " + "[" * 2000 + "]" * 2000, ": ", id="too deep"),
        pytest.param("a: [${A:-${B}}]\n", ":1:6", id="a reference in a list"),
        pytest.param("a:\n\tb: 1\n", ":2:1", id="a tab"),
        pytest.param(r'a: ["x\.y"]', ":1:8", id="a regular expression in double quotes"),
        pytest.param("a: !!int x\n", ":1:4", id="a tag of another type"),
        pytest.param("a: !!bool x\n", ":1:4", id="a tag of another type, true or false"),
        pytest.param("a: " + "9" * 5_000, ":1:4", id="a number of 5,000 digits"),
        pytest.param("", "", id="an empty file"),
        pytest.param("# nothing\n", "", id="a comment"),
        pytest.param("- a\n", "", id="a list"),
        pytest.param("just text\n", "", id="text"),
    ],
)
def test_is_refused_with_line_and_column(write_config, wordings, request, text, place):
    path = write_config(text)
    said = located(path).removeprefix(str(path))
    assert said.startswith(place)
    wordings.check(f"file: {request.node.callspec.id}", said)


def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path, wordings):
    path = tmp_path / "relay.yaml"
    said = [refusal(path), refusal(tmp_path)]
    path.write_bytes(b"a: \xe4\n")
    said.append(refusal(path))
    wordings.check("file: none that can be read", "\n".join(said).replace(str(tmp_path), "FOLDER"))
    path.write_text(MINIMAL, encoding="utf-8-sig")  # a byte order mark is accepted
    assert load(path).mirror("orders")


def test_all_problems_are_reported_at_once(write_config):
    path = write_config(
        changed({"metric": 1, "@upstream/name": "${UNSET}", "@/topics/allow": ["("]})
    )
    lines = refusal(path).splitlines()
    assert lines[0] == f"{path}: 3 problems"
    text = path.read_text().splitlines()
    places = {"metric", f"{UPSTREAM_PATH}.name", "mirrors.orders.topics.allow[0]"}
    assert {line.split(": ")[1] for line in lines[1:]} == places
    numbers = [int(line.split(": ")[0].removeprefix("  line ")) for line in lines[1:]]
    written = {text[number - 1].strip() for number in numbers}
    assert written == {"- (", "metric: 1", "name: ${UNSET}"}


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ("    window:\n      every: soon\n", ":9: mirrors.orders.window.every"),
        ("    window:\n      evry: 1m\n", ":9: mirrors.orders.window.evry"),
        ("    topics:\n      deny:\n      - a\n      - (\n", ":11: mirrors.orders.topics.deny[1]"),
        ("    lanes:\n      a: {}\n", ":9: mirrors.orders.lanes.a.topics"),
        ("spark: &s {master: yarn}\nmetrics:\n  <<: *s\n", ":8: metrics.master"),
        # YAML reads dates by itself, before the key sees them
        ("    start: {timestamp: 2026-02-30}\n", ":8: mirrors.orders.start.timestamp"),
    ],
    ids=["a value", "a key", "an entry", "a section without a key", "a merged key", "no date"],
)
def test_a_problem_has_the_number_of_its_line(write_config, more, where):
    """It is the line of the key, or of the section where a key is missing."""
    path = write_config(MINIMAL + more)
    assert located(path).startswith(f"{path}{where}: ")
    path = write_config("spark: {}\n")
    assert located(path) == f"{path}: mirrors: is missing"


def test_an_anchor_and_a_merge_key_may_be_overridden(write_config):
    """A key next to `<<` overrides the shared one; it is not a duplicate."""
    path = write_config("""
        mirrors:
          a: &base
            source: {upstreams: [{name: n, bootstrap_servers: ["a:1"]}]}
            destination: {bootstrap_servers: ["b:1"]}
          b:
            <<: *base
            destination: {bootstrap_servers: ["c:1"]}
    """)
    settings = load(path)
    assert settings.mirror("b").upstreams == settings.mirror("a").upstreams
    assert settings.mirror("b").destination_cluster.bootstrap_servers == ("c:1",)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${A}", "one"),
        ("x-${A}-${B_2}-y", "x-one-two-y"),
        ("${file:secret.txt}", "from a file"),
        ("$${A}", "${A}"),
        ("$A and $", "$A and $"),
        ("${C}", "${A}"),
        ("${D}", "x\nmirrors: {}"),  # a variable cannot change the structure of the file
    ],
)
def test_references_are_replaced_once_in_any_string(write_config, tmp_path, written, value):
    (tmp_path / "secret.txt").write_text("from a file\n")
    path = write_config(changed({"spark/conf": {"spark.app.name": written}}))
    variables = {"A": "one", "B_2": "two", "C": "${A}", "D": "x\nmirrors: {}"}
    assert load(path, variables).spark.conf == {"spark.app.name": value}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("${UNSET}", "the environment variable UNSET is not set"),
        # the deployment has forgotten the secret
        ("${EMPTY}", "expected a string that is not empty, got the value of '${EMPTY}'"),
        ("${file:no.txt}", "cannot read the file no.txt: No such file or directory"),
        ("${file:.}", "cannot read the file .: Is a directory"),
        ("${file:binary}", "the file binary is not UTF-8 text"),
        *((wrong, REFERENCE) for wrong in (f"a${{{SECRET}", "${NOT-A-NAME}")),
        ("${}", REFERENCE),
    ],
)
def test_an_unresolved_reference_is_reported_with_its_key(write_config, tmp_path, written, problem):
    """There is one line: checks that only fail because the value is missing add none."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe" + SECRET.encode())
    path = write_config(changed({"@upstream/security": SASL | {"password": written}}))
    where = f"{path}: {UPSTREAM_PATH}"
    assert refusal(path, {"EMPTY": ""}) == f"{where}.security.password: {problem}"
    if written == "${UNSET}":
        path = write_config(changed({"@upstream/bootstrap_servers": written}))
        assert refusal(path) == f"{where}.bootstrap_servers: {problem}"


def test_a_newer_file_is_refused_with_one_line(write_config, wordings):
    """Its unknown keys are not listed: they are not the problem."""
    path = write_config(MINIMAL + "version: 2\nreplicas: {}\n")
    wordings.check("file: a newer one", located(path).removeprefix(str(path)))
    plain = load(write_config(MINIMAL)).mirrors
    assert load(write_config(MINIMAL + "version: 1\n")).mirrors == plain
    path = write_config(MINIMAL + "version: '1.0'\n")
    assert located(path) == f"{path}:8: version: expected 1, got '1.0'"


def test_a_variable_may_have_a_default(write_config, monkeypatch):
    """An empty one leaves the key without a value: one file serves with and without a setting."""
    path = write_config(changed({"spark/master": "${RELAY_TEST_MASTER:-local[3]}"}))
    for value, expected in (("", "local[3]"), ("local[1]", "local[1]")):
        assert load(path, {"RELAY_TEST_MASTER": value}).spark.master == expected
    assert load(path, {}).spark.master == load(path).spark.master == "local[3]"
    monkeypatch.setenv("RELAY_TEST_MASTER", "local[5]")
    assert load(path).spark.master == "local[5]", "the environment of the process is the default"
    changes = {"@/copy/chunk": "${CHUNK:-}", "metrics": {"address": "${METRICS:-}"}}
    changes["@upstream/security"] = SASL | {"password": "p${PASSWORD:-}"}
    settings = load(write_config(changed(changes)), {})
    assert settings.metrics.address is None
    assert settings.mirror("orders").copy_options.chunk_bytes == 32 << 20
    assert settings.mirror("orders").upstreams[0].security.password == "p"


# variable, its text, where it is written, the attribute of the settings or the mirror, its value
FROM_VARIABLES = [
    ("AUTOMATION", "on", "automation", "automation", True),
    ("METRICS", "127.0.0.1:9464", "metrics/address", "metrics.address", "127.0.0.1:9464"),
    (
        *("CONF", "{spark.memory: 2g, spark.ui.enabled: false}", "spark/conf"),
        *("spark.conf", {"spark.memory": "2g", "spark.ui.enabled": "false"}),
    ),
    ("COUNT", "3", "@/destination/replication_factor", "destination.replication_factor", 3),
    ("COUNT", "3", "@/copy/parallelism", "copying.parallelism", 3),
    ("LIST", r"a\..*, b", "@/topics/allow", "topics.allow", (r"a\..*", "b")),
    ("YAML_LIST", "['a{1,2}', 'b, c']", "@/topics/deny", "topics.deny", ("a{1,2}", "b, c")),
    ("AUTOMATION", "on", "@/topics/sync_configs", "topics.sync_configs", True),
    ("RENAME", "{topic}", "@/topics/rename", "topics.rename", "{topic}"),
    ("START", "{timestamp: 2026-01-31}", "@/start", "start.timestamp", 1_769_817_600_000),
    ("LOSS", "continue", "@/on_data_loss", "on_data_loss", OnDataLoss.CONTINUE),
    ("EMPTY_LIST", "[]", "@/owners", "owners", ()),
    ("SIZE", "1MiB", "@/copy/chunk", "copy_options.chunk_bytes", 1 << 20),
    ("DURATION", "5s", "@/window/every", "window.every", 5_000),
    ("LANES", "{fast: {topics: [payments], window: {every: 1s}}}", "@/lanes", "", None),
    ("SERVERS", "a:1, b:2", "@upstream/bootstrap_servers", "", None),
]
VARIABLES = {name: text for name, text, *_ in FROM_VARIABLES}
CHANGES = {path: f"${{{name}}}" for name, _, path, *_ in FROM_VARIABLES}


def test_every_kind_of_value_may_come_from_the_environment(write_config):
    """Tasks get settings, and not what read them."""
    settings = load(write_config(changed(CHANGES)), VARIABLES)
    mirror = settings.mirror("orders")
    for _, _, path, attribute, value in FROM_VARIABLES:
        if attribute:
            found = attrgetter(attribute)(mirror if path.startswith("@") else settings)
            assert found == value, path
    assert mirror.lanes["fast"].topics == ("payments",)
    assert mirror.upstreams[0].bootstrap_servers == ("a:1", "b:2")
    assert b"Filled" not in pickle.dumps(settings)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("AUTOMATION", "maybe", "automation: expected true or false"),
        ("COUNT", "three", "mirrors.orders.copy.parallelism: expected a whole number"),
        ("SIZE", "1 MiBB", "mirrors.orders.copy.chunk: expected a size such as 64KiB"),
        ("DURATION", "5", "mirrors.orders.window.every: expected a duration such as 500ms"),
        ("LANES", "fast", "mirrors.orders.lanes: expected a mapping"),
        ("CONF", "{a: ", "spark.conf: expected a mapping"),
        ("LIST", "(", "mirrors.orders.topics.allow[0]: expected a regular expression"),
        ("LOSS", "no", "mirrors.orders.on_data_loss: expected 'fail' or 'continue'"),
    ],
)
def test_a_wrong_value_names_its_variable(write_config, name, value, problem):
    found = refusal(write_config(changed(CHANGES)), VARIABLES | {name: value})
    line = next(line for line in found.splitlines() if problem in line)
    assert f"the value of '${{{name}}}'" in line


def test_a_whole_file_may_come_from_the_environment(tmp_path, monkeypatch):
    """Its relative paths start where the file would be, and its problems name the variable."""
    monkeypatch.setenv("RELAY_CONFIG_YAML", f"metrics: {{textfile: relay.prom}}\n{MINIMAL}")
    path = tmp_path / "relay.yaml"
    monkeypatch.setenv("RELAY_CONFIG", str(path))
    settings = load(path)
    assert settings.metrics.textfile == str(tmp_path / "relay.prom")
    assert settings.mirror("orders").upstreams[0].bootstrap_servers == ("kafka-a:9092",)
    named = {"RELAY_CONFIG": str(path)}
    whole = named | {"RELAY_CONFIG_YAML": MINIMAL + "    copy:\n      chunk: ${CHUNK}\n"}
    where = "RELAY_CONFIG_YAML:9: mirrors.orders.copy.chunk"
    assert located(path, whole) == f"{where}: the environment variable CHUNK is not set"
    empty = named | {"RELAY_CONFIG_YAML": "# nothing"}
    assert refusal(path, empty) == "RELAY_CONFIG_YAML is empty; start from what `relay init` writes"


def test_a_whole_file_replaces_only_that_of_relay_config(write_config, tmp_path, monkeypatch):
    """A project may have others, and a command may name another one."""
    monkeypatch.chdir(tmp_path)
    whole = {"RELAY_CONFIG_YAML": "nothing: 1"}
    other = write_config(MINIMAL).rename(tmp_path / "other.yaml")
    assert load(other, whole).mirror("orders")
    assert load(other, whole | {"RELAY_CONFIG": "relay.yaml"}).mirror("orders")
    for path in (tmp_path / "relay.yaml", Path("relay.yaml")):
        assert "nothing: unknown key" in refusal(path, whole)
    assert "nothing: unknown key" in refusal(other, whole | {"RELAY_CONFIG": "other.yaml"})

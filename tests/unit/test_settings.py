"""relay.yaml: what is accepted, and that everything else is refused in one line that says where and why."""

from __future__ import annotations

import itertools
import pickle
import re
import textwrap
import traceback
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import pytest
import yaml
from dagster import AssetKey, DagsterInvalidDefinitionError
from dagster._core.definitions.utils import validate_asset_owner
from pydantic import BaseModel

from relay_pipelines import model
from relay_pipelines.errors import ConfigError
from relay_pipelines.settings import Mirror, Settings, load
from relay_pipelines.settings.topics import Override
from relay_pipelines.settings.start import StartPolicy

EXAMPLE = Path(__file__).parents[2] / "relay.example.yaml"
SECRET = "hunter2-do-not-print"
MINIMAL = """
mirrors:
  orders:
    source:
      nodes:
        - {name: node1, bootstrap_servers: [kafka-a:9092]}
    destination: {bootstrap_servers: [kafka-b:9092]}
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> Path:
        path = tmp_path / "relay.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return write_file


def changed(changes: dict[str, Any]) -> str:
    """The minimal file with values set or added at dotted places."""
    tree = yaml.safe_load(MINIMAL)
    for place, value in changes.items():
        *parents, last = [int(step) if step.isdigit() else step for step in place.split("/")]
        target = tree
        for step in parents:
            target = target[step] if isinstance(step, int) else target.setdefault(step, {})
        target[last] = value
    return yaml.safe_dump(tree)


def refusal(path: Path, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environment or {})
    return str(caught.value)


NODE = "mirrors/orders/source/nodes/0"
NODE_PATH = "mirrors.orders.source.nodes[0]"


class TestAccepted:
    """What a good file becomes."""

    def test_the_shortest_file_has_every_default(self, write):
        settings = load(write(MINIMAL))
        mirror = settings.mirror("orders")
        assert mirror.nodes == (model.Cluster("node1", ("kafka-a:9092",)),)
        assert mirror.destination_cluster == model.Cluster("destination", ("kafka-b:9092",))
        assert mirror.copy_options == model.CopyOptions()
        assert (mirror.start.policy, mirror.destination.replication_factor) == (
            StartPolicy.EARLIEST,
            None,
        )
        assert (mirror.topics.allow, mirror.topics.deny, mirror.topics.rename) == (
            (".*",),
            (),
            "{topic}",
        )
        assert (settings.spark.master, settings.spark.remote, settings.spark.conf) == (
            "local[*]",
            None,
            {},
        )
        assert (settings.metrics.address, settings.metrics.textfile) == (None, None)

    def test_a_key_without_a_value_has_its_default(self, write):
        """`copy:` above nothing but comments is null in YAML, and no reason to fail."""
        path = write(
            changed(
                {
                    "spark": None,
                    "mirrors/orders/copy": None,
                    "mirrors/orders/destination/replication_factor": None,
                }
            )
        )
        settings = load(path)
        assert settings.spark.master == "local[*]"
        assert settings.mirror("orders").copy_options == model.CopyOptions()

    def test_copy_options_come_in_bytes_and_milliseconds(self, write):
        options = {
            "chunk": "64MiB", "chunk_interval": "500ms", "fetch_max": 1000, "coalesce_below": 0, "coalesce_to": "1.5 KiB",
            "transaction_timeout": "5m", "request_timeout": "3s", "backoff": {"min": "1s", "max": "1m"},
        }  # fmt: skip
        assert load(write(changed({"mirrors/orders/copy": options}))).mirror(
            "orders"
        ).copy_options == model.CopyOptions(
            chunk_bytes=64 << 20,
            chunk_ms=500,
            fetch_max_bytes=1000,
            coalesce_below_bytes=0,
            coalesce_to_bytes=1536,
            transaction_timeout_ms=300_000,
            request_timeout_ms=3_000,
            backoff_min_ms=1_000,
            backoff_max_ms=60_000,
        )

    @pytest.mark.parametrize(
        ("written", "patience_ms"), [("2s", 2_000), (-1, -1), ("-1", -1), (None, 60_000)]
    )
    def test_patience_holds_for_all_topics_of_a_mirror(self, write, written, patience_ms):
        """Topics with settings of their own have that of the mirror, too."""
        overrides = {"one": {"copy": {"chunk": "1MiB"}}}
        mirror = load(
            write(
                changed(
                    {
                        "mirrors/orders/give_up_after": written,
                        "mirrors/orders/topics": {"overrides": overrides},
                    }
                )
            )
        ).mirror("orders")
        assert mirror.copy_options.give_up_after_ms == patience_ms
        assert mirror.record_policy("one").options.give_up_after_ms == patience_ms

    @pytest.mark.parametrize(
        ("written", "size"),
        [
            (7, 7),
            ("7", 7),
            ("7B", 7),
            ("64KiB", 65_536),
            ("1GiB", 1 << 30),
            ("10MB", 10_000_000),
            ("2kb", 2_000),
            ("1TiB", 1 << 40),
        ],
    )
    def test_sizes(self, write, written, size):
        assert (
            load(write(changed({"mirrors/orders/copy/chunk": written})))
            .mirror("orders")
            .copy_options.chunk_bytes
            == size
        )

    @pytest.mark.parametrize(
        "written",
        [["a:1", "b:2"], "a:1,b:2", "a:1, b:2", ["a:1,b:2"], "${SERVERS}", ["${SERVERS}"]],
    )
    def test_bootstrap_servers_are_a_list_or_a_string_with_commas(self, write, written):
        path = write(changed({f"{NODE}/bootstrap_servers": written}))
        assert load(path, {"SERVERS": "a:1,b:2"}).mirror("orders").nodes[0].bootstrap_servers == (
            "a:1",
            "b:2",
        )

    @pytest.mark.parametrize("server", ["kafka-a.example:9092", "10.0.0.1:1", "[::1]:65535"])
    def test_addresses(self, write, server):
        path = write(changed({f"{NODE}/bootstrap_servers": [server], "metrics/address": server}))
        assert load(path).metrics.address == server

    def test_files_are_looked_for_beside_the_configuration(self, write, tmp_path, monkeypatch):
        """A relay started in another folder must read the same certificates."""
        for name in ("ca.pem", "client.pem", "client.key"):
            (tmp_path / name).touch()
        monkeypatch.chdir("/")
        security = {
            "protocol": "SSL", "ca_location": "ca.pem", "certificate_location": "./client.pem",
            "key_location": str(tmp_path / "client.key"), "key_password": "${KEY}", "verify_hostname": False,
        }  # fmt: skip
        path = write(changed({f"{NODE}/security": security, "metrics/textfile": "relay.prom"}))
        settings = load(path, {"KEY": SECRET})
        assert settings.mirror("orders").nodes[0].security == model.Security(
            protocol="SSL",
            ca_location=str(tmp_path / "ca.pem"),
            certificate_location=str(tmp_path / "client.pem"),
            key_location=str(tmp_path / "client.key"),
            key_password=SECRET,
            verify_hostname=False,
        )
        assert settings.metrics.textfile == str(tmp_path / "relay.prom")

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    def test_sasl(self, write, mechanism):
        security = {
            "protocol": "SASL_SSL",
            "mechanism": mechanism,
            "username": "relay",
            "password": "${PASSWORD}",
        }
        path = write(changed({"mirrors/orders/destination/security": security}))
        assert load(path, {"PASSWORD": SECRET}).mirror(
            "orders"
        ).destination_cluster.security == model.Security(
            protocol="SASL_SSL", mechanism=mechanism, username="relay", password=SECRET
        )

    def test_tokens(self, write):
        security = TOKEN | {"client_secret": "${CLIENT_SECRET}", "scope": "kafka other"}
        path = write(changed({f"{NODE}/security": security}))
        assert load(path, {"CLIENT_SECRET": SECRET}).mirror("orders").nodes[
            0
        ].security == model.Security(
            protocol="SASL_SSL",
            mechanism="OAUTHBEARER",
            token_endpoint="https://login.example.com/token",
            client_id="relay",
            client_secret=SECRET,
            scope="kafka other",
        )

    def test_spark_configuration_becomes_text_as_spark_spells_it(self, write):
        conf = {
            "spark.executor.cores": 4,
            "spark.ui.enabled": False,
            "spark.executor.memory": "2g",
            "spark.speculation": False,
        }
        assert load(write(changed({"spark/conf": conf}))).spark.conf == {
            "spark.executor.cores": "4",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "2g",
            "spark.speculation": "false",
        }

    def test_windows_come_in_records_bytes_and_milliseconds(self, write):
        """A lane has its own window whole, or the mirror's."""
        window = {
            "every": "1m", "max_records": 5, "max_bytes": "1MiB", "ahead": 2, "keep": 7, "lag_target": "2s",
        }  # fmt: skip
        lanes = {
            "big_2024": {"topics": ["a"], "window": {"every": "1s"}},
            "two": {"topics": ["b", "c.*"], "window": None},
        }
        mirror = load(
            write(changed({"mirrors/orders/window": window, "mirrors/orders/lanes": lanes}))
        ).mirror("orders")
        assert mirror.window.model_dump() == {
            "every": 60_000, "max_records": 5, "max_bytes": 1 << 20, "ahead": 2, "keep": 7, "lag_target": 2_000,
        }  # fmt: skip
        assert mirror.lanes["big_2024"].window is not None
        assert (mirror.lanes["big_2024"].window.every, mirror.lanes["big_2024"].window.ahead) == (
            1_000,
            3,
        )
        assert (mirror.lanes["two"].topics, mirror.lanes["two"].window) == (("b", "c.*"), None)

    def test_overrides_are_laid_over_the_mirror_key_by_key(self, write):
        """What an override does not say is as the mirror has it, in sections as well; the first that matches counts."""
        overrides = {
            r"orders\.big": {
                "copy": {"chunk": "1MiB", "backoff": {"min": "1s"}, "parallelism": 2},
                "where": "key IS NULL",
            },
            r"orders\.big|orders\.x": {"copy": {"chunk": "2MiB"}, "filters": []},
        }
        changes = {
            "copy": {"chunk": "3MiB", "chunk_interval": "2s", "backoff": {"max": "9s"}},
            "topics/overrides": overrides,
            "filters": [{"class": "a:B"}],
            "select": {"key": "value"},
        }
        mirror = load(
            write(changed({f"mirrors/orders/{key}": one for key, one in changes.items()}))
        ).mirror("orders")
        big, other, free = (
            mirror.record_policy(topic) for topic in ("orders.big", "orders.x", "payments")
        )
        assert big.options is not None
        assert other.options is not None
        assert (big.options.chunk_bytes, big.options.chunk_ms, big.options.parallelism) == (
            1 << 20,
            2_000,
            2,
        )
        assert (big.options.backoff_min_ms, big.options.backoff_max_ms) == (1_000, 9_000)
        assert (other.options.chunk_bytes, other.options.parallelism) == (2 << 20, 0)
        assert free.options is None
        assert [len(one.filters) for one in (big, other, free)] == [1, 0, 1]
        assert [one.where for one in (big, other, free)] == ["key IS NULL", "", ""]
        assert [one.select for one in (big, other, free)] == [(("key", "value"),)] * 3

    def test_an_override_of_windows_is_a_lane(self, write):
        """Called after its pattern, before the others, and with the mirror's windows where it says nothing."""
        changes = {
            "window": {"every": "5s", "ahead": 2},
            "lanes": {"slow": {"topics": ["s.*"]}},
            "topics/overrides": {
                r"Orders\.big": {"window": {"max_records": 5}},
                "x": {"where": "true"},
            },
        }
        mirror = load(
            write(changed({f"mirrors/orders/{key}": one for key, one in changes.items()}))
        ).mirror("orders")
        assert list(mirror.all_lanes) == ["orders_big", "slow"]
        window = mirror.all_lanes["orders_big"].window
        assert (window.max_records, window.every, window.ahead) == (5, 5_000, 2)
        assert mirror.all_lanes["orders_big"].topics == (r"Orders\.big",)

    def test_owners_are_addresses_and_teams(self, write):
        """What is accepted here is what Dagster takes: its own test is asked as well."""
        owners = ["team:data-eng_1", "some.one+x@mail.example.com", "a_b@example.io"]
        assert load(write(changed({"mirrors/orders/owners": owners}))).mirror(
            "orders"
        ).owners == tuple(owners)
        for owner in owners:
            validate_asset_owner(owner, AssetKey("a"))

    @pytest.mark.parametrize(
        "owner",
        ["someone@example.engineering", ".a@example.com", "o'hara@example.com", "a b@example.com"],
    )
    def test_an_address_that_dagster_refuses_is_refused(self, write, owner):
        """Else Dagster's own error would stand where a line about relay.yaml should."""
        path = write(changed({"mirrors/orders/owners": ["team:a", owner]}))
        line = f"mirrors.orders.owners[1]: expected an e-mail address or team:name, got {owner!r}"
        assert refusal(path) == f"{path}: {line}"
        with pytest.raises(DagsterInvalidDefinitionError):
            validate_asset_owner(owner, AssetKey("a"))

    def test_a_remote_spark_has_no_master(self, write):
        spark = load(
            write(changed({"spark": {"remote": "sc://spark:15002", "master": None}}))
        ).spark
        assert (spark.master, spark.remote) == (None, "sc://spark:15002")

    def test_an_anchor_and_a_merge_key_may_be_overridden(self, write):
        """`<<` with a key of its own beside it is YAML's way to share settings, not a duplicate key."""
        path = write("""
            mirrors:
              a: &base
                source: {nodes: [{name: n, bootstrap_servers: ["a:1"]}]}
                destination: {bootstrap_servers: ["b:1"]}
              b:
                <<: *base
                destination: {bootstrap_servers: ["c:1"]}
        """)
        settings = load(path)
        assert settings.mirror("b").nodes == settings.mirror("a").nodes
        assert settings.mirror("b").destination_cluster.bootstrap_servers == ("c:1",)

    def test_settings_cannot_be_changed_and_can_be_pickled(self, write):
        settings = load(write(MINIMAL))
        with pytest.raises(ValueError, match="frozen"):
            settings.spark = None
        assert pickle.loads(pickle.dumps(settings)) == settings


class TestInterpolation:
    """`${ENV_VAR}` and `${file:path}`."""

    @pytest.mark.parametrize(
        ("written", "value"),
        [
            ("${A}", "one"),
            ("x-${A}-${B_2}-y", "x-one-two-y"),
            ("${file:secret.txt}", "from a file"),
            ("$${A}", "${A}"),
            ("$A and $", "$A and $"),
            ("${C}", "${A}"),
        ],
    )
    def test_is_done_once_in_any_string(self, write, tmp_path, written, value):
        (tmp_path / "secret.txt").write_text("from a file\n")
        path = write(changed({"spark/conf": {"spark.app.name": written}}))
        assert load(path, {"A": "one", "B_2": "two", "C": "${A}"}).spark.conf == {
            "spark.app.name": value
        }

    def test_a_variable_cannot_change_the_structure_of_the_file(self, write):
        path = write(changed({"spark/conf": {"spark.app.name": "${A}"}}))
        assert load(path, {"A": "x\nmirrors: {}"}).spark.conf == {
            "spark.app.name": "x\nmirrors: {}"
        }

    def test_numbers_may_come_from_the_environment(self, write):
        path = write(
            changed(
                {
                    "mirrors/orders/destination/replication_factor": "${RF}",
                    "mirrors/orders/copy/chunk": "${CHUNK}",
                }
            )
        )
        mirror = load(path, {"RF": "3", "CHUNK": "1MiB"}).mirror("orders")
        assert (mirror.destination.replication_factor, mirror.copy_options.chunk_bytes) == (
            3,
            1 << 20,
        )

    def test_the_process_environment_is_the_default(self, write, monkeypatch):
        monkeypatch.setenv("RELAY_TEST_MASTER", "local[3]")
        assert (
            load(write(changed({"spark/master": "${RELAY_TEST_MASTER}"}))).spark.master
            == "local[3]"
        )

    @pytest.mark.parametrize(
        ("written", "problem"),
        [
            ("${UNSET}", "the environment variable UNSET is not set"),
            ("${file:no.txt}", "cannot read the file no.txt: No such file or directory"),
            ("${file:.}", "cannot read the file .: Is a directory"),
            ("${file:binary}", "the file binary is not UTF-8 text"),
            (
                f"a${{{SECRET}",
                "expected ${NAME} or ${file:path} after the '$'; write $${ for a plain ${",
            ),
            (
                "${NOT-A-NAME}",
                "expected ${NAME} or ${file:path} after the '$'; write $${ for a plain ${",
            ),
            ("${}", "expected ${NAME} or ${file:path} after the '$'; write $${ for a plain ${"),
        ],
    )
    def test_a_reference_that_leads_nowhere_names_the_key_and_itself(
        self, write, tmp_path, written, problem
    ):
        """One line: the checks that fail only because the value is missing stay silent."""
        (tmp_path / "binary").write_bytes(b"\xff\xfe" + SECRET.encode())
        security = {
            "protocol": "SASL_SSL",
            "mechanism": "PLAIN",
            "username": "u",
            "password": written,
        }
        path = write(changed({f"{NODE}/security": security}))
        assert refusal(path) == f"{path}: {NODE_PATH}.security.password: {problem}"

    def test_a_missing_variable_does_not_bring_a_second_error_for_the_same_key(self, write):
        path = write(changed({f"{NODE}/bootstrap_servers": "${UNSET}"}))
        assert (
            refusal(path)
            == f"{path}: {NODE_PATH}.bootstrap_servers: the environment variable UNSET is not set"
        )

    def test_an_empty_password_is_refused(self, write):
        """A variable that is set but empty is a deployment that forgot its secret."""
        security = {
            "protocol": "SASL_SSL",
            "mechanism": "PLAIN",
            "username": "u",
            "password": "${EMPTY}",
        }
        path = write(changed({f"{NODE}/security": security}))
        line = f"{NODE_PATH}.security.password: expected a string that is not empty, got a string"
        assert refusal(path, {"EMPTY": ""}) == f"{path}: {line}"


SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "relay", "password": "p"}
TOKEN = {
    "protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token_endpoint": "https://login.example.com/token",
    "client_id": "relay", "client_secret": "s",
}  # fmt: skip
ENDPOINT = "expected an address such as https://host/path, got a string: http or https, without user and password"
DURATION = "expected a duration such as 500ms, 3s or 5m"
SIZE = "expected a size such as 64KiB, 10MB or a number of bytes"
# title, changes, and the line; "@" stands for mirrors.orders and "@node" for its first node
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # unknown keys
    ("a misspelt section", {"metric": {}}, "metric: unknown key; did you mean 'metrics'?"),
    (
        "a misspelt section without a value",
        {"metric": None},
        "metric: unknown key; did you mean 'metrics'?",
    ),
    (
        "a misspelt key deep down",
        {"@node/bootstrap_server": []},
        "@node.bootstrap_server: unknown key; did you mean 'bootstrap_servers'?",
    ),
    (
        "a misspelt copy key",
        {"@/copy/chunks": 1},
        "@.copy.chunks: unknown key; did you mean 'chunk'?",
    ),
    (
        "a misspelt backoff key",
        {"@/copy/backoff": {"maxi": "1s"}},
        "@.copy.backoff.maxi: unknown key; did you mean 'max'?",
    ),
    (
        "a key that resembles none",
        {"@/health": {}},
        (
            "@.health: unknown key; valid keys: copy, destination, filters, give_up_after, lanes, on_data_loss, on_record_error,"
            " owners, select, source, start, topics, transform, where, window"
        ),
    ),
    (
        "a count of attempts",
        {"@/copy/max_attempts": 10},
        "@.copy.max_attempts: unknown key; use give_up_after of the mirror, a duration",
    ),
    (
        "a count of attempts for some topics",
        {"@/topics/overrides": {"a": {"copy": {"max_attempts": 10}}}},
        "@.topics.overrides.a.copy.max_attempts: unknown key; use give_up_after of the mirror, a duration",
    ),
    (
        "a count of retries",
        {"@/source/health": {"max_retries": 2}},
        "@.source.health.max_retries: unknown key; use give_up_after of the mirror, a duration",
    ),
    (
        "the attribute's name instead of the key's",
        {"@/copying": {}},
        "@.copying: unknown key; did you mean 'copy'?",
    ),
    # missing keys
    ("no mirrors", {"mirrors": {}}, "mirrors: expected at least one entry, got a mapping"),
    ("mirrors left empty", {"mirrors": None}, "mirrors: is missing"),
    (
        "a mirror left empty",
        {"mirrors/orders": None},
        "mirrors.orders: expected a mapping, got nothing",
    ),
    ("no destination", {"@/destination": None}, "@.destination: is missing"),
    ("no nodes", {"@/source/nodes": []}, "@.source.nodes: expected at least one entry, got a list"),
    (
        "no servers",
        {"@node/bootstrap_servers": []},
        "@node.bootstrap_servers: expected at least one entry, got a list",
    ),
    (
        "no allow pattern",
        {"@/topics/allow": []},
        "@.topics.allow: expected at least one entry, got a list",
    ),
    # wrong types
    (
        "text for a mapping",
        {"@/source": "kafka-a:9092"},
        "@.source: expected a mapping, got a string",
    ),
    (
        "a mapping for a list",
        {"@/source/nodes": {"name": "n"}},
        "@.source.nodes: expected a list, got a mapping",
    ),
    (
        "text for a list",
        {"@/topics/allow": "orders"},
        "@.topics.allow: expected a list, got a string",
    ),
    (
        "a number for text",
        {"@node/name": 1},
        "@node.name: expected a string, got a whole number; put it in quotes",
    ),
    (
        "text for a truth",
        {"@node/security": {"verify_hostname": "perhaps"}},
        "@node.security.verify_hostname: expected true or false, got 'perhaps'",
    ),
    (
        "a list for a Spark setting",
        {"spark/conf": {"spark.jars": ["x"]}},
        "spark.conf.spark.jars: expected a string, a number, true or false, got a list",
    ),
    (
        "nothing for a Spark setting",
        {"spark/conf": {"spark.jars": None}},
        "spark.conf.spark.jars: expected a string, a number, true or false, got nothing",
    ),
    (
        "true for a count: pydantic would take 1",
        {"@/copy/parallelism": True},
        "@.copy.parallelism: expected a whole number, got true",
    ),
    (
        "half a task",
        {"@/copy/parallelism": 1.5},
        "@.copy.parallelism: expected a whole number, got 1.5",
    ),
    ("no task", {"@/copy/parallelism": 0}, "@.copy.parallelism: expected more than 0, got 0"),
    (
        "no replica",
        {"@/destination/replication_factor": 0},
        "@.destination.replication_factor: expected more than 0, got 0",
    ),
    (
        "more replicas than an int16 holds",
        {"@/destination/replication_factor": 40_000},
        "@.destination.replication_factor: expected at most 32767, got 40000",
    ),
    # sizes and durations
    (
        "a duration without a unit",
        {"@/copy/chunk_interval": 5},
        f"@.copy.chunk_interval: {DURATION}, got 5",
    ),
    (
        "YAML's 1:30, which is the number 90",
        {"@/copy/chunk_interval": 90},
        f"@.copy.chunk_interval: {DURATION}, got 90",
    ),
    (
        "a size's unit on a duration",
        {"@/copy/chunk_interval": "5MB"},
        f"@.copy.chunk_interval: {DURATION}, got '5MB'",
    ),
    (
        "no time",
        {"@/copy/request_timeout": "0s"},
        "@.copy.request_timeout: expected more than 0, got '0s'",
    ),
    (
        "half a millisecond",
        {"@/copy/request_timeout": "0.5ms"},
        f"@.copy.request_timeout: {DURATION}, got '0.5ms': less than a millisecond cannot be expressed",
    ),
    (
        "no patience",
        {"@/give_up_after": "0s"},
        f"@.give_up_after: {DURATION}, or -1 for ever, got '0s'",
    ),
    (
        "less than no patience",
        {"@/give_up_after": -2},
        f"@.give_up_after: {DURATION}, or -1 for ever, got -2",
    ),
    (
        "patience that is a list",
        {"@/give_up_after": ["60s"]},
        f"@.give_up_after: {DURATION}, or -1 for ever, got a list",
    ),
    (
        "a duration that wraps an int32",
        {"@/copy/request_timeout": "25d"},
        f"@.copy.request_timeout: {DURATION}, got '25d': the protocol cannot express more than 24 days",
    ),
    ("a size that is none", {"@/copy/chunk": "lots"}, f"@.copy.chunk: {SIZE}, got 'lots'"),
    ("a negative size", {"@/copy/chunk": -1}, f"@.copy.chunk: {SIZE}, got -1"),
    ("true for a size", {"@/copy/chunk": True}, f"@.copy.chunk: {SIZE}, got true"),
    ("no size", {"@/copy/chunk": 0}, "@.copy.chunk: expected more than 0, got 0"),
    (
        "a fetch that wraps an int32",
        {"@/copy/fetch_max": "2GiB"},
        "@.copy.fetch_max: expected less than 2GiB, got '2GiB': the protocol stores it in 31 bits",
    ),
    (
        "batches merged to less than they are",
        {"@/copy/coalesce_to": "1KiB"},
        "@.copy.coalesce_below: must not be more than coalesce_to",
    ),
    (
        "backoff upside down",
        {"@/copy/backoff": {"min": "9s"}},
        "@.copy.backoff.min: must not be more than backoff.max",
    ),
    (
        "transactions that always time out",
        {"@/copy/transaction_timeout": "5s"},
        "@.copy.chunk_interval: must be shorter than transaction_timeout; otherwise every transaction is aborted",
    ),
    # topics
    (
        "a bad regex",
        {"@/topics/allow": ["ok", "orders("]},
        "@.topics.allow[1]: expected a regular expression, got 'orders(': missing ), unterminated subpattern at position 6",
    ),
    (
        "a bad regex in deny",
        {"@/topics/deny": ["*"]},
        "@.topics.deny[0]: expected a regular expression, got '*': nothing to repeat at position 0",
    ),
    (
        "a template that puts all topics into one",
        {"@/topics/rename": "all"},
        (
            '@.topics.rename: expected a template that contains "{topic}", or pins a partition as in "all:0",'
            " got 'all': otherwise all topics get the same name"
        ),
    ),
    (
        "a template with another placeholder",
        {"@/topics/rename": "{topic}.{date}"},
        "@.topics.rename: expected a template of letters, digits, '.', '_', '-' and \"{topic}\", got '{topic}.{date}'",
    ),
    (
        "a template that pins an illegal name",
        {"@/topics/rename": "{topic}/a:3"},
        "@.topics.rename: expected a template of letters, digits, '.', '_', '-' and \"{topic}\", got '{topic}/a:3'",
    ),
    (
        "a list for rename",
        {"@/topics/rename": ["a"]},
        (
            "@.topics.rename[0].match: expected the two keys match and to, both in quotes, as in"
            ' {match: "orders\\.(.*)", to: "eu.\\1"}'
        ),
    ),
    (
        "a number for rename",
        {"@/topics/rename": 5},
        (
            '@.topics.rename: expected a template such as "copy.{topic}", a map of source topic to destination topic, or a list'
            " of rules, got 5"
        ),
    ),
    (
        "a rule that matches badly",
        {"@/topics/rename": [{"match": "a(", "to": "b"}]},
        "@.topics.rename[0].match: expected a regular expression: missing ), unterminated subpattern at position 1",
    ),
    (
        "a rule that refers to nothing",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"b\2"}]},
        "@.topics.rename[0].to: refers to group 2, but match has 1",
    ),
    (
        "a rule with an illegal name",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"b/\1"}]},
        r"@.topics.rename[0].to: expected letters, digits, '.', '_', '-' and groups such as \1",
    ),
    (
        "{topic} without quotes, a mapping in YAML",
        {"@/topics/rename": {"topic": None}},
        '@.topics.rename.topic: no destination topic given; a template needs quotes: "{topic}"',
    ),
    (
        "a pinned destination no broker takes",
        {"@/topics/rename": {"a": "d/t:3"}},
        "@.topics.rename.a: expected a topic name: up to 249 letters, digits, '.', '_' and '-'",
    ),
    (
        "a destination pinned by one topic alone",
        {"@/topics/rename": {"a": "c", "b": "c:0"}},
        (
            '@.topics.rename.a: another topic gets the same name; choose another one,'
            ' or pin both topics to a partition, as in "dst:0"'
        ),
    ),
    (
        "a destination no broker takes",
        {"@/topics/rename": {"a": "b/c"}},
        "@.topics.rename.a: expected a topic name: up to 249 letters, digits, '.', '_' and '-'",
    ),
    (
        "a number as destination",
        {"@/topics/rename": {"a": 1}},
        "@.topics.rename.a: expected the name of a destination topic; put it in quotes",
    ),
    (
        "two topics renamed to one",
        {"@/topics/rename": {"a": "c", "b": "c"}},
        (
            '@.topics.rename.b: another topic gets the same name; choose another one,'
            ' or pin both topics to a partition, as in "dst:0"'
        ),
    ),
    # overrides
    (
        "an override that contradicts the mirror",
        {
            "@/copy": {"coalesce_to": "16KiB"},
            "@/topics/overrides": {"big": {"copy": {"coalesce_below": "32KiB"}}},
        },
        "@.topics.overrides.big.copy.coalesce_below: must not be more than coalesce_to",
    ),
    (
        "an override of what all topics share",
        {"@/topics/overrides": {"big": {"copy": {"request_timeout": "5s"}}}},
        "@.topics.overrides.big.copy.request_timeout: cannot differ between topics: all topics of a mirror share their connections",
    ),
    (
        "an override whose lane has the name of another",
        {
            "@/lanes": {"big": {"topics": ["x"]}},
            "@/topics/overrides": {"big": {"window": {"ahead": 2}}},
        },
        "@.topics.overrides.big.window: its lane cannot be named 'big'; define the lane under lanes",
    ),
    (
        "an override of a pattern without a letter",
        {"@/topics/overrides": {".*": {"window": {"ahead": 2}}}},
        "@.topics.overrides..*.window: its lane cannot be named ''; define the lane under lanes",
    ),
    (
        "an override of what there is not",
        {"@/topics/overrides": {"big": {"chunk": "1MiB"}}},
        "@.topics.overrides.big.chunk: unknown key; valid keys: copy, filters, on_record_error, select, transform, where, window",
    ),
    (
        "a column that no record has",
        {"@/select": {"vaule": "1"}},
        "@.select.vaule: unknown column; a record has key, value, headers, timestamp",
    ),
    ("an empty predicate", {"@/where": ""}, "@.where: expected a string that is not empty, got ''"),
    (
        "an unknown policy for records",
        {"@/on_record_error": "skip"},
        "@.on_record_error: expected 'fail' or 'quarantine', got 'skip'",
    ),
    # windows and lanes
    (
        "no time between windows",
        {"@/window/every": "0s"},
        "@.window.every: expected more than 0, got '0s'",
    ),
    ("windows without a unit", {"@/window/every": 30}, f"@.window.every: {DURATION}, got 30"),
    (
        "windows of no record",
        {"@/window/max_records": 0},
        "@.window.max_records: expected more than 0, got 0",
    ),
    (
        "a count in words",
        {"@/window/max_records": "10M"},
        "@.window.max_records: expected a whole number, got '10M'",
    ),
    (
        "windows of no byte",
        {"@/window/max_bytes": 0},
        "@.window.max_bytes: expected more than 0, got 0",
    ),
    ("a time for a size", {"@/window/max_bytes": "1s"}, f"@.window.max_bytes: {SIZE}, got '1s'"),
    (
        "no window cut ahead",
        {"@/window/ahead": 0},
        "@.window.ahead: expected more than 0, got 0",
    ),
    ("no window kept", {"@/window/keep": 0}, "@.window.keep: expected more than 0, got 0"),
    (
        "a target without a unit",
        {"@/window/lag_target": 600},
        f"@.window.lag_target: {DURATION}, got 600",
    ),
    (
        "a misspelt window key",
        {"@/window/max_record": 1},
        "@.window.max_record: unknown key; did you mean 'max_records'?",
    ),
    (
        "a lane of no topics",
        {"@/lanes/big": {"topics": []}},
        "@.lanes.big.topics: expected at least one entry, got a list",
    ),
    ("a lane left empty", {"@/lanes/big": None}, "@.lanes.big: expected a mapping, got nothing"),
    ("a lane without topics", {"@/lanes/big": {"window": {}}}, "@.lanes.big.topics: is missing"),
    (
        "a pattern of a lane that is none",
        {"@/lanes/big": {"topics": ["("]}},
        "@.lanes.big.topics[0]: expected a regular expression, got '(': missing ), unterminated subpattern at position 0",
    ),
    (
        "a misspelt lane key",
        {"@/lanes/big": {"topics": ["a"], "windows": {}}},
        "@.lanes.big.windows: unknown key; did you mean 'window'?",
    ),
    (
        "a misspelt key in the window of a lane",
        {"@/lanes/big": {"topics": ["a"], "window": {"evry": "1s"}}},
        "@.lanes.big.window.evry: unknown key; did you mean 'every'?",
    ),
    (
        "a lane that is there anyway",
        {"@/lanes/main": {"topics": ["a"]}},
        "@.lanes.main: expected a lane name of a-z, 0-9 and '_', and not main",
    ),
    (
        "a lane name that Dagster would not take",
        {"@/lanes/big-ones": {"topics": ["a"]}},
        "@.lanes.big-ones: expected a lane name of a-z, 0-9 and '_', and not main",
    ),
    (
        "a lane called as a part of main would be",
        {"@/lanes/main_2": {"topics": ["a"]}},
        "@.lanes.main_2: a part of the lane main may get this name; choose another name",
    ),
    (
        "a lane called as a part of another would be",
        {"@/lanes/big": {"topics": ["a"]}, "@/lanes/big_3": {"topics": ["b"]}},
        "@.lanes.big_3: a part of the lane big may get this name; choose another name",
    ),
    (
        "an owner without a kind",
        {"@/owners": ["data"]},
        "@.owners[0]: expected an e-mail address or team:name, got 'data'",
    ),
    (
        "a team without a name",
        {"@/owners": ["team:"]},
        "@.owners[0]: expected an e-mail address or team:name, got 'team:'",
    ),
    (
        "one owner that is no list",
        {"@/owners": "team:a"},
        "@.owners: expected a list, got a string",
    ),
    (
        "a start that is no word of ours",
        {"@/start": "timestamp"},
        "@.start: expected 'earliest', 'latest', or one of timestamp, offsets and group, got 'timestamp'",
    ),
    (
        "two places to start",
        {"@/start": {"timestamp": "2026-01-01", "group": "g"}},
        "@.start.group: timestamp already says where to start; remove one of them",
    ),
    (
        "a place and a policy",
        {"@/start": {"policy": "latest", "group": "g"}},
        "@.start.policy: group already says where to start; remove one of them",
    ),
    (
        "no moment",
        {"@/start": {"timestamp": "noon"}},
        "@.start.timestamp: expected a date or time such as 2026-01-31 or 2026-01-31T12:00:00Z, got 'noon'",
    ),
    (
        "no topic-partition",
        {"@/start": {"offsets": {"orders": 5}}},
        "@.start.offsets.orders: expected topic-partition, such as orders-0",
    ),
    (
        "an offset below zero",
        {"@/start": {"offsets": {"orders-0": -1}}},
        "@.start.offsets.orders-0: expected at least 0, got -1",
    ),
    # names and addresses
    (
        "a mirror name that would split a checkpoint key",
        {"mirrors/a~b": yaml.safe_load(MINIMAL)["mirrors"]["orders"]},
        "mirrors.a~b: expected a mirror name of a-z, 0-9, '_' and '-'",
    ),
    (
        "mirror names that Dagster cannot tell apart",
        {
            f"mirrors/{name}": yaml.safe_load(MINIMAL)["mirrors"]["orders"]
            for name in ("a_b-c", "a-b_c", "a-b-d")
        },
        "mirrors.a_b-c: Dagster cannot tell it from a-b_c, because '-' becomes '_'; rename one",
    ),
    (
        "a node twice",
        {
            "@/source/nodes": [
                {"name": "n", "bootstrap_servers": ["a:1"]},
                {"name": "n", "bootstrap_servers": ["b:1"]},
            ]
        },
        "@.source.nodes[1].name: another node has this name",
    ),
    (
        "a filter that is no class",
        {"@/filters": [{"class": "a b"}]},
        "@.filters[0].class: expected module:Class, or the name of an entry point, got 'a b'",
    ),
    ("a filter without a class", {"@/filters": [{"config": {}}]}, "@.filters[0].class: is missing"),
    (
        "so slow that transactions time out",
        {"@/copy": {"max_bytes_per_second": "1KiB"}},
        (
            "@.copy.max_bytes_per_second: expected at least 64KiB, got '1KiB': a batch must be written before its transaction"
            " times out"
        ),
    ),
    (
        "failover settings of a single node",
        {"@/source/health": {"lag_threshold": 5}},
        "@.source.health.lag_threshold: has no effect: the source has only one node",
    ),
    (
        "a threshold below zero",
        {"@/source/health": {"lag_threshold": -1}},
        "@.source.health.lag_threshold: expected at least 0, got -1",
    ),
    (
        "a node without a name",
        {"@node/name": ""},
        "@node.name: expected a name of letters, digits, '.', '_' and '-', got ''",
    ),
    (
        "a server without a port",
        {"@node/bootstrap_servers": ["kafka-a"]},
        "@node.bootstrap_servers[0]: expected host:port, got 'kafka-a'",
    ),
    (
        "a server with a scheme",
        {"@node/bootstrap_servers": ["tcp://kafka-a:1"]},
        "@node.bootstrap_servers[0]: expected host:port, got 'tcp://kafka-a:1'",
    ),
    (
        "a trailing comma",
        {"@node/bootstrap_servers": "a:1,"},
        "@node.bootstrap_servers[1]: expected host:port, got 'a:1,'",
    ),
    (
        "a port that is none",
        {"metrics/address": "localhost:70000"},
        "metrics.address: expected host:port, got 'localhost:70000'",
    ),
    (
        "a metrics file nowhere",
        {"metrics/textfile": "no/such/relay.prom"},
        (
            "metrics.textfile: expected a file in a folder that exists, got 'no/such/relay.prom':"
            " relative paths start at the folder of the configuration file"
        ),
    ),
    # spark
    (
        "no master",
        {"spark": {"master": ""}},
        "spark.master: expected a string that is not empty, got ''",
    ),
    (
        "two Sparks",
        {"spark": {"master": "local[1]", "remote": "sc://spark:15002"}},
        "spark.remote: master and remote are both given; keep one",
    ),
    (
        "a remote without its scheme",
        {"spark": {"remote": "spark:15002"}},
        "spark.remote: expected sc://host:port, got 'spark:15002'",
    ),
    (
        "speculation",
        {"spark/conf": {"spark.speculation": True}},
        "spark.conf.spark.speculation: two tasks would copy the same range and fence each other; remove it",
    ),
    (
        "speculation as text",
        {"spark/conf": {"spark.speculation": " TRUE"}},
        "spark.conf.spark.speculation: two tasks would copy the same range and fence each other; remove it",
    ),
    (
        "the master among the configuration, where it has no effect",
        {"spark/conf": {"spark.master": "local"}},
        "spark.conf.spark.master: has no effect here; set the key master of spark",
    ),
    # security
    (
        "a protocol that is none",
        {"@node/security": {"protocol": "TLS"}},
        "@node.security.protocol: expected 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or 'SASL_SSL', got 'TLS'",
    ),
    (
        "a mechanism that is not built",
        {"@node/security": SASL | {"mechanism": "GSSAPI"}},
        "@node.security.mechanism: expected 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'OAUTHBEARER', got 'GSSAPI'",
    ),
    (
        "SASL without a mechanism",
        {"@node/security": SASL | {"mechanism": None}},
        "@node.security.mechanism: is missing; SASL_SSL needs it",
    ),
    (
        "SASL without a user",
        {"@node/security": SASL | {"username": None}},
        "@node.security.username: is missing; PLAIN needs it",
    ),
    (
        "SASL without a password",
        {"@node/security": SASL | {"password": None}},
        "@node.security.password: is missing; PLAIN needs it",
    ),
    (
        "a token without a secret to ask for it with",
        {"@node/security": TOKEN | {"client_secret": None}},
        "@node.security.client_secret: is missing; OAUTHBEARER needs it",
    ),
    (
        "a token without a place to ask for it",
        {"@node/security": TOKEN | {"token_endpoint": None}},
        "@node.security.token_endpoint: is missing; OAUTHBEARER needs it",
    ),
    (
        "a password beside a token",
        {"@node/security": TOKEN | {"password": "p"}},
        "@node.security.password: OAUTHBEARER does not use it; remove it or choose another mechanism",
    ),
    (
        "a token's key beside a password",
        {"@node/security": SASL | {"scope": "kafka"}},
        "@node.security.scope: PLAIN does not use it; remove it or choose another mechanism",
    ),
    (
        "a token that would go over no SASL",
        {"@node/security": {"protocol": "SSL", "client_id": "relay"}},
        "@node.security.client_id: needs a SASL protocol, not SSL",
    ),
    (
        "a token endpoint that is no address",
        {"@node/security": TOKEN | {"token_endpoint": "login.example.com/token"}},
        f"@node.security.token_endpoint: {ENDPOINT}",
    ),
    (
        "a token endpoint with a password in it",
        {
            "@node/security": TOKEN
            | {"token_endpoint": "https://relay:hunter2@login.example.com/token"}
        },
        f"@node.security.token_endpoint: {ENDPOINT}",
    ),
    (
        "a mechanism that the protocol would ignore",
        {"@node/security": {"mechanism": "PLAIN"}},
        "@node.security.mechanism: needs a SASL protocol, not PLAINTEXT",
    ),
    (
        "a password that would go over no SASL",
        {"@node/security": {"protocol": "SSL", "password": "x"}},
        "@node.security.password: needs a SASL protocol, not SSL",
    ),
    (
        "TLS settings in the clear",
        {"@node/security": {"verify_hostname": True}},
        "@node.security.verify_hostname: needs the protocol SSL or SASL_SSL, not PLAINTEXT",
    ),
    (
        "a key without a certificate",
        {"@node/security": {"protocol": "SSL", "key_password": "x"}},
        "@node.security.key_password: needs certificate_location",
    ),
    (
        "a certificate nowhere",
        {"@node/security": {"protocol": "SSL", "ca_location": "no.pem"}},
        (
            "@node.security.ca_location: expected a file that exists, got 'no.pem':"
            " relative paths start at the folder of the configuration file"
        ),
    ),
    (
        "a number as password",
        {"@node/security": SASL | {"password": 12345}},
        "@node.security.password: expected a string, got a whole number; put it in quotes",
    ),
]


@pytest.mark.parametrize(
    ("changes", "line"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_is_refused_in_one_line(write, changes, line):
    """Dotted path, what was expected, what came: nothing else, and nothing accepted in silence."""
    places = {
        place.replace("@node", NODE).replace("@", "mirrors/orders"): value
        for place, value in changes.items()
    }
    path = write(changed(places))
    assert refusal(path) == f"{path}: " + line.replace("@node", NODE_PATH).replace(
        "@", "mirrors.orders"
    )


class TestFile:
    """The file itself."""

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (
                "mirrors: {}\nspark: {}\nmirrors: {}\n",
                ":3:1: duplicate key 'mirrors', first in line 1; remove one",
            ),
            (
                "spark:\n  conf: {a: 1, b: 2, a: 3}\n",
                ":2:22: duplicate key 'a', first in line 2; remove one",
            ),
            ("on: 1\n", ":1:1: this key is not a string; put it in quotes"),
            ("? [a, b]\n: 1\n", ":1:3: this key is not a string; put it in quotes"),
            ("a: 1\n b: 2\n", ":2:3: not YAML: mapping values are not allowed here"),
            ("a: [1\n", ":2:1: not YAML: expected ',' or ']', but got '<stream end>'"),
            ("a: \tb\nc: \x07\n", ":2:4: not YAML: an unprintable character"),
            ("a: 1\n---\nb: 2\n", ":2:1: not YAML: but found another document"),
            (f"password: *{SECRET}\n", ":1:11: not YAML: found undefined alias ..."),
            (
                f"password: !{SECRET} x\n",
                ":1:11: not YAML: could not determine a constructor for the tag ...",
            ),
            ("", " is empty; start from relay.example.yaml"),
            ("# nothing\n", " is empty; start from relay.example.yaml"),
            ("- a\n", ": expected a mapping, got a list"),
            ("just text\n", ": expected a mapping, got a string"),
        ],
    )
    def test_is_refused_with_line_and_column(self, write, text, line):
        path = write(text)
        assert refusal(path) == f"{path}{line}"

    def test_a_missing_file_says_what_to_do(self, tmp_path):
        path = tmp_path / "relay.yaml"
        assert (
            refusal(path)
            == f"{path} does not exist; name another file, or start from relay.example.yaml"
        )

    def test_a_folder_is_no_file(self, tmp_path):
        assert refusal(tmp_path) == f"{tmp_path} cannot be read: Is a directory"

    def test_other_encodings_are_refused(self, tmp_path):
        path = tmp_path / "relay.yaml"
        path.write_bytes(b"a: \xe4\n")
        assert refusal(path) == f"{path} is not UTF-8 text: byte 3; save it as UTF-8"

    def test_a_byte_order_mark_is_no_problem(self, tmp_path):
        path = tmp_path / "relay.yaml"
        path.write_text(MINIMAL, encoding="utf-8-sig")
        assert load(path).mirror("orders")

    def test_several_problems_are_told_at_once(self, write):
        """Fixing one and finding the next is a run each."""
        path = write(
            changed({"metric": 1, f"{NODE}/name": "${UNSET}", "mirrors/orders/topics/allow": ["("]})
        )
        lines = refusal(path).splitlines()
        assert lines[0] == f"{path}: 3 problems"
        assert sorted(line.split(":")[0] for line in lines[1:]) == [
            "  metric",
            f"  {NODE_PATH}.name",
            "  mirrors.orders.topics.allow[0]",
        ]

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [("order", "did you mean 'orders'?"), ("something-else", "valid mirrors: orders")],
    )
    def test_an_unknown_mirror_names_the_nearest(self, write, name, remedy):
        with pytest.raises(ConfigError, match="no mirror") as caught:
            load(write(MINIMAL)).mirror(name)
        assert str(caught.value) == f"no mirror is called {name!r}; {remedy}"


SECRETLY_WRONG = [
    {f"{NODE}/security": SASL | {"password": [SECRET]}},
    {f"{NODE}/security": SASL | {"password": {"value": SECRET}}},
    {f"{NODE}/security": SASL | {"password": SECRET, "mechanism": None}},
    {f"{NODE}/security": SASL | {"password": None, "pasword": SECRET}},
    {f"{NODE}/security": {"password": SECRET}},
    {f"{NODE}/security": {"key_password": SECRET}},
    {f"{NODE}/security": TOKEN | {"client_secret": [SECRET]}},
    {f"{NODE}/security": TOKEN | {"client_secret": SECRET, "client_id": None}},
    {
        f"{NODE}/security": TOKEN
        | {"token_endpoint": f"https://relay:{SECRET}@login.example.com/token"}
    },
    {f"{NODE}/security": SECRET},
    {f"{NODE}/security": [SECRET]},
    {f"{NODE}/security": SASL | {"mechanism": "${SECRET}"}},
    {f"{NODE}/security": {"protocol": "SSL", "ca_location": "${SECRET}"}},
    {f"{NODE}/bootstrap_servers": "${SECRET}"},
    {f"{NODE}/name": "${SECRET} "},
    {"mirrors/orders/topics/rename": {"a": "${SECRET}", "b": "${SECRET}"}},
    {"mirrors/orders/topics/rename": "${SECRET}"},
    {"spark/conf": {"spark.hadoop.fs.s3a.secret.key": [SECRET]}},
    {"spark/conf": {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.speculation": True}},
]


@pytest.mark.parametrize("changes", SECRETLY_WRONG)
def test_a_secret_never_shows_in_an_error(write, changes):
    """Neither in the message nor anywhere in the trace, chained errors included."""
    good = SASL | {"password": SECRET}
    path = write(changed({"mirrors/orders/destination/security": good} | changes))
    with pytest.raises(ConfigError) as caught:
        load(path, {"SECRET": SECRET})
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_a_secret_never_shows_in_repr(write):
    """Settings end up in logs and debuggers."""
    conf = {"spark.hadoop.fs.s3a.secret.key": SECRET}
    security = SASL | {
        "password": "${SECRET}",
        "key_password": SECRET,
        "certificate_location": "relay.yaml",
    }
    settings = load(
        write(changed({f"{NODE}/security": security, "spark/conf": conf})), {"SECRET": SECRET}
    )
    mirror = settings.mirror("orders")
    assert mirror.nodes[0].security.password == SECRET
    with_token = TOKEN | {"client_secret": "${SECRET}"}
    token = load(write(changed({f"{NODE}/security": with_token})), {"SECRET": SECRET}).mirror(
        "orders"
    )
    assert token.nodes[0].security.client_secret == SECRET
    for shown in (
        settings,
        mirror,
        mirror.nodes,
        mirror.source,
        settings.spark,
        token,
        token.nodes,
        token.source,
    ):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)


def sections(annotation: Any) -> dict[type[BaseModel], dict[str, Any]]:
    """Every model reachable from the annotation, with its keys and their annotations."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        found = [sections(argument) for argument in get_args(annotation)]
        return {key: value for each in found for key, value in each.items()}
    keys = {
        field.alias or name: field.annotation for name, field in annotation.model_fields.items()
    }
    return {annotation: keys} | {
        key: value for child in keys.values() for key, value in sections(child).items()
    }


def written_keys(tree: Any, annotation: Any) -> set[tuple[type[BaseModel], str]]:
    """The keys of every model that a parsed file gives."""
    if isinstance(annotation, UnionType):  # UserClass | None
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        keys = {
            field.alias or name: field.annotation for name, field in annotation.model_fields.items()
        }
        below = [written_keys(value, keys[key]) for key, value in (tree or {}).items()]
        return {(annotation, key) for key in tree or {}}.union(*below)
    arguments = get_args(annotation)
    if isinstance(tree, list) and arguments:
        return set().union(*(written_keys(value, arguments[0]) for value in tree))
    if isinstance(tree, dict) and arguments:
        return set().union(*(written_keys(value, arguments[1]) for value in tree.values()))
    return set()


def uncommented() -> str:
    """The example with every key in use: `#key:` is a key, `# text` a comment."""
    return re.sub(r"^(\s*)#(?=(?:- )?[a-z_.]+:)", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)


class TestExample:
    """relay.example.yaml, where users start."""

    def test_loads_as_it_stands(self):
        settings = load(EXAMPLE, {})
        assert settings.mirror("orders").copy_options == model.CopyOptions(), (
            "the example says these are the defaults"
        )

    def test_documents_every_key(self):
        every = {(section, key) for section, keys in sections(Settings).items() for key in keys}
        assert len(every) > 30
        written = written_keys(yaml.safe_load(uncommented()), Settings)
        # the mirror's own are written there
        assert (
            every - written - {(Override, key) for section, key in written if section is Mirror}
            == set()
        )

    def test_loads_with_every_key_in_use(self, tmp_path):
        """What is commented out must be right too: it is what people copy."""
        for name in ("ca.pem", "client.pem", "client.key"):
            (tmp_path / name).touch()
        (tmp_path / "client.key.password").write_text("k\n")
        path = tmp_path / "relay.yaml"
        others_in_use = ("master:", "start: earliest", "policy:", "offsets:", "group:")
        lines = uncommented().splitlines(keepends=True)
        path.write_text(
            "".join(line for line in lines if not any(one in line for one in others_in_use))
        )
        settings = load(path, {"ORDERS_PASSWORD": "p", "RELAY_CLIENT_SECRET": "s"})
        assert settings.mirror("orders").nodes[0].security.key_password == "k"

    def test_every_key_has_a_description(self):
        described = itertools.chain.from_iterable(
            section.model_fields.items() for section in sections(Settings)
        )
        assert [name for name, field in described if not field.description] == []

"""relay.yaml: what its keys become, and their defaults."""

import pickle
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest
from dagster import AssetKey, DagsterInvalidDefinitionError
from dagster._core.definitions.utils import validate_asset_owner

from relay_pipelines import model
from relay_pipelines.audit.request import Level
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import TopicPartition
from relay_pipelines.settings import Mirror, load
from relay_pipelines.settings.models import AuditSettings
from relay_pipelines.settings.topics import DEFAULT_CONFIG_KEYS, Topics
from tests.support.config_files import EXAMPLE, MINIMAL, changed, refusal

WriteConfig = Callable[[str], Path]
COPIES = [  # key of `copy`, what is written, the copy option that it becomes
    ("chunk", "64MiB", "chunk_bytes", 64 << 20),
    ("chunk", 7, "chunk_bytes", 7),
    ("chunk", "7", "chunk_bytes", 7),
    ("chunk", "7B", "chunk_bytes", 7),
    ("chunk", "64KiB", "chunk_bytes", 65_536),
    ("chunk", "1GiB", "chunk_bytes", 1 << 30),
    ("chunk", "10MB", "chunk_bytes", 10_000_000),
    ("chunk", "2kb", "chunk_bytes", 2_000),
    ("chunk", "1TiB", "chunk_bytes", 1 << 40),
    ("chunk_interval", "500ms", "chunk_ms", 500),
    ("fetch_max", 1000, "fetch_max_bytes", 1000),
    ("coalesce_below", 0, "coalesce_below_bytes", 0),
    ("coalesce_to", "1.5 MiB", "coalesce_to_bytes", 3 << 19),
    ("recompress", "zstd", "codec", "zstd"),
    ("transaction_timeout", "5m", "transaction_timeout_ms", 300_000),
    ("request_timeout", "3s", "request_timeout_ms", 3_000),
    ("backoff", {"min": "1s"}, "backoff_min_ms", 1_000),
    ("backoff", {"max": "1m"}, "backoff_max_ms", 60_000),
]
WINDOW = {"max_bytes": "1MiB", "session": 0, "keep": 7, "lag_target": "2s"}
LANES = {"big_2024": {"topics": ["a"], "window": {"every": "1s"}}, "two": {"topics": ["b", "c.*"]}}
OTHERS = [  # path, what is written, the mirror's attribute that it becomes
    ("window", {"every": "1m"}, "window.every", 60_000),
    ("window", WINDOW, "window.max_bytes", 1 << 20),
    ("window", WINDOW, "window.session", 0),
    ("window", WINDOW, "window.keep", 7),
    ("window", WINDOW, "window.lag_target", 2_000),
    # a string of digits comes from an environment variable; an int32 does not count so many
    ("window", {"max_records": 3_000_000_000}, "window.max_records", 3_000_000_000),
    ("window", {"max_records": str(2**63 - 1)}, "window.max_records", 2**63 - 1),
    (
        "start",
        {"offsets": {"orders-0": 3_000_000_000}},
        "start.by_topic_partition",
        {TopicPartition("orders", 0): 3_000_000_000},
    ),
    ("audit", {"schedule": "0 3 * * *"}, "audit.schedule", "0 3 * * *"),
    ("audit", {"schedule": "*/15 0-6,22 1,15 1-12/3 0"}, "audit.level", "sample"),
    ("audit", {"schedule": "0 3 * * *", "share": "0.5%"}, "audit.share", 0.005),
]


@pytest.mark.parametrize(
    ("path", "written", "attribute", "value"),
    [
        *((f"copy/{key}", each, f"copy_options.{to}", became) for key, each, to, became in COPIES),
        *OTHERS,
    ],
)
def test_what_a_key_becomes(
    load_mirror: Callable[..., Mirror], path: str, written: object, attribute: str, value: object
) -> None:
    """Bytes, milliseconds and counts of plain types: tasks unpickle them without pydantic."""
    found = attrgetter(attribute)(load_mirror({f"@/{path}": written}))
    assert (found, type(found)) == (value, type(value))


def test_the_shortest_file_gets_all_defaults(write_config: WriteConfig) -> None:
    """Keys without a value, too: YAML reads `copy:` with only comments under it as null."""
    empty = {"spark": None, "@/copy": None, "@/destination/replication_factor": None}
    for text in (MINIMAL, changed(empty)):
        settings = load(write_config(text))
        mirror, spark = settings.mirror("orders"), settings.spark
        assert mirror.upstreams == (model.Cluster("kafka-a", ("kafka-a:9092",)),)
        assert mirror.destination_cluster == model.Cluster("destination", ("kafka-b:9092",))
        assert mirror.copy_options == model.CopyOptions()
        assert mirror.start.is_earliest
        assert mirror.destination.replication_factor is None
        topics = mirror.topics
        assert (topics.allow, topics.deny, topics.rename) == ((".*",), (), "{topic}")
        assert (spark.master, spark.remote, spark.conf) == ("local[*]", None, {})
        assert (settings.metrics.address, settings.metrics.textfile) == (None, None)
        assert topics.config_keys == DEFAULT_CONFIG_KEYS
    assert load(EXAMPLE, {}).mirror("orders").topics.config_keys == DEFAULT_CONFIG_KEYS
    assert Topics.model_validate({"config_keys": []}).config_keys == ()
    with pytest.raises(ValueError, match="frozen"):
        settings.spark = None  # type: ignore[assignment]
    assert pickle.loads(pickle.dumps(settings)) == settings
    # by name, as the audit itself is slow to import
    levels = [str(level) for level in Level]
    assert list(get_args(AuditSettings.model_fields["level"].annotation)) == levels


@pytest.mark.parametrize(
    ("written", "milliseconds"), [("2s", 2_000), (-1, -1), ("-1", -1), (None, 60_000)]
)
def test_give_up_after_applies_to_all_topics_of_a_mirror(
    load_mirror: Callable[..., Mirror], written: object, milliseconds: int
) -> None:
    """Topics with an override have the mirror's, too."""
    overrides = {"one": {"copy": {"chunk": "1MiB"}}}
    mirror = load_mirror({"@/give_up_after": written, "@/topics/overrides": overrides})
    for options in (mirror.copy_options, mirror.record_policy("one").options):
        assert options
        assert options.give_up_after_ms == milliseconds


def test_windows_of_lanes_and_overrides(load_mirror: Callable[..., Mirror]) -> None:
    """A lane's replace the mirror's as a whole; an override is a lane before them, and inherits."""
    mirror = load_mirror({"@/window": {"every": "1m", **WINDOW}, "@/lanes": LANES})
    big = mirror.lanes["big_2024"].window
    assert big is not None
    assert (big.every, big.session) == (1_000, 900_000)
    assert (mirror.lanes["two"].topics, mirror.lanes["two"].window) == (("b", "c.*"), None)
    overrides = {r"Orders\.big": {"window": {"max_records": 5}}, "x": {"where": "true"}}
    window = {"every": "5s", "keep": 2}
    lanes = {"slow": {"topics": ["s.*"]}}
    mirror = load_mirror({"@/window": window, "@/lanes": lanes, "@/topics/overrides": overrides})
    assert list(mirror.all_lanes) == ["orders_big", "slow"]
    lane = mirror.all_lanes["orders_big"]
    assert lane.window is not None
    assert (lane.window.max_records, lane.window.every, lane.window.keep) == (5, 5_000, 2)
    assert lane.topics == (r"Orders\.big",)
    # a verbose regular expression may end with a line end
    (allowed,) = load_mirror({"@/topics/allow": ["(?x)\n  orders\n  | payments\n"]}).topics.allow
    assert re.fullmatch(allowed, "payments")


def test_overrides_replace_single_keys_of_the_mirror(load_mirror: Callable[..., Mirror]) -> None:
    """Other keys keep the mirror's value, at any depth; the first override that matches counts."""
    copying = {"chunk": "1MiB", "backoff": {"min": "1s"}, "parallelism": 2}
    changes = {
        "@/copy": {"chunk": "3MiB", "chunk_interval": "2s", "backoff": {"max": "9s"}},
        "@/topics/overrides": {
            r"orders\.big": {"copy": copying, "where": "key IS NULL"},
            r"orders\.big|orders\.x": {"copy": {"chunk": "2MiB"}, "filters": []},
        },
        "@/filters": [{"class": "a:B"}],
        "@/select": {"key": "value"},
    }
    mirror = load_mirror(changes)
    policies = [mirror.record_policy(topic) for topic in ("orders.big", "orders.x", "payments")]
    big, other, default = (policy.options for policy in policies)
    assert big is not None
    assert other is not None
    assert (big.chunk_bytes, big.chunk_ms, big.parallelism) == (1 << 20, 2_000, 2)
    assert (big.backoff_min_ms, big.backoff_max_ms) == (1_000, 9_000)
    assert (other.chunk_bytes, other.parallelism, default) == (2 << 20, 0, None)
    assert [len(policy.filters) for policy in policies] == [1, 0, 1]
    assert [policy.where for policy in policies] == ["key IS NULL", "", ""]
    assert [policy.select for policy in policies] == [(("key", "value"),)] * 3


def test_owners(load_mirror: Callable[..., Mirror], write_config: WriteConfig) -> None:
    """What Dagster refuses is a line about relay.yaml instead of Dagster's own error."""
    owners = ["team:data-eng_1", "some.one+x@mail.example.com", "a_b@example.io"]
    assert load_mirror({"@/owners": owners}).owners == tuple(owners)
    for owner in owners:
        validate_asset_owner(owner, AssetKey("a"))
    for name in ("someone@example.engineering", ".a@example.com", "o'hara@example.com", "a b@c.io"):
        path = write_config(changed({"@/owners": ["team:a", name]}))
        line = f"mirrors.orders.owners[1]: expected an e-mail address or team:name, got {name!r}"
        assert refusal(path) == f"{path}: {line}"
        with pytest.raises(DagsterInvalidDefinitionError):
            validate_asset_owner(name, AssetKey("a"))


def test_spark_has_a_master_or_a_remote_and_its_own_spelling(write_config: WriteConfig) -> None:
    written = {"spark.executor.cores": 4, "spark.speculation": False, "spark.executor.memory": "2g"}
    section = {"remote": "sc://spark:15002", "master": None, "conf": written}
    spark = load(write_config(changed({"spark": section}))).spark
    assert (spark.master, spark.remote) == (None, "sc://spark:15002")
    spelled = {"spark.executor.cores": "4", "spark.speculation": "false"}
    assert spark.conf == spelled | {"spark.executor.memory": "2g"}


def test_an_unknown_mirror_suggests_the_most_similar_one(write_config: WriteConfig) -> None:
    settings = load(write_config(MINIMAL))
    with pytest.raises(ConfigError, match=r"called 'order'; did you mean 'orders'\?$"):
        settings.mirror("order")
    with pytest.raises(ConfigError, match=r"called 'x'; valid mirrors: orders$"):
        settings.mirror("x")

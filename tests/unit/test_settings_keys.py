"""relay.yaml: unknown and missing keys, defaults, and keys without a value."""

from __future__ import annotations

import pickle

import pytest

from relay_pipelines import model
from relay_pipelines.settings import load
from relay_pipelines.settings.start import StartPolicy
from tests.support.config_files import MINIMAL, cases, changed, refusal

REFUSED = [
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
        "a key that resembles no other",
        {"@/health": {}},
        (
            "@.health: unknown key; valid keys: audit, copy, destination, expectation_sample,"
            " expectations, filters, give_up_after, lanes, on_data_loss, on_record_error,"
            " owners, select, source, start, topics, transform, where, window"
        ),
    ),
    (
        "max_attempts of an earlier version",
        {"@/copy/max_attempts": 10},
        "@.copy.max_attempts: unknown key; use give_up_after of the mirror, a duration",
    ),
    (
        "max_attempts of an earlier version in an override",
        {"@/topics/overrides": {"a": {"copy": {"max_attempts": 10}}}},
        (
            "@.topics.overrides.a.copy.max_attempts: unknown key; use give_up_after of the mirror,"
            " a duration"
        ),
    ),
    (
        "max_retries of an earlier version",
        {"@/source/health": {"max_retries": 2}},
        "@.source.health.max_retries: unknown key; use give_up_after of the mirror, a duration",
    ),
    (
        "the attribute's name instead of the key's",
        {"@/copying": {}},
        "@.copying: unknown key; did you mean 'copy'?",
    ),
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
        "no bootstrap servers",
        {"@node/bootstrap_servers": []},
        "@node.bootstrap_servers: expected at least one entry, got a list",
    ),
    (
        "no allow pattern",
        {"@/topics/allow": []},
        "@.topics.allow: expected at least one entry, got a list",
    ),
]


@pytest.mark.parametrize(("changes", "line"), cases(REFUSED))
def test_is_refused_in_one_line(write_config, changes, line):
    """The path of the key, what was expected, what was found."""
    path = write_config(changed(changes))
    assert refusal(path) == f"{path}: {line}"


def test_the_shortest_file_gets_all_defaults(write_config):
    settings = load(write_config(MINIMAL))
    mirror = settings.mirror("orders")
    assert mirror.nodes == (model.Cluster("node1", ("kafka-a:9092",)),)
    assert mirror.destination_cluster == model.Cluster("destination", ("kafka-b:9092",))
    assert mirror.copy_options == model.CopyOptions()
    assert mirror.start.policy is StartPolicy.EARLIEST
    assert mirror.destination.replication_factor is None
    topics, spark = mirror.topics, settings.spark
    assert (topics.allow, topics.deny, topics.rename) == ((".*",), (), "{topic}")
    assert (spark.master, spark.remote, spark.conf) == ("local[*]", None, {})
    assert (settings.metrics.address, settings.metrics.textfile) == (None, None)


def test_a_key_without_a_value_gets_its_default(write_config):
    """YAML reads `copy:` with only comments under it as null, and that must not fail."""
    changes = {"spark": None, "@/copy": None, "@/destination/replication_factor": None}
    settings = load(write_config(changed(changes)))
    assert settings.spark.master == "local[*]"
    assert settings.mirror("orders").copy_options == model.CopyOptions()


def test_settings_cannot_be_changed_and_can_be_pickled(write_config):
    settings = load(write_config(MINIMAL))
    with pytest.raises(ValueError, match="frozen"):
        settings.spark = None
    assert pickle.loads(pickle.dumps(settings)) == settings

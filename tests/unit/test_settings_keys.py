"""relay.yaml: unknown and missing keys, defaults, and keys without a value."""

from __future__ import annotations

import pickle

import pytest

from relay_pipelines import model
from relay_pipelines.settings import load
from relay_pipelines.settings.models import StartPolicy
from tests.support.config_files import MINIMAL, cases, changed

REFUSED = [
    ("a misspelt section", {"metric": {}}, "metric"),
    ("a misspelt section without a value", {"metric": None}, "metric"),
    ("a misspelt key deep down", {"@node/bootstrap_server": []}, "@node.bootstrap_server"),
    ("a misspelt copy key", {"@/copy/chunks": 1}, "@.copy.chunks"),
    ("a misspelt backoff key", {"@/copy/backoff": {"maxi": "1s"}}, "@.copy.backoff.maxi"),
    ("a key that resembles no other", {"@/health": {}}, "@.health"),
    ("the attribute's name instead of the key's", {"@/copying": {}}, "@.copying"),
    ("no mirrors", {"mirrors": {}}, "mirrors"),
    ("mirrors left empty", {"mirrors": None}, "mirrors"),
    ("a mirror left empty", {"mirrors/orders": None}, "mirrors.orders"),
    ("no destination", {"@/destination": None}, "@.destination"),
    ("no nodes", {"@/source/nodes": []}, "@.source.nodes"),
    ("no bootstrap servers", {"@node/bootstrap_servers": []}, "@node.bootstrap_servers"),
    ("no allow pattern", {"@/topics/allow": []}, "@.topics.allow"),
]


@pytest.mark.parametrize(("changes", "place"), cases(REFUSED))
def test_is_refused_in_one_line(assert_refused, changes, place):
    assert_refused(changes, place)


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

"""relay.yaml: names and owners of mirrors, Spark, metrics."""

from __future__ import annotations

import pytest
import yaml
from dagster import AssetKey, DagsterInvalidDefinitionError
from dagster._core.definitions.utils import validate_asset_owner

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings import load
from tests.support.config_files import MINIMAL, cases, changed, refusal

REFUSED = [
    (
        "a mirror name that would split a checkpoint key",
        {"mirrors/a~b": yaml.safe_load(MINIMAL)["mirrors"]["orders"]},
        "mirrors.a~b",
    ),
    (
        "mirror names that Dagster cannot tell apart",
        {
            f"mirrors/{name}": yaml.safe_load(MINIMAL)["mirrors"]["orders"]
            for name in ("a_b-c", "a-b_c", "a-b-d")
        },
        "mirrors.a_b-c",
    ),
    ("an owner without a kind", {"@/owners": ["data"]}, "@.owners[0]"),
    ("a team without a name", {"@/owners": ["team:"]}, "@.owners[0]"),
    ("an owner that is not in a list", {"@/owners": "team:a"}, "@.owners"),
    ("a port that does not exist", {"metrics/address": "localhost:70000"}, "metrics.address"),
    (
        "a metrics file in a missing folder",
        {"metrics/textfile": "no/such/relay.prom"},
        "metrics.textfile",
    ),
    ("an empty master", {"spark": {"master": ""}}, "spark.master"),
    ("a misspelt master", {"spark": {"master": "locl[2]"}}, "spark.master"),
    ("no cores", {"spark": {"master": "local[0]"}}, "spark.master"),
    ("a scheme that Spark does not have", {"spark": {"master": "sprk://h:7077"}}, "spark.master"),
    ("a token without its name", {"spark": {"remote": "sc://spark:1/;hunter2"}}, "spark.remote"),
    (
        "a port of letters, before a token",
        {"spark": {"remote": "sc://spark:abc/;token=hunter2"}},
        "spark.remote",
    ),
    (
        "a password in an address",
        {"@node/bootstrap_servers": ["user:hunter2@kafka:9092"]},
        "@node.bootstrap_servers[0]",
    ),
    ("a date that does not exist", {"@/start": {"timestamp": "2026-02-30"}}, "@.start.timestamp"),
    (
        "a master and a remote",
        {"spark": {"master": "local[1]", "remote": "sc://spark:15002"}},
        "spark.remote",
    ),
    ("a remote without its scheme", {"spark": {"remote": "spark:15002"}}, "spark.remote"),
    ("speculation", {"spark/conf": {"spark.speculation": True}}, "spark.conf.spark.speculation"),
    (
        "speculation as text",
        {"spark/conf": {"spark.speculation": " TRUE"}},
        "spark.conf.spark.speculation",
    ),
    (
        "spark.master in conf, where it has no effect",
        {"spark/conf": {"spark.master": "local"}},
        "spark.conf.spark.master",
    ),
]


@pytest.mark.parametrize(("changes", "place"), cases(REFUSED))
def test_is_refused_in_one_line(assert_refused, changes, place):
    assert_refused(changes, place)


def test_owners_are_addresses_and_teams(load_mirror):
    """Dagster must accept them, too."""
    owners = ["team:data-eng_1", "some.one+x@mail.example.com", "a_b@example.io"]
    assert load_mirror({"@/owners": owners}).owners == tuple(owners)
    for owner in owners:
        validate_asset_owner(owner, AssetKey("a"))


@pytest.mark.parametrize(
    "owner",
    ["someone@example.engineering", ".a@example.com", "o'hara@example.com", "a b@example.com"],
)
def test_an_address_that_dagster_refuses_is_refused(write_config, owner):
    """The user gets a line about relay.yaml instead of Dagster's own error."""
    path = write_config(changed({"@/owners": ["team:a", owner]}))
    line = f"mirrors.orders.owners[1]: expected an e-mail address or team:name, got {owner!r}"
    assert refusal(path) == f"{path}: {line}"
    with pytest.raises(DagsterInvalidDefinitionError):
        validate_asset_owner(owner, AssetKey("a"))


def test_a_remote_spark_has_no_master(write_config):
    changes = {"spark": {"remote": "sc://spark:15002", "master": None}}
    spark = load(write_config(changed(changes))).spark
    assert (spark.master, spark.remote) == (None, "sc://spark:15002")


def test_spark_configuration_is_spelled_as_spark_does(write_config):
    conf = {
        "spark.executor.cores": 4,
        "spark.ui.enabled": False,
        "spark.executor.memory": "2g",
        "spark.speculation": False,
    }
    assert load(write_config(changed({"spark/conf": conf}))).spark.conf == {
        "spark.executor.cores": "4",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "2g",
        "spark.speculation": "false",
    }


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("order", "did you mean 'orders'?"), ("something-else", "valid mirrors: orders")],
)
def test_an_unknown_mirror_suggests_the_most_similar_one(write_config, name, remedy):
    with pytest.raises(ConfigError, match="no mirror") as caught:
        load(write_config(MINIMAL)).mirror(name)
    assert str(caught.value) == f"no mirror is called {name!r}; {remedy}"

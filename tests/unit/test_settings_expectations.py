"""The key `expectations`, and the suites that it becomes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines.errors import ConfigError
from relay_pipelines.expectations import suite
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.expectations.validation import SideRun, Suite
from relay_pipelines.model import Side
from relay_pipelines.settings import Mirror, load
from relay_pipelines.settings import expectations as module
from relay_pipelines.settings.expectations import CheckSeverity, snake_case
from relay_pipelines.sides import Sides
from tests.support.config_files import SIDES


def mirror(folder: Path, entries: list[Any], **more: Any) -> Mirror:
    section = {**SIDES, "expectations": entries, **more}
    path = folder / "relay.yaml"
    path.write_text(yaml.safe_dump({"mirrors": {"m": section}}))
    return load(path).mirror("m")


def test_entries_of_every_form(tmp_path: Path) -> None:
    """A word, a word with a value, and an expectation by class or name, with options beside it."""
    found = mirror(
        tmp_path,
        [
            "keys_not_null",
            {"timestamps_within": "30d", "severity": "warn"},
            {"size_below": "1MiB"},
            {"ExpectColumnMaxToBeBetween": {"column": "size"}, "side": "source", "blocking": True},
            {"expect_column_to_exist": {"column": "key"}, "name": "there"},
        ],
    ).expectations_of("any")
    assert [(each.name, each.value) for each in found] == [
        ("keys_not_null", None),
        ("timestamps_within", 30 * 86_400_000),
        ("size_below", 1 << 20),
        ("expect_column_max_to_be_between_size", {"column": "size"}),
        ("there", {"column": "key"}),
    ]
    assert [each.severity for each in found].count(CheckSeverity.WARN) == 1
    sides = [(each.side, each.blocking) for each in found[3:]]
    assert sides == [("source", True), ("destination", False)]


def test_lists_of_expectations(tmp_path: Path) -> None:
    """An override replaces the list or the sample; a back-reference keeps its group."""
    overrides = {"a": {"expectations": []}, "b": {"expectation_sample": {"values": False}}}
    more: dict[str, Any] = {"topics": {"overrides": overrides}, "expectation_sample": {"rows": 2}}
    found = mirror(tmp_path, ["keys_not_null"], **more)
    assert [len(found.expectations_of(topic)) for topic in "abc"] == [0, 1, 1]
    samples = [found.expectation_sample_of(topic) for topic in "abc"]
    assert [(each.rows, each.values) for each in samples] == [(2, True), (2, False), (2, True)]
    (alone,) = mirror(tmp_path, [{"no_pii": [r"([a-z])\1{5}"]}]).expectations_of("any")
    _, given = suite.arguments(alone, 0)
    assert re.search(given["regex"], "aaaaaaaa")
    with pytest.raises(ConfigError, match=r"\[1\]: 2 expectations are named keys_not_null; give"):
        mirror(tmp_path, ["keys_not_null", "keys_not_null"])


def test_a_shared_destination_is_not_read(tmp_path: Path) -> None:
    """Records of other topics lie between those of the topic."""
    found = mirror(tmp_path, ["keys_not_null"], topics={"rename": {"one": "all:0"}})
    window = TopicWindow("one", "w", (), 3)
    for side, topic, refused in [
        (Side.DESTINATION, "one", True),
        (Side.SOURCE, "one", False),
        (Side.DESTINATION, "two", False),
    ]:
        line = "other topics may share all:0" if refused else "no Spark"
        run = SideRun(no_spark, tmp_path, Sides("m", found), replace(window, topic=topic), side)
        with pytest.raises(ConfigError, match=line):
            run.data([], Suite([], {}, {}))


def no_spark() -> Any:
    raise ConfigError("no Spark", remedy="none")


def test_without_great_expectations_names_are_checked_by_their_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that only copies does not need the extra to load relay.yaml."""
    names = ("ExpectColumnPairValuesAToBeGreaterThanB", "UnexpectedRowsExpectation")
    for name in (*names, "ExpectColumnKLDivergenceToBeLessThan"):
        assert snake_case(name) in module.known_expectations()
    monkeypatch.setattr(module, "known_expectations", frozenset)
    (found,) = mirror(tmp_path, [{"ExpectColumnToExit": {}}]).expectations_of("any")
    assert found.kind == "expect_column_to_exit"
    with pytest.raises(ConfigError, match="did you mean 'keys_not_null'"):
        mirror(tmp_path, ["keys_not_nul"])


def test_only_the_columns_that_a_suite_names_are_read() -> None:
    """Whatever may name a column in another way needs them all."""
    pair = {"column_A": "size", "column_B": "amount"}
    found = suite.columns([{"column": "key"}, pair], ["amount", "other"])
    assert found == {"key", "size", "amount"}
    assert suite.columns([{"column": "is_json"}], []) == {"is_json", "value"}
    everything = {*module.RECORD_COLUMNS, "amount"}
    assert suite.columns([{"column": "key", "row_condition": "x"}], ["amount"]) == everything
    assert suite.columns([{"value": 3}], ["amount"]) == everything

"""Expectations over real records: what they find, on both sides, and what cannot disturb them."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from relay_pipelines import api
from relay_pipelines.expectations.request import ExpectationsRequest
from relay_pipelines.expectations.topic_window import TopicWindow, from_ledger
from relay_pipelines.expectations.validation import Result, validate
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from tests.copying import Clusters, Mirror, write_transaction
from tests.support import commands
from tests.support.commands import configured, error_line, relay_here
from tests.support.independent import CREATE_TIME, Record, delete_before, write

DAY_MS = 86_400_000
IN_SET = "expect_column_values_to_be_in_set_key"
CARD = b'{"amount": 2.5, "card": "4000123412341234"}'
ODD: dict[int, dict[str, Any]] = {
    3: {"key": None},
    5: {"value": b"{no json"},
    7: {"value": b'{"amount": "much"}'},
    9: {"value": CARD},
    11: {"value": None},
    13: {"value": b'{"amount": 1e3, "padding": "%s"}' % (b"x" * 5_000)},
    15: {"value": b"\xff\xfe"},
}
"""What is wrong with some of the records, by offset; 11 is a tombstone, which is not."""


def records(now_ms: int) -> list[Record]:
    """Twenty records; one is three days old."""
    made = []
    for number in range(20):
        usual = {"key": b"k%d" % number, "value": b'{"amount": %d.5}' % number}
        at_ms = now_ms - 3 * DAY_MS if number == 17 else now_ms
        own = usual | ODD.get(number, {})
        made.append(Record(own["key"], own["value"], (), (CREATE_TIME, at_ms)))
    return made


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """The records, and the copy of all but the first."""
    made = Mirror(*sides, topic_name)
    made.write(records(SystemClock().now_ms()))
    made.copy(1)
    return made


def config_of(mirror: Mirror, folder: Path, expectations: list[Any], **more: Any) -> Path:
    section = commands.mirror(
        mirror.source, mirror.destination, mirror.topic, expectations=expectations, **more
    )
    return configured(folder, {mirror.name: section}, spark={"master": "local[2]"})


def window_of(mirror: Mirror) -> TopicWindow:
    (window,) = from_ledger("a-window", mirror.entries(), lambda entry: bool(entry.window))
    return window


def found(
    mirror: Mirror,
    folder: Path,
    session: Any,
    expectations: list[Any],
    seen: TopicWindow | None = None,
    **more: Any,
) -> dict[str, Result]:
    """Validate the window, or what was `seen` of it, and return the results by name."""
    config = config_of(mirror, folder, expectations, **more)
    window, sides = seen or window_of(mirror), Sides(mirror.name, load(config).mirror(mirror.name))
    results = validate(lambda: session, config, sides, window)
    return {result.expectation.name: result for result in results}


def failing(results: dict[str, Result]) -> dict[str, list[int]]:
    return {
        name: [int(row["offset"]) for row in result.sample]
        for name, result in results.items()
        if not result.passed
    }


def test_what_each_word_finds(local_session: Any, mirror: Mirror, tmp_path: Path) -> None:
    """Each finds its records in the window and no other ones; a faulty one fails alone."""
    foreign = [Record(None, b"foreign, %d" % number) for number in range(7)]
    write_transaction(mirror.destination, mirror.at, foreign)
    mirror.write([Record(b"k20", b'{"amount": 1.5}', (), (CREATE_TIME, SystemClock().now_ms()))])
    mirror.copy(20)
    write(mirror.destination, mirror.at, [Record(None, b"foreign, last")])
    count = "expect_table_row_count_to_equal"
    wanted = [
        "keys_not_null",
        "json_parses",
        {"timestamps_within": "2d"},
        {"size_below": "4KiB"},
        {"schema": {"amount": "double", "card": "string"}},
        {"no_pii": ["[0-9]{16}", "^nobody$", "foreign"]},
        {"ExpectColumnMaxToBeBetween": {"column": "amount", "max_value": 999}},
        {"expect_column_values_to_be_between": {"column": "partition", "min_value": 0}},
        {count: {"value": 20}, "name": "there"},
        {count: {"value": 20}, "name": "at_source", "side": "source"},
        {count: {"value": 19}, "side": "source"},
        {"expect_column_values_to_match_regex": {"column": "key", "regex": "k[0-9"}},
        {"expect_column_values_to_be_in_set": {"column": "key", "value_set": ["k1"]}},
        {"expect_column_to_exist": {"column": "missing"}},
        {"expect_column_values_to_be_unique": {"column": "missing"}, "name": "unique"},
        {"expect_column_mean_to_be_between": {"column": "size", "mini": 1}},
    ]
    results = found(mirror, tmp_path, local_session, wanted, expectation_sample={"rows": 3})

    assert failing(results) == {
        "keys_not_null": [2],
        "json_parses": [4, 14],
        "timestamps_within": [16],
        "size_below": [12],
        "schema": [4, 6, 14],
        "no_pii": [8],
        "expect_column_max_to_be_between_amount": [],
        count: [],
        "expect_column_values_to_match_regex_key": [],
        IN_SET: [1, 3, 4],
        "expect_column_to_exist_missing": [],
        "unique": [],
        "expect_column_mean_to_be_between_size": [],
    }
    assert results["json_parses"].failing == 2
    assert [row["key"] for row in results[IN_SET].sample] == ["k2", "k4", "k5"]
    assert len(str(results["size_below"].sample[0]["value"])) < 100
    assert results[count].what == "not met; observed: 20"
    assert "4000" not in str(results["no_pii"])


def test_values_can_be_hidden(local_session: Any, mirror: Mirror, tmp_path: Path) -> None:
    """What people may not see is in no result, nor in an error."""
    count = {"expect_table_row_count_to_equal": {"value": 3}}
    in_set = {"expect_column_values_to_be_in_set": {"column": "key", "value_set": ["k1"]}}
    wanted = [{"size_below": "4KiB"}, {"no_pii": ["[0-9]{16}"]}, in_set, count]
    hidden = found(mirror, tmp_path, local_session, wanted, expectation_sample={"values": False})
    assert hidden["expect_table_row_count_to_equal"].what == "not met"
    assert len(hidden[IN_SET].sample) == 5
    names = {name for result in hidden.values() for row in result.sample for name in row}
    assert names == {"partition", "offset"}
    assert not any(result.passed for result in hidden.values())


def test_what_is_gone_is_not_validated(local_session: Any, mirror: Mirror, tmp_path: Path) -> None:
    """Half of a window says nothing about all of it, and neither does another count."""
    wanted: list[Any] = [
        {"size_below": "1MiB", "side": "source", "name": "source"},
        {"keys_not_null": None, "side": "destination", "name": "destination"},
    ]
    window = window_of(mirror)
    for change, line in [(1, "19 of the 20"), (-1, "19 of the 18")]:
        entries = tuple(
            replace(each, records=each.records + change, skipped={"control": -change})
            for each in window.entries
        )
        results = found(mirror, tmp_path, local_session, wanted, replace(window, entries=entries))
        assert len(results) == 2
        for side, each in results.items():
            known = f"not known: the {side} holds {line} records of the chunks that the ledger has"
            assert each.what.startswith(known)

    for cluster in (mirror.source, mirror.destination):
        delete_before(cluster, mirror.at, 9)
    gone = "no longer has the records before offset 9"
    for each in found(mirror, tmp_path, local_session, wanted).values():
        assert (each.passed, gone in each.what) == (False, True)


def test_silence_is_seen(local_session: Any, mirror: Mirror, tmp_path: Path) -> None:
    """A topic of which nothing was copied has no records, and is checked."""
    wanted = [
        {"expect_table_row_count_to_be_between": {"min_value": 1}, "name": "some"},
        "keys_not_null",
    ]
    config = config_of(mirror, tmp_path, wanted)
    settings = load(config).mirror(mirror.name)
    session = cast("Any", lambda: local_session)
    bound = api.Mirror(mirror.name, settings, session, config=config)
    time.sleep(1.2)

    (silent,) = bound.expectations(ExpectationsRequest(last="1s"))

    assert silent.window.records == 0
    passed = [each.passed for each in silent.results]
    assert passed == [False, True], [each.what for each in silent.results]
    assert silent.problems == [f"{mirror.topic}: some: not met; observed: 0"]
    (whole,) = bound.expectations(ExpectationsRequest(window="a-window"))
    assert whole.results[0].passed


@pytest.mark.usefixtures("local_session")
def test_the_command(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It exits with 4 if one fails that is no warning; pages are in a folder, and nowhere else."""
    home, folder = tmp_path / "home", tmp_path / "docs"
    (home / "tmp").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    failing = [
        {"json_parses": None, "severity": "warn"},
        {"size_below": "4KiB"},
        {"no_pii": ["[0-9]{16}"], "severity": "warn"},
    ]
    config = config_of(mirror, tmp_path, failing)
    done = relay_here(config, "expectations", "run", "--window", "a-window", "--json")
    assert done.returncode == 4, done.stderr
    assert error_line(done).endswith("size_below: 1 of 19 records do not meet it")
    (topic,) = json.loads(done.stdout)["topics"]
    assert (topic["topic"], topic["records"]) == (mirror.topic, 19)
    assert [each["failing"] for each in topic["expectations"]] == [2, 1, 1]
    assert "warning: " in done.stderr, "which does not count"
    unknown = relay_here(config, "expectations", "run", "--window", "b-window")
    line = f"{mirror.name}: the ledger has no entries of the window 'b-window'; did you mean"
    assert (unknown.returncode, error_line(unknown)) == (2, f"{line} 'a-window'?")

    of_window = ("--window", "a-window", "--output", str(folder))
    done = relay_here(config, "expectations", "docs", *of_window)
    assert done.returncode == 0, done.stderr
    assert (folder / "index.html").is_file()
    pages = "".join(page.read_text() for page in folder.rglob("*.html"))
    assert "a-window" in pages
    assert "padding" in pages
    assert "4000123412341234" not in pages
    assert [path.name for path in home.rglob("*") if "great" in path.name.lower()] == []

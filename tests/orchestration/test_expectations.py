"""Expectations in Dagster: checks of windows, behind copies that they neither undo nor delay."""

import threading
import time
from typing import Any

import dagster as dg
import pytest
from pyspark import SparkContext

from relay_pipelines.expectations import validation
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.turns import Turn
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.resources import KafkaResource
from relay_pipelines.spark.answering import within
from tests.orchestration.in_process_environment import InProcessEnvironment, Result, failure
from tests.support.independent import until

_PATIENCE_SECONDS = 240.0
EXPECTATIONS: list[dict[str, Any]] = [
    {"expect_column_values_to_match_regex": {"column": "value", "regex": "a.*"}, "name": "is_a"},
    {"keys_not_null": None, "severity": "warn"},
    {"expect_column_values_to_be_between": {"column": "missing", "min_value": 0}},
]


def evaluated(run: Result, topic: str) -> dict[str, dg.AssetCheckEvaluation]:
    """The evaluations of a topic by check, without the recount."""
    return {
        evaluation.check_name: evaluation
        for evaluation in run.get_asset_check_evaluations()
        if evaluation.asset_key.path[-1] == topic and evaluation.check_name != naming.MESSAGE_COUNTS
    }


@pytest.mark.quick
def test_results_are_checks_of_the_window(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """A failed check names its records; one that is blocking fails the run, but not the copy."""
    environment.write(topics, expectations=EXPECTATIONS)

    run = environment.copy()

    (window,) = environment.windows()
    of_a, of_b = (evaluated(run, topic) for topic in topics[:2])
    assert {name: check.passed for name, check in of_a.items()} == {
        "is_a": True,
        "keys_not_null": False,
        "expect_column_values_to_be_between_missing": False,
    }
    assert of_a["keys_not_null"].severity is dg.AssetCheckSeverity.WARN
    assert 'The column "missing"' in str(of_a["expect_column_values_to_be_between_missing"])
    assert {check.partition for check in of_b.values()} == {window}
    assert of_b["is_a"].metadata["failing (records)"].value == 50
    shown: Any = of_b["is_a"].metadata["failing, some"]
    rows = shown.records
    assert [row.data["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0].data["value"] == "b0"

    blocking = [EXPECTATIONS[0] | {"blocking": True}]
    environment.write(topics, expectations=blocking)
    environment.fill(topics[1], ["b50"], partition=1)
    blocked = environment.run()

    assert failure(blocked).endswith("is_a: 1 of 1 records do not meet it")
    assert environment.read(topics[1], 1)[-1] == "b50", "the copy stays"
    tags = environment.tags(blocked)
    assert tags[naming.TAG_TURN] == Turn.CHECKS
    again = environment.materialize(topics[1], environment.windows()[-1])
    assert not again.success
    assert not evaluated(again, topics[1])["is_a"].passed
    assert len(again.get_asset_materialization_events()) == 1
    assert not environment.is_retried(again)


def checks_of(run: Result, name: str) -> list[dg.AssetCheckEvaluation]:
    return [each for each in run.get_asset_check_evaluations() if each.check_name == name]


class Ahead(SystemClock):
    """A clock that tasks are more than ten minutes behind."""

    def now_ms(self) -> int:
        return super().now_ms() + 11 * 60_000


def test_what_the_recount_has_counted_is_checked(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, too, if a window has copied nothing; and whatever time its ledger entries have."""
    only = topics[:1]
    some = {"expect_table_row_count_to_be_between": {"min_value": 1}, "name": "some"}
    environment.write(only, expectations=[some], where="false")
    silent = evaluated(environment.copy(), topics[0])["some"]
    assert (silent.passed, silent.description) == (False, "not met; observed: 0")

    monkeypatch.setattr(KafkaResource, "clock", property(lambda _: Ahead()))
    environment.write(only, expectations=[some], where="true")
    environment.fill(topics[0], ["later"])
    later = evaluated(environment.copy(), topics[0])["some"]
    assert later.passed, later.description


def test_a_slow_check_delays_no_copy(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session copies window after window while expectations run; it reports them all."""
    only = topics[:1]
    environment.write(
        only, expectations=["keys_not_null"], window={"every": "200ms", "session": "12s"}
    )
    validate = validation.validate

    def slowly(*arguments: Any, **options: Any) -> list[validation.Result]:
        time.sleep(2)
        if len(environment.windows()) == 1:
            environment.fill(topics[0], ["later"])
            until(lambda: len(environment.windows()) > 1, "the second window", _PATIENCE_SECONDS)
            copied.append(len(environment.windows()))
        return validate(*arguments, **options)

    copied: list[int] = []
    monkeypatch.setattr(validation, "validate", slowly)
    monkeypatch.setattr("relay_pipelines.jobs.mirror_lane.GRACE_SECONDS", 0.0)

    run = environment.copy()

    assert copied == [2], "the second window was copied while the first was checked"
    checked = {each.partition for each in checks_of(run, "keys_not_null")}
    assert sorted(map(str, checked)) == environment.windows()


def jvm() -> int | None:
    """The process of Spark's JVM; None between two of them."""
    gateway = SparkContext._gateway
    return gateway and gateway.proc.pid


def is_matching() -> bool:
    """Whether Spark is in the middle of a regular expression that goes back and forth."""
    jvm: Any = SparkContext._jvm
    threads = jvm.java.lang.management.ManagementFactory.getThreadMXBean()
    found = threads.getThreadInfo(threads.getAllThreadIds(), 8)  # frames
    return any("java.util.regex.Pattern$Loop.match" in str(each) for each in found)


@pytest.mark.long
def test_an_expectation_that_never_ends_holds_up_no_copy(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next window is copied beside it; then it is given up, and Spark starts again."""
    only = topics[:1]
    no_pii = {"no_pii": ["(.*,){20}P"], "blocking": True}
    environment.write(only, expectations=[no_pii], window={"every": "200ms", "session": "10m"})
    # both partitions of which one record each would occupy a slot for ever
    for partition in (0, 1):
        environment.fill(topics[0], ["a," * 60], partition)
    deadline = threading.Event()
    seen: list[bool] = []
    failed: list[AssertionError] = []

    def until_given_up(seconds: float, join: Any) -> None:
        """The deadline of the first window is when all that is beside it was seen."""
        if deadline.is_set():
            within(seconds, join)
        else:
            deadline.wait()
            raise TimeoutError

    def meanwhile() -> None:
        until(environment.windows, "the first window")
        until(is_matching, "the expression that never ends", _PATIENCE_SECONDS)
        environment.fill(topics[0], ["later"])
        until(lambda: "later" in environment.read(topics[0]), "its copy", _PATIENCE_SECONDS, 0.3)
        seen.append(is_matching())
        deadline.set()
        environment.fill(topics[0], ["last"])
        until(lambda: "last" in environment.read(topics[0]), "a copy", _PATIENCE_SECONDS, 0.3)
        until(lambda: jvm() not in {before, None}, "another Spark", _PATIENCE_SECONDS)

    def ending() -> None:
        try:
            meanwhile()
        except AssertionError as error:
            failed.append(error)
        finally:
            deadline.set()
            environment.write(only)  # so that the session ends

    monkeypatch.setattr(validation, "within", until_given_up)
    before = jvm()
    beside = threading.Thread(target=ending, daemon=True)
    beside.start()

    run = environment.copy()
    beside.join()

    assert not failed, failed
    assert seen == [True], "the second window was copied while the first was checked"
    by_window = {str(each.partition): each for each in checks_of(run, "no_pii")}
    first, *others = (by_window[window] for window in environment.windows())
    assert not first.passed
    assert first.severity is dg.AssetCheckSeverity.WARN
    assert str(first.description).startswith("not known: no result within 5 min 0 s; simplify")
    assert all(each.passed for each in others)


def test_without_the_extra(
    environment: InProcessEnvironment, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy goes on; the check says what to install."""
    environment.write(topics[:1], expectations=["keys_not_null"])
    monkeypatch.setitem(__import__("sys").modules, "great_expectations", None)
    validation.great_expectations.cache_clear()

    run = environment.copy()

    assert len(environment.read(topics[0])) == 100
    check = evaluated(run, topics[0])["keys_not_null"]
    assert not check.passed
    assert "pip install 'relay-pipelines[expectations]'" in str(check.description)

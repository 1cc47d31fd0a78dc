"""The jobs `mirror_once` and `backfill_by_date`."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming, turns
from tests.orchestration.in_process_environment import InProcessEnvironment, checks, failure
from tests.support.independent import (
    CREATE_TIME,
    Record,
    create,
    delete,
    until,
    write,
)


def test_mirror_once(environment: InProcessEnvironment, topics: list[str]) -> None:
    """`mirror_once` copies everything in one run and reports a window, its topics and checks."""
    run = environment.job("mirror_once")

    assert run.success, failure(run)
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.instance.get_materialized_partitions(
        naming.mirrored_asset(environment.name, topics[0])
    ) == set(environment.windows())
    assert len(environment.windows()) == 1
    assert not environment.tick().run_requests
    assert environment.job("mirror_once").success


@pytest.mark.quick
def test_backfill_by_date(environment: InProcessEnvironment, topics: list[str]) -> None:
    """`backfill_by_date` copies a span in windows, also again, and sessions pause for it."""
    environment.write([name.replace(".", r"\.") for name in topics], window={"max_records": 100})
    span = {"mirror": environment.name, "from": "2023-01-01", "to": "2030-01-01"}

    run = environment.job("backfill_by_date", span)

    assert run.success, failure(run)
    assert len(environment.windows()) == 2
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
    assert {topic: check.passed for topic, check in checks(run).items()} == dict.fromkeys(
        topics[:2], True
    )
    found = environment.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.tags[naming.TAG_TURN] == turns.Turn.BY_HAND
    with pytest.raises(dg.DagsterInvalidConfigError, match="from"):
        environment.job("backfill_by_date")  # nobody repeats everything by chance
    again = environment.job("backfill_by_date", {"from": "1970-01-01"})
    assert again.success, failure(again)
    assert len(environment.windows()) == 4
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    # windows that cut the chunks of before count each record once
    environment.write([name.replace(".", r"\.") for name in topics], window={"max_records": 40})
    cut = environment.job("backfill_by_date", {"from": "1970-01-01"})
    assert cut.success, failure(cut)
    assert len(environment.windows()) > 6
    found = [evaluation.metadata for evaluation in cut.get_asset_check_evaluations()]
    committed = [each["committed (records)"].value for each in found if "verdict" in each]
    assert sum(committed) == 150


def test_a_backfill_uses_a_relay_yaml_that_changed_before_its_lane_begins(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """What it decides before the first window of a lane counts, too: a loss is accepted no more."""
    first, second, _ = topics
    allow = [name.replace(".", r"\.") for name in topics]
    mirror = {"window": {"max_records": 10}, "lanes": {"own": {"topics": [allow[1]]}}}
    environment.write(allow, **mirror)
    assert environment.copy(1).success
    delete(environment.source.cluster(), second)
    create(environment.source.cluster(), second, 2, {"retention.ms": "-1"})
    environment.fill(second, ["anew"], partition=1)
    environment.write(allow, on_data_loss="continue", **mirror)
    with ThreadPoolExecutor(1) as aside:
        backfill = aside.submit(environment.job, "backfill_by_date", {"from": "1970-01-01"})
        until(environment.windows, "the first window of the first lane")
        environment.write(allow, on_data_loss="fail", **mirror)
        run = backfill.result(600)

    assert f"{second}-1" in failure(run)
    assert "was deleted and created again" in failure(run)
    assert environment.read(first) == [f"a{number}" for number in range(100)]
    assert environment.read(second, 1) == [f"b{number}" for number in range(10)]
    assert "was deleted and created again" in failure(environment.job("mirror_once"))


def test_a_backfill_that_ends_with_a_change_says_what_failed_before(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """The lanes are others now: it says so, and also which topic of its windows is incomplete."""
    first, second, _ = topics
    allow = [name.replace(".", r"\.") for name in topics]
    copy = f"{environment.name}.{second}"
    create(environment.destination.cluster(), copy, 2, {"max.message.bytes": "500"})
    environment.fill(second, ["x" * 1000] * 100)
    environment.write(allow, window={"max_records": 20})
    with ThreadPoolExecutor(1) as aside:
        backfill = aside.submit(environment.job, "backfill_by_date", {"from": "1970-01-01"})
        until(environment.windows, "the first window")
        until(lambda: len(environment.windows()) > 2, "the third window")
        lanes = {"own": {"topics": [allow[1]]}}
        environment.write(allow, window={"max_records": 20}, lanes=lanes)
        run = backfill.result(600)

    assert "this run ends; launch it again, which copies the rest" in failure(run)
    what = f"{second}: {second}-0 at offset 0: a record of"
    assert failure(run).count(what) == 1, "and not once for each window"
    assert re.search(r" \(and in \d+ more windows?\)$", failure(run))
    assert len(environment.read(first)) < 100


def test_replay(environment: InProcessEnvironment, topics: list[str]) -> None:
    """The launchpad opens with a dry run; a replay is exactly once, also when it is run again."""
    assert environment.job("mirror_once").success
    shown = environment.job("replay", {"topic": topics[0], "to": f"{topics[0]}.replayed"})
    assert shown.success, failure(shown)
    config = {
        "topic": topics[0],
        "to": f"{environment.name}.{topics[0]}.again",
        "partition": 0,
        "offsets": "20:80",
        "dry_run": False,
    }
    for copied in (60, 0):
        run = environment.job("replay", config)
        assert run.success, failure(run)
        (event,) = run.get_asset_materialization_events()
        assert event.asset_key == naming.replayed_asset(environment.name, config["to"])
        metadata = event.materialization.metadata
        assert metadata["records"].value == metadata["counted (records)"].value == 60
        assert metadata["copied by this run (records)"].value == copied
        again = [f"a{number}" for number in range(20, 80)]
        assert environment.read(f"{topics[0]}.again") == again
    mirrored = f"{environment.name}.{topics[0]}"
    refused = environment.job("replay", config | {"to": mirrored})
    assert "add --into-itself" in failure(refused)
    assert not environment.is_retried(refused)
    into = environment.job(
        "replay", config | {"to": mirrored, "into_itself": True, "side": "destination"}
    )
    assert into.success, failure(into)
    (event,) = into.get_asset_materialization_events()
    assert event.asset_key == naming.mirrored_asset(environment.name, topics[0])
    assert len(environment.read(topics[0])) == 160


def test_a_mirror_that_starts_by_date(environment: InProcessEnvironment, topics: list[str]) -> None:
    """A new mirror starts at the beginning of the time span: older records are never copied."""
    noon_ms = 1_767_268_800_000  # 2026-01-01T12:00:00Z
    write(
        environment.source.cluster(),
        TopicPartition(topics[0], 0),
        [Record(None, b"later", timestamp=(CREATE_TIME, noon_ms))],
    )

    # the only mirror is the default
    assert environment.job("backfill_by_date", {"from": "2026-01-01"}).success

    environment.fill(topics[0], ["new"])
    assert environment.copy().success
    assert environment.read(topics[0]) == ["later", "new"]
    assert environment.read(topics[1], 1) == []
    assert not environment.tick().run_requests


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"from": "yesterday"},
            "from: 'yesterday' is no time; write 2026-01-31 or 2026-01-31T12:00:00Z",
        ),
        (
            {"from": "2026-01-02", "to": "2026-01-01"},
            "the time span ends before it begins; give a `to` later than `from`",
        ),
        ({"from": "2026-01-02", "mirror": "none"}, "no mirror is called 'none'; "),
    ],
    ids=["no time", "a span that ends before it begins", "no mirror"],
)
def test_a_mistake_is_not_retried(
    environment: InProcessEnvironment, config: dict[str, str], line: str
) -> None:
    """It is one line, and a retry would only repeat it."""
    run = environment.job("backfill_by_date", config)
    assert failure(run).startswith(line)
    assert "\n" not in failure(run)
    assert not environment.is_retried(run)

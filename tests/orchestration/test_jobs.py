"""The jobs `mirror_once` and `backfill_by_date`."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming, turns
from tests.orchestration.in_process_environment import (
    InProcessEnvironment,
    failure,
    metadata,
    passed,
    succeeded,
)
from tests.support.independent import CREATE_TIME, Record, until, write


@pytest.mark.quick
def test_backfill_by_date(environment: InProcessEnvironment, topics: list[str]) -> None:
    """`backfill_by_date` copies a span in windows, also again, and sessions pause for it."""
    environment.write(topics, window={"max_records": 100})
    span = {"mirror": environment.name, "from": "2023-01-01", "to": "2030-01-01"}

    run = succeeded(environment.job("backfill_by_date", span))

    assert len(environment.windows()) == 2
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    assert environment.read(topics[1], 1) == [f"b{number}" for number in range(50)]
    assert passed(run) == dict.fromkeys(topics[:2], True)
    assert environment.tags(run)[naming.TAG_TURN] == turns.Turn.COPIES
    with pytest.raises(dg.DagsterInvalidConfigError, match="from"):
        environment.job("backfill_by_date")  # nobody repeats everything by chance
    succeeded(environment.job("backfill_by_date", {"from": "1970-01-01"}))
    assert len(environment.windows()) == 4
    assert environment.read(topics[0]) == [f"a{number}" for number in range(100)]
    # windows that cut the chunks of before count each record once
    environment.write(topics, window={"max_records": 40})
    cut = succeeded(environment.job("backfill_by_date", {"from": "1970-01-01"}))
    assert len(environment.windows()) > 6
    found = [metadata(evaluation) for evaluation in cut.get_asset_check_evaluations()]
    assert sum(each["committed (records)"] for each in found if "verdict" in each) == 150


def test_a_backfill_uses_a_relay_yaml_that_changed_before_its_lane_begins(
    environment: InProcessEnvironment, topics: list[str]
) -> None:
    """What it decides before the first window of a lane counts, too: a loss is accepted no more."""
    first, second, _ = topics
    lanes = {"own": {"topics": [re.escape(second)]}}
    mirror: dict[str, Any] = {"window": {"max_records": 10}, "lanes": lanes}
    environment.write(topics, **mirror)
    environment.copy(1)
    environment.recreate(second)
    environment.fill(second, ["anew"], partition=1)
    environment.write(topics, on_data_loss="continue", **mirror)
    with ThreadPoolExecutor(1) as aside:
        backfill = aside.submit(environment.job, "backfill_by_date", {"from": "1970-01-01"})
        until(environment.windows, "the first window of the first lane")
        environment.write(topics, on_data_loss="fail", **mirror)
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
    environment.refuse_large(second)
    environment.fill(second, ["x" * 1000] * 100)
    environment.write(topics, window={"max_records": 20})
    with ThreadPoolExecutor(1) as aside:
        backfill = aside.submit(environment.job, "backfill_by_date", {"from": "1970-01-01"})
        until(environment.windows, "the first window")
        until(lambda: len(environment.windows()) > 2, "the third window")
        lanes = {"own": {"topics": [re.escape(second)]}}
        environment.write(topics, window={"max_records": 20}, lanes=lanes)
        run = backfill.result(600)

    assert "this run ends; launch it again, which copies the rest" in failure(run)
    what = f"{second}: {second}-0 at offset 0: a record of"
    assert failure(run).count(what) == 1, "and not once for each window"
    assert re.search(r" \(and in \d+ more windows?\)$", failure(run))
    assert len(environment.read(first)) < 100


def test_replay(environment: InProcessEnvironment, topics: list[str]) -> None:
    """It only shows by default; exactly once, also when it is run again after `mirror_once`."""
    succeeded(environment.job("mirror_once"))
    assert environment.materialized(topics[0]) == set(environment.windows())
    assert len(environment.windows()) == 1
    assert not environment.tick().run_requests
    assert environment.job("mirror_once").success
    succeeded(environment.job("replay", {"topic": topics[0], "to": f"{topics[0]}.replayed"}))
    config: dict[str, Any] = {
        "topic": topics[0],
        "to": f"{environment.name}.{topics[0]}.again",
        "partition": 0,
        "offsets": "20:80",
        "execute": True,
    }
    for copied in (60, 0):
        run = succeeded(environment.job("replay", config))
        (event,) = run.get_asset_materialization_events()
        assert event.asset_key == naming.replayed_asset(environment.name, config["to"])
        told = metadata(event.materialization)
        assert told["records"] == told["counted (records)"] == 60
        assert told["copied by this run (records)"] == copied
        again = [f"a{number}" for number in range(20, 80)]
        assert environment.read(f"{topics[0]}.again") == again
    config["to"] = environment.copy_of(topics[0]).topic
    refused = environment.job("replay", config)
    assert "add --into-itself" in failure(refused)
    assert not environment.is_retried(refused)
    into = environment.job("replay", config | {"into_itself": True, "side": "destination"})
    (event,) = succeeded(into).get_asset_materialization_events()
    assert event.asset_key == environment.asset(topics[0])
    assert len(environment.read(topics[0])) == 160


def test_a_mirror_that_starts_by_date(environment: InProcessEnvironment, topics: list[str]) -> None:
    """A new mirror starts at the beginning of the time span: older records are never copied."""
    noon_ms = 1_767_268_800_000  # 2026-01-01T12:00:00Z
    later = [Record(None, b"later", timestamp=(CREATE_TIME, noon_ms))]
    write(environment.source.cluster(), TopicPartition(topics[0], 0), later)

    # the only mirror is the default
    assert environment.job("backfill_by_date", {"from": "2026-01-01"}).success

    environment.fill(topics[0], ["new"])
    environment.copy()
    assert environment.read(topics[0]) == ["later", "new"]
    assert environment.read(topics[1], 1) == []
    assert not environment.tick().run_requests


def test_mistakes(environment: InProcessEnvironment, topics: list[str]) -> None:
    """Each is one line, and no retry repeats it."""
    none, ends_before = {"mirror": "none"}, "the time span ends before it begins; "
    backwards, unknown = "2026-01-02", "no mirror is called 'none'; "
    no_time = "from: 'yesterday' is no time; write 2026-01-31 or 2026-01-31T12:00:00Z"
    no_topic = f"{environment.name} has no source topic 'none'; valid topics: "
    mistakes: list[tuple[str, dict[str, Any], str]] = [
        ("backfill_by_date", {"from": "yesterday"}, no_time),
        (
            "backfill_by_date",
            {"from": backwards, "to": "2026-01-01"},
            f"{ends_before}give a `to` later than `from`",
        ),
        ("backfill_by_date", {"from": backwards, **none}, unknown),
        ("audit", {}, f"{environment.name}: the ledger has no copies in what is to be audited; "),
        ("audit", none, unknown),
        ("audit", {"topics": ["none"]}, no_topic),
        ("audit", {"since": "today"}, "since: 'today' is no time; write "),
        ("audit", {"since": backwards, "until": "2026-01-01"}, ends_before),
        ("audit", {"since": backwards, "window": "w"}, "a window names offsets by itself; "),
        ("audit", {"share": 101.0}, "share: expected 0 to 100 percent, got 101.0"),
    ]

    def refused(job: str, config: dict[str, Any]) -> str:
        run = environment.job(job, config)
        assert "\n" not in failure(run)
        assert not environment.is_retried(run)
        return failure(run)

    for job, config, line in mistakes:
        assert refused(job, config).startswith(line)
    environment.write(topics[:1])
    environment.copy()
    assert "the ledger has no entries of the window 'none'" in refused("audit", {"window": "none"})

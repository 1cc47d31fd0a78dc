"""The metadata of a topic's window, and the lines of a run's log: numbers with their units."""

import logging
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._serdes import serialize_value

from relay_pipelines.audit.coverage import CoverageMap
from relay_pipelines.audit.recount import DestinationCount, Recount
from relay_pipelines.audit.retention import Why
from relay_pipelines.audit.verdict import Tally
from relay_pipelines.errors import RelayError
from relay_pipelines.model import Cluster, OffsetRange, Outcome, Status, TopicPartition
from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.run_log import RunLog, logged_start
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.batch import DELETE_HORIZON_BIT, TIMESTAMP_TYPE_BIT, BatchHeader
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.run.result import RunResult, TopicTotals, joined
from relay_pipelines.settings import WindowSettings
from relay_pipelines.windows import window_events
from relay_pipelines.windows.failed_windows import FailedWindows
from relay_pipelines.windows.window_run import TopicReport, WindowReport
from tests.support.audited import entry
from tests.support.run_plans import plan_of, snapshot_of

LANE = Lane("m", "main", WindowSettings(), ("orders",))
AT = TopicPartition("orders", 0)
RANGE = OffsetRange(AT, 100, 160)
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
KEY = "2026-11-22T04:10:20Z-000"
CHUNK = replace(
    entry(100, 160, compaction_gap=4, control=6), source=RANGE, reencoded=20, upstream="a"
)


def counted_part(records: int) -> DestinationCount:
    tally = Tally(records, records, records)
    scanned = OffsetRange(AT, 7, 58)
    return DestinationCount(RANGE, scanned, tally, first_ms=1_000_000, last_ms=1_009_000)


def report(**changes: Any) -> tuple[WindowReport, TopicReport]:
    """A window of 60 offsets of which 50 have a record, copied in 2 s of one task."""
    found = Recount(CoverageMap(RANGE, covering=(CHUNK,)), [counted_part(50)])
    fields: dict[str, Any] = {
        "ranges": [RANGE],
        "totals": TopicTotals(
            records=50, size_bytes=5_000, upstreams={"a"}, code={"5f2c"}, latency_ms=12_500
        ),
        "recounts": {AT: found},
        "lag_before": 60,
        "end_offsets": {AT: 160},
        "copying_seconds": 2.0,
        "source_rate": 12.34,
    }
    topic = TopicReport("orders", **(fields | changes))
    result = RunResult(*("m", "run", {"orders": topic.totals}), copying_seconds=2.5)
    result = replace(result, spark="app-1 at http://127.0.0.1:4040", seconds=9.0)
    window = WindowReport(FrozenWindow(KEY, (RANGE,)), "a", [topic], result, (), 0.25)
    return window, topic


def found(**changes: Any) -> dict[str, Any]:
    window, topic = report(**changes)
    told = window_events.of_topic(LANE, window, topic, "run")
    event = dg.AssetMaterialization("orders", metadata=told)
    return {
        key: value.records if isinstance(value, dg.TableMetadataValue) else value.value
        for key, value in event.metadata.items()
    }


class TestMetadata:
    """What Dagster plots and shows of a topic."""

    def test_the_numbers(self, wordings):
        """Of the topic alone, without the start of Spark; the reference has each key."""
        numbers = {key: value for key, value in found().items() if isinstance(value, int | float)}
        wordings.check("window: numbers", "\n".join(f"{key}: {numbers[key]}" for key in numbers))
        text = DOCS.read_text()
        section = text.partition("## In Dagster")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE) == list(found())

    @pytest.mark.parametrize(
        ("changes", "missing"),
        [
            (
                {"totals": TopicTotals()},
                {"copying (seconds)", "copying (records per second)", "latency (seconds)", "code"},
            ),
            ({"source_rate": None}, {"source rate (records per second)"}),
            ({"lag_after_seconds": None, "lag_after": 9}, {"lag after (seconds)"}),
            ({"recounts": {AT: Recount(CoverageMap(RANGE))}}, {"first record", "last record"}),
        ],
        ids=["copied before", "the first window", "the source is silent", "no record"],
    )
    def test_what_is_unknown_is_left_out(self, changes: dict[str, Any], missing: set[str]):
        """A number that nobody knows is no 0 in a plot."""
        assert set(found()) - set(found(**changes)) == missing

    def test_the_summary_the_size_and_the_tables(self, wordings):
        """A line of numbers with units; two checks fit into a page of SQLite; and why."""
        totals = TopicTotals(records=50, size_bytes=5_000_000)
        assert [found()["summary"], found(totals=totals, lag_after=12_345)["summary"]] == [
            "50 records of 1 topic-partition; 4.9 KiB copied in 2.0 s",
            "50 records of 1 topic-partition; 4.8 MiB copied in 2.0 s; 12,345 records wait",
        ]
        window, _ = report()
        shown, counted = map(serialize_value, window_events.of_window("run", LANE, window))
        assert len(shown) < 5_200
        assert len(counted) < 800
        window, topic = report(end_offsets={AT: 1160})
        topic.recounts[AT].counts = [counted_part(1050)]
        told = window_events.of_topic(LANE, window, topic, "run")
        (counted,) = [record.data for record in told["topic-partitions"].records]
        records = {"committed": "1,050", "counted": "1,050", "source offsets": "[100, 160)"}
        assert counted == {"partition": 0, "result": "complete"} | records
        wordings.check("window: details", told["topic-partitions, details"].md_str.strip())


@pytest.mark.parametrize(
    ("attributes", "base_ms", "first_ms"),
    [(0, 5, 5), (0, -1, None), (TIMESTAMP_TYPE_BIT, 5, 9), (DELETE_HORIZON_BIT, 5, None)],
    ids=["create time", "no timestamp", "log append time", "compacted"],
)
def test_the_timestamp_of_a_batch(attributes: int, base_ms: int, first_ms: int | None):
    """The field of the first timestamp holds another time once the cleaner has been there."""
    header = BatchHeader(0, 100, 0, 2, 0, attributes, 0, base_ms, 9, -1, -1, -1, 1)
    assert header.first_timestamp_ms == first_ms


class TestRunLog:
    """The phases of a run, with their seconds."""

    def lines(self, caplog: pytest.LogCaptureFixture, *, brief: bool, rounds: int = 1) -> list[str]:
        window, _ = report()
        plan = plan_of("m", "a", {"orders": "copy"}, [Position(TopicPartition("orders", 0), 0, 60)])
        with caplog.at_level(logging.INFO):
            log = RunLog(logging.getLogger(), 0.4, brief=brief)
            log.begin(plan)
            log.end(window.result)
            counted = window.frozen.key, len(window.topics), rounds
            log.recounted(*counted, window.result, window.recount_seconds)
        return caplog.messages

    @pytest.mark.parametrize("title", ["a run", "a window of a session", "a window of 8 rounds"])
    def test_runs(self, caplog, wordings, title):
        """Each phase has a line when it has ended; of a session, each window, with its rounds."""
        rounds = 8 if "8" in title else 1
        lines = self.lines(caplog, brief="window" in title, rounds=rounds)
        wordings.check(f"log: {title}", "\n".join(lines))

    def test_the_start_of_spark(self, caplog):
        """It has a line of its own, again if Spark has died."""
        sessions = iter(["first", "first", "second"])
        moments = iter([0.0, 3.0, 10.0, 20.0, 24.0])
        clock: Any = SimpleNamespace(monotonic=lambda: next(moments))
        start = logged_start(lambda: next(sessions), logging.getLogger(), clock)
        with caplog.at_level(logging.INFO):
            assert [start(), start(), start()] == ["first", "first", "second"]
        assert caplog.messages == [
            "Spark's start: 3.0 s",
            "Spark's start: 4.0 s; the one before no longer answers",
        ]


def checked(**changes: Any) -> dg.AssetCheckEvaluation:
    key = naming.topic_check("m", "orders", naming.MESSAGE_COUNTS)
    return window_events.result(report(**changes)[1]).evaluation(key)


def copied(number: int, status: Status = Status.DONE) -> RunResult:
    """A round that has copied so many records, and taken so many seconds."""
    totals = TopicTotals(records=number, upstreams={f"upstream{number}"}, first_ms=1_000 * number)
    totals.latency_ms = 9_000 // number
    waits = {"source": 0.5, f"upstream{number}": 1.0}
    outcome = Outcome(
        *(RANGE, AT, status, 160), throttled_seconds=waits, seconds=number, commit_seconds=1.0
    )
    return RunResult(
        *("m", "run", {"orders": totals}, [outcome]),
        errors=[RelayError(f"error {number}")],
        foreseen=1,
        readable_ms=10_000 * number,
        ledger_ends={AT: number},
        spark="app" if number == 1 else "",
        seconds=float(number),
    )


def test_rounds_of_a_window(caplog: pytest.LogCaptureFixture) -> None:
    """They add up, and the last says how it ended; the line says whose quota tasks waited for."""
    with caplog.at_level(logging.INFO):
        RunLog(logging.getLogger(), 0.4, brief=False).end(copied(1))
    waits = ("tasks waited 0.5 s for a quota of the source", "1.0 s for a quota of the upstream1")
    assert caplog.messages[-1].endswith("; " + ", tasks waited ".join(waits))
    result = joined(joined(copied(1), copied(2)), copied(3, Status.FAILED))
    assert (result.rounds, result.readable_ms) == (3, 30_000)
    assert [copied(1).has_failed, result.has_failed] == [False, True]
    totals = result.topics["orders"]
    upstreams = {"upstream1", "upstream2", "upstream3"}
    assert (totals.records, totals.first_ms, totals.upstreams) == (6, 1_000, upstreams)
    assert totals.latency_ms == 9_000
    (outcome,) = result.outcomes
    assert (outcome.status, outcome.seconds, outcome.commit_seconds) == (Status.FAILED, 6, 3.0)
    assert result.throttled_seconds == {
        "source": 1.5,
        "upstream1": 1.0,
        "upstream2": 1.0,
        "upstream3": 1.0,
    }
    assert [str(error) for error in result.errors] == ["error 3"]
    assert (result.ledger_ends, result.spark, result.seconds) == ({AT: 1}, "app", 6.0)


def test_what_a_check_rests_on() -> None:
    """Nothing to compare passes, but does not agree; what is gone is no pass."""
    found = checked()
    assert found.passed
    assert found.description == (
        "agrees: 50 of 50 records compared by content; the ledger accounts for 60 source offsets"
    )
    assert found.metadata["verdict"].value == "agrees"
    assert "topic-partitions" not in found.metadata, "the materialisation has the table"
    found = checked(recounts={AT: Recount(CoverageMap(RANGE))})
    assert found.passed
    assert str(found.description).startswith("nothing to verify: no record was copied; ")
    tally = Tally(50, not_verified=Counter({Why.RETENTION: 50}))
    gone = Recount(CoverageMap(RANGE), [DestinationCount(RANGE, None, tally)])
    found = checked(recounts={AT: gone})
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    says = f"not verified: 0 of 50 records compared: {Why.RETENTION}; "
    assert str(found.description).startswith(says)
    assert "topic-partitions" in found.metadata


class TestFailedWindows:
    """Windows that failed for a topic turn green when nothing of them is missing any more."""

    EARLIER = KEY.replace("04:10:20", "04:00:00")

    def again(self, failed: OffsetRange, later: OffsetRange) -> tuple[list[str], list[str]]:
        """Let a window fail, and a later one pass; return what is said, and what was counted."""
        counted: list[str] = []

        def count(window: FrozenWindow) -> WindowReport:
            counted.append(window.key)
            return replace(report()[0], frozen=window)

        position = Position(AT, 0, 160, later.start)
        snapshot = snapshot_of("m", "upstream", {"orders": "orders"}, [position])
        window, _ = report(ranges=[later])
        with dg.DagsterInstance.ephemeral() as instance:
            earlier = FrozenWindow(self.EARLIER, (failed,))
            for batch in window_log.freeze(instance, LANE, earlier, Cluster("b", ("b:1",))):
                for event in batch:
                    instance.report_runless_asset_event(event)
            broken = replace(report(failure="no leader", ranges=[failed])[0], frozen=earlier)
            FailedWindows(instance, LANE).note(broken)
            failures = FailedWindows(instance, LANE)  # those of the next session
            events = list(failures.copied_since("run", snapshot, window, count))
            failures.note(window)
            twice = FailedWindows(instance, LANE).copied_since("run", snapshot, window, count)
            assert not events or not [*twice], "it is said once"
        assert {event.partition for event in events} <= {self.EARLIER}
        checks = [event for event in events if isinstance(event, dg.AssetCheckEvaluation)]
        assert all(check.passed for check in checks)
        assert len(events) == 2 * len(checks), "each with a materialisation"
        return [str(check.description) for check in checks], counted

    def test_what_a_later_window_makes_of_it(self):
        """Counted as a whole it is not counted again, a part is; what is missing stays."""
        said, counted = self.again(OffsetRange(AT, 100, 150), RANGE)
        assert (said, counted) == ([f"window {KEY} has copied and counted all of it"], [])
        said, counted = self.again(OffsetRange(AT, 50, 150), RANGE)
        assert (len(said), counted) == (1, [self.EARLIER])
        assert self.again(OffsetRange(AT, 50, 161), RANGE) == ([], [])


def test_windows_of_one_second_have_names_of_their_own():
    """Also those of two lanes: the ledger, and who reads it, know a window by its name alone."""
    times = (0, 1_000, 1_000, 1_800_000_000_000)
    lanes = [replace(LANE, name=name) for name in ("main", "big", "main2")]
    with dg.DagsterInstance.ephemeral() as instance:

        def frozen(lane: Lane, planned_at_ms: int) -> str:
            window = FrozenWindow("", (RANGE,), planned_at_ms=planned_at_ms)
            window = window_log.with_own_key(instance, lane, window)
            list(window_log.freeze(instance, lane, window, Cluster("b", ("b:9092",))))
            return window.key

        keys = [frozen(lane, at_ms) for at_ms in times for lane in lanes]
    assert len({*keys}) == len(keys)
    assert keys[:2] == ["1970-01-01T00:00:00Z-000", "1970-01-01T00:00:00Z-big.000"]
    assert all(map(naming.is_window_key, keys))
    assert [moment_ms(naming.planned_at(key)) for key in keys] == [
        at_ms for at_ms in times for _ in lanes
    ]

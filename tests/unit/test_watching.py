"""Rates, the time left, and the view of `relay status --watch`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from relay_pipelines import settings
from relay_pipelines.cli import main
from relay_pipelines.cli.watch_command import _Look
from relay_pipelines.errors import RetentionPassedError, SourceError
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.output import json_output, tables, watching
from relay_pipelines.output.watching import Watched
from relay_pipelines.page.held import Held, State
from relay_pipelines.page.look import Look
from relay_pipelines.page.page import page_of, page_unreachable
from relay_pipelines.plan.positions import Position, lag_records
from relay_pipelines.snapshot.lag import PERIOD_SECONDS, PartitionLag, Rate, Rates, oldest_seconds
from tests.support.filled import Clock
from tests.support.run_plans import snapshot_of


def learn(rates: Rates, moment_ms: int, *positions: tuple[int, int]) -> dict[str, Rate]:
    """Take a snapshot of a topic whose partitions have these end offsets and checkpoints."""
    found: Any = SimpleNamespace(
        positions=[
            Position(TopicPartition("orders", index), 0, end, copied)
            for index, (end, copied) in enumerate(positions)
        ]
    )
    return rates.learn(found, moment_ms)


class TestRates:
    """Offsets per second."""

    def test_from_one_snapshot_to_the_next(self):
        """For topic-partitions that were in both."""
        rates = Rates()
        assert learn(rates, 0, (1_000, 0)) == {}
        with_new = learn(rates, 2_000, (1_100, 40), (5_000, 9))
        assert with_new == {"orders": Rate(50.0, 20.0)}, "a new topic-partition"
        assert learn(rates, 4_000, (1_100, 40), (5_000, 9)) == {"orders": Rate()}
        behind = learn(rates, 5_000, (1_000, 30), (5_010, 10))
        assert behind == {"orders": Rate(10.0, 1.0)}, "another node may be behind"

    def test_over_a_period(self):
        """A copy that commits every few seconds has a steady rate."""
        rates = Rates(10)
        found = [learn(rates, at * 1_000, (1_000, 100 * (at // 5))) for at in range(26)]
        assert found[25] == {"orders": Rate(0.0, 20.0)}
        assert all(found[at]["orders"].copied >= 10 for at in range(10, 26))

    @pytest.mark.parametrize(
        ("lag", "rate", "left"),
        [
            (0, Rate(5, 0), 0.0),
            (100, Rate(0, 10), 10.0),
            (100, Rate(5, 10), 20.0),
            (100, Rate(10, 10), None),
            (100, Rate(0, 0), None),
        ],
    )
    def test_the_time_left(self, lag: int, rate: Rate, left: float | None):
        """The source grows meanwhile; a copy that is not faster never gets there."""
        assert rate.seconds_left(lag) == left


@pytest.mark.parametrize(
    ("lags", "seconds"),
    [
        ([], 0.0),
        ([PartitionLag(0, 0.0)], 0.0),
        ([PartitionLag(5, 3.0), PartitionLag(9, 2.0)], 3.0),
        ([PartitionLag(5, 3.0), PartitionLag(9, None)], 3.0),
        ([PartitionLag(9, None)], None),
    ],
)
def test_the_oldest_record_of_several(lags: list[PartitionLag], seconds: float | None):
    assert oldest_seconds(lags) == seconds


def watched(topics: int = 1, **changes: Any) -> Watched:
    """A mirror of which the last topics lag the most."""
    positions = [
        Position(TopicPartition(f"topic-{n:02}", 0), 0, 100 + n, 100) for n in range(topics)
    ]
    names = [position.topic_partition.topic for position in positions]
    snapshot = replace(
        snapshot_of("m", "one", {name: name for name in names}, positions),
        checkpoints={
            position.topic_partition: replace(
                Checkpoint.initial("m", position.topic_partition, position.topic_partition, 100),
                run_id="run-1",
                node="one",
            )
            for position in positions
        },
    )
    lags = {at: PartitionLag(lag, 2.0 * lag) for at, lag in lag_records(positions).items()}
    look = Look(snapshot, lags, 0, 0)
    page = page_of(look, MIRROR)
    found = json_output.watched(look, page, {name: Rate(1.0, 3.0) for name in names})
    return Watched(replace(page, findings=()), {**found, "last_error": None, **changes})


ERROR = {"error": "no broker answers", "at": "1970-01-01T00:00:00Z"}
MIRROR = settings.Mirror.model_validate(
    {
        "source": {"nodes": [{"name": "one", "bootstrap_servers": ["127.0.0.1:1"]}]},
        "destination": {"bootstrap_servers": ["127.0.0.1:1"]},
    }
)


@pytest.mark.parametrize(
    ("lag", "age", "left", "outlook"),
    [
        (0, 0.0, 0.0, ""),
        # just before a commit, a copy that keeps up seems to be slower than the source
        (9, PERIOD_SECONDS, None, "keeping up"),
        (9, PERIOD_SECONDS + 1, 5.0, "5.0 s left"),
        (9, PERIOD_SECONDS + 1, None, "falling behind"),
        (9, None, None, "falling behind"),
    ],
)
def test_the_outlook(lag: int, age: float | None, left: float | None, outlook: str):
    row = {"lag_records": lag, "lag_seconds": age, "seconds_left": left}
    assert tables.outlook(row) == outlook


class TestLines:
    """What a log gets."""

    def test_a_mirror(self):
        assert watching.line(watched(3)) == (
            "m: copying; waiting: 3 records, the oldest 4.0 s old;"
            " copied 9/s, new at the source 3/s; keeping up"
        )
        assert watching.line(watched(1)) == (
            "m: up to date; waiting: nothing; copied 3/s, new at the source 1/s"
        )

    def test_what_is_held_back(self):
        """A guard is in every line, not in the first one alone."""
        lost = RetentionPassedError("retention took it")
        waits = PartitionLag(7, 3.0)
        held = Held("x", (TopicPartition("a", 0),), lost.what, "", "relay ledger", "", waits)
        found = watched()
        line = watching.line(found._replace(page=replace(found.page, held=(held,))))
        assert line.startswith("m: 1 topic held back; the others: up to date; ")
        where = "a-0 (7 records, the oldest 3.0 s old)"
        assert f"; held back: {where}: retention took it; next: relay ledger" in line

    def test_an_error_that_is_over(self):
        line = watching.line(watched(1, last_error=ERROR))
        assert line.endswith("1/s; last error at 1970-01-01T00:00:00Z: no broker answers")

    def test_a_cluster_that_never_answered(self):
        unknown = Watched(
            page_unreachable("m", SourceError("no broker answers"), 0, 0), {"last_error": ERROR}
        )
        line = watching.line(unknown)
        assert line == "m: unknown since 1970-01-01T00:00:00Z: no broker answers"


def test_an_outage_has_one_beginning(monkeypatch: pytest.MonkeyPatch):
    """However often it is looked at: "unknown since" must not be the time of the last look."""
    look = _Look("m", MIRROR, Clock())
    found = []
    for now_ms in (1_000, 61_000):
        monkeypatch.setattr(Clock, "now_ms", lambda _, now_ms=now_ms: now_ms)
        found.append(look.take())
    assert [each.page.state for each in found] == [State.UNKNOWN, State.UNKNOWN]
    assert [each.document["since"] for each in found] == ["1970-01-01T00:00:01Z"] * 2


def test_the_view_fits_the_terminal():
    """It shows the topics with the most lag, and how many are left out."""
    console = Console(width=120, height=20, record=True, markup=False, highlight=False)
    console.print(watching.screen([watched(50)], 0, console.height))
    lines = console.export_text().splitlines()
    assert len(lines) <= 20
    shown = [line.split()[0] for line in lines if line.strip().startswith("topic-")]
    assert shown[:3] == ["topic-49", "topic-48", "topic-47"]
    assert f"and {50 - len(shown)} topics more" in [line.strip() for line in lines]


def test_an_interval_that_is_too_short(capsys: pytest.CaptureFixture[str]):
    assert main(["status", "--watch", "--every", "10ms"]) == 2
    assert capsys.readouterr().err == (
        "error: --every '10ms' is not a duration of 1s or more; write it as 1s, 10s or 5m\n"
    )

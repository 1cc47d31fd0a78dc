"""What users see: formatted numbers, progress lines and bars, tables on any terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from relay_pipelines.model import LedgerEntry, OffsetRange, Outcome, Status, TopicPartition
from relay_pipelines.output import formatting, json_output, tables
from relay_pipelines.output.progress import Bars, Lines, bytes_progress, status_line
from relay_pipelines.plan.positions import Position
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.run.run_plan import RunPlan
from tests.support.independent import until
from tests.support.run_plans import plan_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formatting.count(1234567), "1,234,567"),
        (formatting.count(2.4), "2"),
        (formatting.size(0), "0 B"),
        (formatting.size(1023), "1023 B"),
        (formatting.size(1536), "1.5 KiB"),
        (formatting.size(5 << 50), "5120.0 TiB"),
        (formatting.seconds(0.04), "0.0 s"),
        (formatting.seconds(9.94), "9.9 s"),
        (formatting.seconds(42.4), "42 s"),
        (formatting.seconds(125), "2 min 5 s"),
        (formatting.seconds(12_000), "3 h 20 min"),
        (formatting.format_time(1_700_000_000_123), "2023-11-14T22:13:20Z"),
        (formatting.format_time(1_700_000_000_123_456_789), "1700000000123456789 ms"),
        (formatting.plural(1, "record"), "1 record"),
        (formatting.plural(2000, "record"), "2,000 records"),
    ],
)
def test_formatting(text: str, expected: str) -> None:
    assert text == expected


def planned(topics: int, records: int = 1000) -> RunPlan:
    names = [f"topic-{number}" for number in range(topics)]
    positions = [Position(TopicPartition(name, 0), 0, records) for name in names]
    return plan_of("m", "node1", {name: name for name in names}, positions)


def entry(topic: str, start: int, end: int) -> LedgerEntry:
    here = OffsetRange(TopicPartition(topic, 0), start, end)
    return LedgerEntry("m", here, here, end - start, 100, 1, 0, {}, "", "node1", "", "r", 0)


class Screen:
    """A console that records its output."""

    def __init__(self, *, terminal: bool, width: int = 100) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            force_terminal=terminal,
            width=width,
            legacy_windows=False,
            _environ={"TERM": "xterm", "NO_COLOR": "1"},
        )

    @property
    def text(self) -> str:
        """The output without escape sequences."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.file.getvalue())


def test_lines_come_every_few_seconds_and_only_after_commits() -> None:
    """Outside a terminal there is a first line, then one every two seconds with new commits."""
    now = 100.0
    screen = Screen(terminal=False)
    lines = Lines(screen.console.print, monotonic=lambda: now)
    lines.begin(planned(2))
    for at, entries in [
        (109.0, [entry("topic-0", 0, 100)]),
        (110.0, [entry("topic-0", 100, 200)]),
        (113.0, []),
        (114.0, []),
        (119.0, [entry("topic-0", 200, 1000), entry("topic-1", 0, 1000)]),
    ]:
        now = at
        lines.committed(entries)
    assert screen.text.splitlines() == [
        "copying 2,000 records of 2 topics from node1",
        "100 of 2,000 records (5 %), 100 B",
        "200 of 2,000 records (10 %), 200 B, 50 records/s, 36 s left",
        "2,000 of 2,000 records (100 %), 400 B, 200 records/s, 0.0 s left",
    ]


def test_lines_without_an_announcement_begin_with_progress() -> None:
    """For runs that follow each other, where most are over before a line is due."""
    now = 100.0
    screen = Screen(terminal=False)
    lines = Lines(screen.console.print, monotonic=lambda: now, announce=False)
    lines.begin(planned(1))
    now = 103.0
    lines.committed([entry("topic-0", 0, 100)])
    assert screen.text == "100 of 1,000 records (10 %), 100 B\n"


def test_a_status_line_replaces_itself_and_leaves_nothing() -> None:
    """A long one is cut, because a second line could not be removed."""
    screen = Screen(terminal=True, width=20)
    with status_line(screen.console) as show:
        show("one round")
        show("2 rounds " + "x" * 30)
    *_, last = screen.text.replace("\r", "").split("\x1b[?25l")
    assert "one round" in last
    assert "2 rounds xxxxxxxxxx…" in last
    assert "\n2" not in last
    assert screen.text.endswith("\x1b[2K")


def test_there_is_no_status_line_in_a_file() -> None:
    screen = Screen(terminal=False)
    with status_line(screen.console) as show:
        show("one round")
    assert screen.text == ""


def test_a_run_with_nothing_to_copy_shows_no_progress() -> None:
    screen = Screen(terminal=False)
    Lines(screen.console.print).begin(planned(0))
    assert screen.text == ""


@pytest.mark.parametrize("width", [200, 80, 40, 20])
def test_bars_fit_the_terminal(width: int) -> None:
    """No line is wider than the terminal; a finished topic is marked if there is room."""
    screen = Screen(terminal=True, width=width)
    bars = Bars(screen.console)
    bars.begin(planned(2))
    bars.committed([entry("topic-0", 0, 1000), entry("topic-1", 0, 300)])
    screen.console.print(bars.live.get_renderable())
    lines = screen.text.splitlines()
    assert max(len(line) for line in lines) <= width
    assert sum("topic" in line or "…" in line for line in lines) == 2
    if width >= 80:
        assert "1,000/1,000" in screen.text
        assert "300/1,000" in screen.text
        assert "done" in screen.text


def test_many_topics_share_one_bar() -> None:
    """Forty topics do not fill the screen: only those that are being copied get their own bar."""
    screen = Screen(terminal=True)
    bars = Bars(screen.console)
    bars.begin(planned(40))
    bars.committed([entry("topic-0", 0, 1000), entry("topic-1", 0, 300)])
    screen.console.print(bars.live.get_renderable())
    assert "40 topics" in screen.text
    assert "1,300/40,000" in screen.text
    assert "topic-1" in screen.text
    assert "topic-0" not in screen.text
    bars.committed([entry(f"topic-{number}", 0, 10) for number in range(2, 40)])
    assert sum(task.visible for task in bars.live.tasks) <= 9


@pytest.mark.parametrize("width", [240, 80, 60, 30])
def test_tables_lose_nothing_on_a_narrow_terminal(width: int) -> None:
    """Names fold and numbers do not; a table fits a terminal of 80 columns or more."""
    screen = Screen(terminal=True, width=width)
    totals = TopicTotals(records=1_234_567, size_bytes=1 << 30, nodes={"node1"})
    result = RunResult("m", "r", {"orders.with.a.long.name": totals}, copying_seconds=2.0)
    tables.show(screen.console, tables.summary(json_output.run(result, 0)))
    assert "1,234,567   1.0 GiB     617,284" in screen.text
    assert (
        "".join(line.split(" ")[1] for line in screen.text.splitlines()[4:]).strip()
        == "orders.with.a.long.name"
    )
    assert max(len(line) for line in screen.text.splitlines()) <= max(width, 80)


def test_no_color_is_respected() -> None:
    """With NO_COLOR in the environment there is bold text, but no color."""
    screen = Screen(terminal=True)
    result = RunResult("m", "r", {"t": TopicTotals(records=1)}, copying_seconds=2.0)
    tables.show(screen.console, tables.summary(json_output.run(result, 0)))
    assert set(re.findall(r"\x1b\[([0-9;]*)m", screen.file.getvalue())) <= {
        "0",
        "1",
        "2",
        "3",
        "1;3",
    }


def test_bytes_that_are_read_off_a_terminal() -> None:
    """A line says what will be read; others say how much is done, also before the first result."""
    written = io.StringIO()
    console = Console(file=written, width=200)

    def wait_for(text: str) -> None:
        until(lambda: text in written.getvalue(), f"the line: {text}")

    with bytes_progress("m: read", 4 << 20, "3 topic-partitions", console, 0.01) as advance:
        assert written.getvalue() == "m: read: 4.0 MiB of 3 topic-partitions\n"
        wait_for("m: read: 0 B of 4.0 MiB (0 %) in 0.0 s\n")
        advance(1 << 20)
        advance(1 << 20)
        wait_for("m: read: 2.0 MiB of 4.0 MiB (50 %) in 0.")
    assert re.search(r"\(50 %\) in 0\.\d s, 0\.\d s left\n", written.getvalue())


def test_bytes_that_are_read_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with bytes_progress("m: read", 4 << 20, "1 topic-partition", console) as advance:
        advance(4 << 20)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "m: read" in shown
    assert "4.0/4.0 MiB" in shown


def test_failures_that_topic_partitions_share_are_one_line() -> None:
    """A transactional id that was taken over stops all that share it; others keep their lines."""
    outcomes = [
        Outcome(
            *(OffsetRange(at, 0, 5), at, Status.FENCED, 0),
            error_kind="FencedError",
            error=f"{at}: another task has taken it over",
        )
        for at in (TopicPartition("orders", number) for number in range(50))
    ]
    lone = TopicPartition("paid", 0)
    text = f"{lone} at offset 3: it is too large"
    failed = Outcome(OffsetRange(lone, 0, 5), lone, Status.FAILED, 0, error=text)
    result = RunResult("m", "run", {}, [*outcomes, failed])
    assert result.failures == [
        "orders-0, orders-1, orders-2 and 47 more topic-partitions: another task has taken it over",
        text,
    ]

"""What users see: numbers, lines and bars, tables as views of documents, a watched mirror."""

import io
import re
import uuid
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from relay_pipelines import model, settings
from relay_pipelines.cli.watch_command import _Look
from relay_pipelines.errors import ConfigError, RelayError, RetentionPassedError, SourceError
from relay_pipelines.finding import Finding, Kind, Severity, texts, warning
from relay_pipelines.output import formatting, json_output, tables, watching
from relay_pipelines.output.progress import Bars, Lines, bytes_progress, status_line
from relay_pipelines.output.watching import Watched
from relay_pipelines.page.held import Held, State
from relay_pipelines.page.look import Look
from relay_pipelines.page.page import page_of, page_unreachable
from relay_pipelines.plan.acl_decisions import AclDecision
from relay_pipelines.plan.acl_decisions import State as AclState
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import TopicDecision
from relay_pipelines.plan.upstreams import Log, UpstreamSelection, UpstreamState
from relay_pipelines.prepare.permissions import AclReport
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.run.run_plan import RunPlan, plan
from relay_pipelines.snapshot.cluster_snapshot import Selected, TopicConfigs
from relay_pipelines.snapshot.lag import PERIOD_SECONDS, PartitionLag, Rate, Rates, oldest_seconds
from tests.support.config_files import SIDES
from tests.support.filled import Clock
from tests.support.independent import until
from tests.support.run_plans import plan_of, snapshot_of
from tests.support.wordings import Wordings


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
    positions = [Position(model.TopicPartition(name, 0), 0, records) for name in names]
    return plan_of("m", "kafka-a", {name: name for name in names}, positions)


def entry(topic: str, start: int, end: int) -> model.LedgerEntry:
    at = model.OffsetRange(model.TopicPartition(topic, 0), start, end)
    return model.LedgerEntry("m", at, at, end - start, 100, 1, 0, {}, "", 7, "kafka-a", "", "r", 0)


class Screen:
    """A console that records its output."""

    def __init__(self, *, terminal: bool, width: int = 100) -> None:
        self.file = io.StringIO()
        how: Any = {"legacy_windows": False, "_environ": {"TERM": "xterm", "NO_COLOR": "1"}}
        self.console = Console(file=self.file, force_terminal=terminal, width=width, **how)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.file.getvalue())


def test_lines_come_every_few_seconds_and_only_after_commits(wordings: Wordings) -> None:
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
    wordings.check("lines: of a run", screen.text.strip())


def test_lines_that_announce_nothing_and_a_status_line() -> None:
    """The status line replaces itself and leaves nothing; in a file there is none."""
    screen = Screen(terminal=False)
    Lines(screen.console.print).begin(planned(0))
    assert screen.text == ""
    now = 100.0
    screen = Screen(terminal=False)
    lines = Lines(screen.console.print, monotonic=lambda: now, announce=False)
    lines.begin(planned(1))
    now = 103.0
    lines.committed([entry("topic-0", 0, 100)])
    assert screen.text == "100 of 1,000 records (10 %), 100 B\n"
    for terminal in (True, False):
        screen = Screen(terminal=terminal, width=20)
        with status_line(screen.console) as show:
            show("one round")
            show("2 rounds " + "x" * 30)
        if not terminal:
            assert screen.text == ""
            continue
        *_, last = screen.text.replace("\r", "").split("\x1b[?25l")
        assert "one round" in last
        assert "2 rounds xxxxxxxxxx…" in last
        assert "\n2" not in last
        assert screen.text.endswith("\x1b[2K")


def bars_of(screen: Screen, topics: int) -> Bars:
    """Show the bars of a run that has copied the first topic, and a part of the second."""
    bars = Bars(screen.console)
    bars.begin(planned(topics))
    bars.committed([entry("topic-0", 0, 1000), entry("topic-1", 0, 300)])
    screen.console.print(bars.live.get_renderable())
    return bars


@pytest.mark.parametrize("width", [200, 80, 40, 20])
def test_bars_fit_the_terminal(width: int) -> None:
    """No line is wider than the terminal; a finished topic is marked if there is room."""
    screen = Screen(terminal=True, width=width)
    bars_of(screen, 2)
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
    bars = bars_of(screen, 40)
    assert "40 topics" in screen.text
    assert "1,300/40,000" in screen.text
    assert "topic-1" in screen.text
    assert "topic-0" not in screen.text
    bars.committed([entry(f"topic-{number}", 0, 10) for number in range(2, 40)])
    assert sum(task.visible for task in bars.live.tasks) <= 9


@pytest.mark.parametrize("width", [240, 80, 60, 30])
def test_tables_lose_nothing_on_a_narrow_terminal(width: int) -> None:
    """Names fold and numbers do not; it fits a terminal of 80 columns or more, without colors."""
    screen = Screen(terminal=True, width=width)
    totals = TopicTotals(records=1_234_567, size_bytes=1 << 30, upstreams={"kafka-a"})
    result = RunResult("m", "r", {"orders.with.a.long.name": totals}, copying_seconds=2.0)
    tables.show(screen.console, tables.summary(json_output.run(result, 0)))
    assert "1,234,567  1.0 GiB    617,284" in screen.text
    names = [line.split(" ")[1] for line in screen.text.splitlines()[4:]]
    assert "".join(names).strip() == "orders.with.a.long.name"
    assert max(len(line) for line in screen.text.splitlines()) <= max(width, 80)
    # with NO_COLOR in the environment there is bold text, but no color
    assert set(re.findall(r"\x1b\[([0-9;]*)m", screen.file.getvalue())) <= {*"0123", "1;3"}


def test_bytes_that_are_read_off_a_terminal() -> None:
    """A line says what will be read; others say how much is done, also before the first result."""
    written = io.StringIO()
    console = Console(file=written, width=200)

    def wait_for(text: str) -> None:
        until(lambda: text in written.getvalue(), f"the line: {text}")

    with bytes_progress("m: read", 4 << 20, "3 topic-partitions", console, 0.01) as advance:
        assert written.getvalue() == "m: read: 4.0 MiB of 3 topic-partitions\n"
        wait_for("m: read: 0 B of 4.0 MiB (0 %) in ")
        advance(1 << 20)
        advance(1 << 20)
        wait_for("m: read: 2.0 MiB of 4.0 MiB (50 %) in ")
    assert re.search(r"\(50 %\) in [\d.]+ s, [\d.]+ s left\n", written.getvalue())
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with bytes_progress("m: read", 4 << 20, "1 topic-partition", console) as advance:
        advance(4 << 20)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "m: read" in shown
    assert "4.0/4.0 MiB" in shown


def test_failures_that_topic_partitions_share_are_one_line() -> None:
    """A transactional id that was taken over stops all that share it; others keep their lines."""
    outcomes = []
    for at in (model.TopicPartition("orders", number) for number in range(50)):
        error = f"{at}: another task has taken it over"
        fenced = model.Outcome(model.OffsetRange(at, 0, 5), at, model.Status.FENCED, 0, error=error)
        outcomes.append(replace(fenced, error_kind="FencedError"))
    lone = model.TopicPartition("paid", 0)
    text = f"{lone} at offset 3: it is too large"
    failed = model.Outcome(model.OffsetRange(lone, 0, 5), lone, model.Status.FAILED, 0, error=text)
    result = RunResult("m", "run", {}, [*outcomes, failed])
    assert result.failures == [
        "orders-0, orders-1, orders-2 and 47 more topic-partitions: another task has taken it over",
        text,
    ]


AT = model.TopicPartition("orders", 0)
LOST = RetentionPassedError("it is gone", remedy="copy again", topic_partition=AT, offset=7)


@pytest.mark.parametrize(
    ("finding", "exit_code"),
    [
        (Finding(Kind.OK, "m", Severity.OK, "answers"), 0),
        (warning(Kind.TOPIC_DELETED, "orders", "it is gone"), 0),
        (Finding.of(LOST, Severity.WARNING), 0),
        (Finding.of(LOST), 3),
        (Finding.of(ConfigError("wrong")), 2),
        (Finding(Kind.UNREADABLE, "", Severity.ERROR, "away"), 1),
        (Finding(Kind.OTHER_RECORDS, "", Severity.DIFFERENCE, "others"), 4),
    ],
)
def test_the_exit_code_follows_from_kind_and_severity(finding: Finding, exit_code: int) -> None:
    assert finding.exit_code == exit_code


def test_a_finding_as_a_line_and_as_a_document() -> None:
    """Its line is that of the error; findings are told apart by severity."""
    for error in (LOST, ConfigError("wrong", remedy="mend it"), RelayError("x")):
        assert str(Finding.of(error)) == str(error)
    assert Finding.of(LOST).inside("m").document == {
        "kind": "RetentionPassedError",
        "where": "m: orders-0 at offset 7",
        "severity": "error",
        "text": "it is gone",
        "remedy": "copy again",
    }
    assert Finding.of(ConfigError("wrong")).inside("m").where == "m"
    findings = [Finding.of(LOST), warning(Kind.GAP, "orders-0", "a gap")]
    assert texts(findings, Severity.WARNING) == ["orders-0: a gap"]
    assert texts(findings, Severity.DIFFERENCE) == []


def document_of_a_plan() -> dict[str, Any]:
    decisions = (
        TopicDecision("orders", included=True, why="allowed"),
        TopicDecision("other", included=False, why="denied"),
    )
    snapshot = snapshot_of(
        *("m", "kafka-a", {"orders": "copy"}, [Position(AT, 0, 1000)]),
        configs=TopicConfigs({"orders": {}}),
        selected=Selected(decisions),
    )
    return json_output.plan(plan(snapshot), [Finding.of(LOST)], 0)


def document_of_upstreams(chosen: str | None, why: str) -> dict[str, Any]:
    """One of them does not answer: what is not known of it is a question mark."""
    one, two = model.Cluster("one", ("a:1", "b:1")), model.Cluster("two", ("c:1",))
    silent = SourceError("it does not answer")
    states = (
        UpstreamState(one, {AT: Log(0, 40), model.TopicPartition("orders", 1): Log(0, 2)}, 3.4),
        UpstreamState(two, error=silent, unreadable=str(silent)),
    )
    return json_output.upstreams("m", UpstreamSelection(states, chosen, why))


def document_of_a_run() -> dict[str, Any]:
    """Its topics add up."""
    topics = {
        "a": TopicTotals(records=1, size_bytes=1024, reencoded=1, upstreams={"one"}),
        "b": TopicTotals(records=3, size_bytes=1024, upstreams={"two"}),
    }
    topics["a"].skipped["filtered"] = 2
    topics["b"].skipped["filtered"] = 3
    return json_output.run(RunResult("m", "r", topics, copying_seconds=2.0), 0)


def document_of_acls() -> dict[str, Any]:
    acl = model.Acl("copy", model.Permission.ALLOW, "User:ann", "*", model.Operation.READ)
    report = AclReport([AclDecision(acl, replace(acl, resource="orders"), AclState.MISSING)])
    return json_output.acls("m", report, applied=False)


TABLES = {
    "a plan": tables.plan(document_of_a_plan()),
    "why": tables.why(document_of_a_plan()),
    "upstreams": tables.upstreams(document_of_upstreams("one", "it is healthy")),
    "no upstream": tables.upstreams(document_of_upstreams(None, "none answers")),
    "a run": tables.summary(document_of_a_run()),
    "ACLs": tables.acls(document_of_acls()),
}


@pytest.mark.parametrize("title", TABLES)
def test_tables_are_views_of_documents(wordings: Wordings, title: str) -> None:
    columns = [[str(column.header), *map(str, column.cells)] for column in TABLES[title].columns]
    rows = [" | ".join(row) for row in zip(*columns, strict=True)]
    wordings.check(f"table: {title}", "\n".join([str(TABLES[title].title), *rows]))
    assert document_of_a_plan()["findings"] == [Finding.of(LOST).document]


STAMP = "2026-01-31T12:00:00Z"
OF_PARTITION: dict[str, Any] = {
    "partition": 3, "source_end": 1_204_160, "high_watermark": 1_204_160, "open_transaction": None,
    "checkpoint": 1_203_000, "lag_records": 1_160, "lag_seconds": 12.0, "upstream": "kafka-a",
    "committed_at": STAMP, "problem": "orders-3: the source has deleted [12, 40); decide",
}  # fmt: skip
OF_TOPIC: dict[str, Any] = {
    "topic": "orders.eu", "destination": "orders.eu", "lag_records": 1_204, "lag_seconds": 12.0,
    "copy_rate": 1_204.2, "source_rate": 1_204.2, "seconds_left": 12, "committed_at": STAMP,
    "topic_partitions": [OF_PARTITION],
}  # fmt: skip


@pytest.mark.parametrize("title", [*TABLES, "ledger", "status", "watched"])
def test_tables_fit_80_columns(title: str) -> None:
    """All that the cells say is there, in as many lines as it takes."""
    chunk = replace(entry("orders.eu", 1_204_100, 1_204_160), run_id=str(uuid.UUID(int=7)))
    table = {
        **TABLES,
        "ledger": tables.ledger("m", [chunk]),
        "status": tables.status({"topics": [OF_TOPIC], "open_transaction_records": 0}),
        "watched": tables.watched(OF_TOPIC, [OF_TOPIC]),
    }[title]
    screen = Screen(terminal=False, width=80)
    tables.show(screen.console, table)
    lines = screen.text.splitlines()
    assert max(map(len, lines)) <= 80
    cells = [str(each) for column in table.columns for each in (column.header, *column.cells)]
    written = Counter(str(table.title or "")) + sum(map(Counter, cells), Counter[str]())
    shown = Counter(screen.text)
    assert {c: n for c, n in shown.items() if c not in " \n─"} == {
        c: n for c, n in written.items() if c not in " \n"
    }


def learn(rates: Rates, moment_ms: int, *positions: tuple[int, int]) -> dict[str, Rate]:
    """Take a snapshot of a topic whose partitions have these end offsets and checkpoints."""
    some = [
        Position(model.TopicPartition("orders", index), 0, *each)
        for index, each in enumerate(positions)
    ]
    found: Any = SimpleNamespace(positions=some)
    return rates.learn(found, moment_ms)


class TestRates:
    """Offsets per second."""

    def test_from_one_snapshot_to_the_next(self):
        """For topic-partitions in both; a copy that commits every few seconds has a steady one."""
        rates = Rates()
        assert learn(rates, 0, (1_000, 0)) == {}
        with_new = learn(rates, 2_000, (1_100, 40), (5_000, 9))
        assert with_new == {"orders": Rate(50.0, 20.0)}, "a new topic-partition"
        assert learn(rates, 4_000, (1_100, 40), (5_000, 9)) == {"orders": Rate()}
        behind = learn(rates, 5_000, (1_000, 30), (5_010, 10))
        assert behind == {"orders": Rate(10.0, 1.0)}, "another upstream may be behind"
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


def test_the_oldest_record_of_several():
    unknown, old, older = PartitionLag(9, None), PartitionLag(9, 2.0), PartitionLag(5, 3.0)
    assert oldest_seconds([]) == oldest_seconds([PartitionLag(0, 0.0)]) == 0.0
    lags = [unknown], [older, old], [older, unknown]
    assert [oldest_seconds(some) for some in lags] == [None, 3.0, 3.0]


def watched(topics: int = 1, **changes: Any) -> Watched:
    """A mirror of which the last topics lag the most."""
    positions = [
        Position(model.TopicPartition(f"topic-{n:02}", 0), 0, 100 + n, 100) for n in range(topics)
    ]
    names = [position.topic_partition.topic for position in positions]
    places = [position.topic_partition for position in positions]
    known = {at: model.Checkpoint.initial("m", at, at, 100) for at in places}
    known = {at: replace(each, run_id="run-1", upstream="one") for at, each in known.items()}
    targets = {name: name for name in names}
    snapshot = snapshot_of("m", "one", targets, positions, checkpoints=known)
    lags = {each.topic_partition: PartitionLag(each.lag, 2.0 * each.lag) for each in positions}
    look = Look(snapshot, lags, 0, 0)
    page = page_of(look)
    found = json_output.watched(look, page, {name: Rate(1.0, 3.0) for name in names})
    return Watched(replace(page, findings=()), {**found, "last_error": None, **changes})


ERROR = {"error": "no broker answers", "at": "1970-01-01T00:00:00Z"}
MIRROR = settings.Mirror.model_validate(SIDES)


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


def test_a_mirror_in_a_log(wordings):
    """A guard is in every line, not in the first one alone; so is an error, over or not."""
    waits, at = PartitionLag(7, 3.0), (model.TopicPartition("a", 0),)
    held = Held("x", at, "retention took it", "", "relay ledger", "", waits)
    guarded, away = watched(), SourceError("no broker answers")
    for title, found in (
        ("copies", watched(3)),
        ("is up to date", watched(1)),
        ("is held back", guarded._replace(page=replace(guarded.page, held=(held,)))),
        ("had an error", watched(1, last_error=ERROR)),
        ("is away", Watched(page_unreachable("m", away, 0, 0), {"last_error": ERROR})),
    ):
        wordings.check(f"watched: {title}", watching.line(found))


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

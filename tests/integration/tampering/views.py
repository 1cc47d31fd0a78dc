"""What can be seen of a mirror: one function per column of the tamper matrix."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dagster import AssetCheckSeverity

from relay_pipelines.audit import spark_job
from relay_pipelines.audit.against_statement import audit_against
from relay_pipelines.audit.audit import PartitionAudit, begin
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.audit.verdict import State, Verdict
from relay_pipelines.errors import DIFFERENCE, RelayError
from relay_pipelines.metrics.exporter import samples
from relay_pipelines.model import OffsetRange
from relay_pipelines.page.look import Looker
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.prepare import topic_configs
from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.run.run import run
from relay_pipelines.run.run_plan import plan_frozen
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import configs, read_clusters
from relay_pipelines.windows import window_events
from relay_pipelines.windows.window_run import TopicReport, count_window
from tests.integration.tampering.stage import CLOCK, Row, Stage, topics_of
from tests.support.findings import differences, notes, unreadable

NOTHING, NOT_VERIFIED, FOUND, FAILED = ".", "N", "D", "F"
_WORST = (NOTHING, NOT_VERIFIED, FAILED, FOUND)
_STATES = {State.DIFFERS: FOUND, State.FAILED: FAILED, State.NOT_VERIFIED: NOT_VERIFIED}
ALL = "*"
"""Stands for all topics of a mirror."""


@dataclass(frozen=True)
class Cell:
    """What one column shows: its state, and the lines that it says."""

    state: str = NOTHING
    lines: tuple[str, ...] = ()

    def __add__(self, other: "Cell") -> "Cell":
        worst = max(self.state, other.state, key=_WORST.index)
        lines = [each.lines for each in (self, other) if each.state == worst]
        return Cell(worst, tuple(dict.fromkeys(line for some in lines for line in some)))


Cells = Mapping[str, Cell]
"""By source topic."""
View = Callable[[Stage, str], Cells]


def _audit(level: Level) -> View:
    def look(stage: Stage, mirror: str) -> Cells:
        try:
            request = AuditRequest(level=level, share=100, seed="x")
            audit = begin(Sides(mirror, stage.settings(mirror), CLOCK), request)
        except RelayError as error:
            return {ALL: _of_error(error)}
        audit.add(spark_job.do_group(audit.job, audit.work))
        return _by_topic((at.topic, _audited(one)) for at, one in audit.partitions.items())

    return look


def _audited(found: PartitionAudit) -> Cell:
    verdict = found.verdict
    lines = tuple(differences(found) or unreadable(found) or notes(found)) or (str(verdict),)
    return _of_verdict(verdict, lines)


def _of_verdict(verdict: Verdict, lines: tuple[str, ...]) -> Cell:
    if verdict.state in _STATES:
        return Cell(_STATES[verdict.state], lines)
    return Cell(NOT_VERIFIED, lines) if verdict.has_notes else Cell()


def _of_error(error: RelayError) -> Cell:
    states = {2: NOT_VERIFIED, 3: FOUND, DIFFERENCE: FOUND}
    return Cell(states.get(error.exit_code, FAILED), (str(error),))


def _by_topic(cells: Iterable[tuple[str, Cell]]) -> Cells:
    found: dict[str, Cell] = {}
    for topic, cell in cells:
        found[topic] = found.get(topic, Cell()) + cell
    return found


def statement(stage: Stage, mirror: str) -> Cells:
    """`relay audit --against`."""
    try:
        found = audit_against(stage.statement(mirror), Sides(mirror, stage.settings(mirror), CLOCK))
    except RelayError as error:
        return {ALL: _of_error(error)}
    topics_there = [*topics_of(stage.rows)]
    lines = [(FOUND, line) for line in differences(found)]
    lines += [(NOT_VERIFIED, line) for line in notes(found)]
    return _by_topic((_topic_of(line, topics_there), Cell(state, (line,))) for state, line in lines)


def _topic_of(line: str, topics_there: Iterable[str]) -> str:
    words = set(re.findall(r"[\w.-]+-(?=\d)", line))
    return next((topic for topic in topics_there if f"{topic}-" in words), ALL)


def window_check(stage: Stage, mirror: str) -> Cells:
    """The check `message_counts` of a window that has all rounds: Dagster runs the same code."""
    kafka = KafkaResource(config_path=str(stage.config))
    copied = stage.copied[mirror]
    ranges = [OffsetRange(at, 0, end) for at, end in sorted(copied.items())]
    frozen = FrozenWindow("window", tuple(ranges), planned_at_ms=stage.began_ms)
    try:
        snapshot = read_clusters.take_snapshot(Sides(mirror, kafka.mirror(mirror), CLOCK))
        planned = plan_frozen(snapshot, frozen)
        last_round = run(planned, lambda: stage.session, [], run_id="window", scope="main")
        report = count_window(
            *(kafka, snapshot, frozen, frozen.topics, last_round), run_id="window"
        )
    except RelayError as error:
        return {ALL: _of_error(error)}
    return {topic.topic: _checked(topic) for topic in report.topics}


def _checked(topic: TopicReport) -> Cell:
    result = window_events.result(topic)
    lines = (str(result.description),)
    if result.passed:
        return _of_verdict(topic.verdict, lines)
    is_error = result.severity == AssetCheckSeverity.ERROR
    return Cell(FOUND if is_error else NOT_VERIFIED, lines)


def exporter(stage: Stage, mirror: str) -> Cells:
    """The metrics on which alerts of deploy/prometheus fire."""
    settings = stage.settings(mirror)
    try:
        look = Looker(Sides(mirror, settings, CLOCK)).look()
    except RelayError as error:
        return {ALL: Cell(FOUND, (f"`up` is 0: {error}",))}
    cells = []
    failed = set()
    for sample in samples(look, by_partition=True):
        if not sample.value:
            continue
        if sample.name == "held_back":
            _, topic, _, kind = sample.labels
            cells.append((topic, Cell(FOUND, (f'`held_back{{error="{kind}"}}`',))))
        elif sample.name == "hidden_records":
            cells.append((sample.labels[1], Cell(FOUND, ("`hidden_records`",))))
        elif sample.name == "check_failed":
            failed.add(sample.labels[2])
    concerned = {
        "configs": {
            each.topic for each in topic_configs.differences(configs.with_all(look.snapshot))
        },
        "source_topics": {*look.snapshot.selected.deleted, *look.snapshot.selected.unseen},
    }
    for check in failed:
        says = Cell(FOUND, (f'`check_failed{{check="{check}"}}`',))
        cells += [(topic, says) for topic in concerned[check]]
    return _by_topic(cells)


COLUMNS: dict[str, View] = {
    "ledger": _audit(Level.LEDGER),
    "recount": _audit(Level.RECOUNT),
    "full": _audit(Level.FULL),
    "sample": _audit(Level.SAMPLE),
    "statement": statement,
    "exporter": exporter,
    "window check": window_check,
}
"""The window check is the last one: it copies what is missing of its window."""


Measured = Mapping[str, Mapping[str, Cells]]
"""What is seen, by column and mirror."""


def measure(stage: Stage) -> Measured:
    """Look at every mirror with every column; at those whose state topics are changed, in turn."""
    found: dict[str, dict[str, Cells]] = {column: {} for column in COLUMNS}
    last = {row.mirror: row for row in stage.rows if row.last}
    mirrors = [mirror for mirror in stage.sections if mirror not in last]
    for column, view in COLUMNS.items():
        found[column] |= {mirror: view(stage, mirror) for mirror in mirrors}
    for mirror, row in last.items():
        for topic, records in stage.kept.items():
            stage.restore(topic, records)
        assert row.last is not None
        row.last(stage, row)
        for column, view in COLUMNS.items():
            found[column][mirror] = view(stage, mirror)
    return found


def cells_of(measured: Measured, row: Row) -> dict[str, Cell]:
    """Return what each column shows of a row."""
    cells = {}
    for column, mirrors in measured.items():
        cell = Cell()
        for topic in (row.name, *row.topics, ALL):
            cell += mirrors[row.mirror].get(topic, Cell())
        cells[column] = cell
    return cells

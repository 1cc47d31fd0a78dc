"""Writes docs/tampering.md, and the lines that stand behind it, from what was measured."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.integration.tampering.stage import Row
from tests.integration.tampering.statements import KINDS, Edited
from tests.integration.tampering.views import COLUMNS, Cell, Measured, cells_of

PATH = Path(__file__).parents[3] / "docs" / "tampering.md"
LINES = Path(__file__).parent / "lines.md"
MARKS = {"D": "**found**", "N": "not verified", "R": "refused", "F": "failed", ".": "passes"}
_BEFORE = """\
<!-- written by tests/integration/test_tampering.py; change the tests, not this page -->
# What tampering shows
A test makes each change on real brokers and looks with each column: four levels of `relay audit`
(the samples read all chunks), `--against` a *statement* from before, alerts of the *exporter*, and
the *window check* `message_counts` of a window that has all records.

| cell | meaning |
|---|---|
| **found** | reported as a difference: exit code 4, a failed check, or an alert |
| not verified | some of it could not be verified; `--strict` ends with 4 |
| passes | nothing is reported |

[Security](security.md#what-can-still-be-hidden) says what can still be hidden.
"""
_LINES = """\
<!-- written by tests/integration/test_tampering.py; docs/tampering.md has the verdicts -->
# What each column prints of each change
Changes and columns with the same line stand together. `T` is the topic of the change. The place
in front of a line and its remedy are left out.
"""
_REMEDY = re.compile(
    "; (find out who|to copy again|mirror it under|make it again|restore the topic, or"
    "|create it again|put the newest) .*"
)
_OF_HEALTHY = "Changes of healthy life"
_HEALTHY = f"""
## {_OF_HEALTHY}
None of these may raise an alarm.

"""
_STATEMENTS = """
## Statements that were edited
*refused* is exit code 2, before anything is compared.

"""


def text(
    tamperings: Mapping[str, Sequence[Row]],
    healthy: Sequence[Row],
    measured: Measured,
    statements: Sequence[Edited],
    edited: Mapping[str, Mapping[str, Cell]],
) -> str:
    """Return the page: what each column makes of each change."""
    parts = [_BEFORE]
    for title, rows in tamperings.items():
        parts += [f"\n## {title}\n", _table_of(measured, rows)]
    parts += [_HEALTHY, _table_of(measured, healthy)]
    found = [(each.what, edited[each.name]) for each in statements]
    parts += [_STATEMENTS, _table(KINDS, found)]
    return "".join(parts)


def lines(
    tamperings: Mapping[str, Sequence[Row]], healthy: Sequence[Row], measured: Measured
) -> str:
    """Return what each column prints of each change."""
    parts = [_LINES]
    for title, rows in [*tamperings.items(), (_OF_HEALTHY, healthy)]:
        found = [(row, cells_of(measured, row)) for row in rows]
        first = [
            (row, {name: each.lines[:1] for name, each in cells.items()}) for row, cells in found
        ]
        parts += [f"\n## {title}\n", says(first)]
    return "".join(parts)


Cells = Iterable[tuple[str, Mapping[str, Cell]]]


def _table_of(measured: Measured, rows: Sequence[Row]) -> str:
    return _table(COLUMNS, [(row.what, cells_of(measured, row)) for row in rows])


def _table(columns: Iterable[str], rows: Cells) -> str:
    head = ["what was done", *columns]
    lines: list[list[str]] = []
    together: dict[tuple[str, ...], list[str]] = {}
    for what, cells in rows:
        marks = tuple(MARKS[cells[name].state] for name in head[1:])
        together.setdefault(marks, []).append(what)
    lines += [["<br>".join(whats), *marks] for marks, whats in together.items()]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n{body}"


def says(rows: Iterable[tuple[Row, Mapping[str, Sequence[str]]]]) -> str:
    """Return the first line of each column, once for all rows and columns that say the same."""
    together: dict[str, list[str]] = {}
    for row, lines in rows:
        columns: dict[str, list[str]] = {}
        for column, (line,) in ((column, some) for column, some in lines.items() if some):
            columns.setdefault(_plain(line, row.name), []).append(column)
        said = "".join(f"    - {', '.join(some)}: {line}\n" for line, some in columns.items())
        if said:
            together.setdefault(said, []).append(row.what)
    return "".join(f"- {_sentence('; '.join(whats))}\n{said}" for said, whats in together.items())


def _sentence(text: str) -> str:
    return text if text[0] == "`" else text[0].upper() + text[1:]


def _plain(line: str, topic: str) -> str:
    """Leave out what differs from run to run or row to row, and what Markdown would read."""
    line = re.sub(r"(__relay_\w+)-\d+\[\d+, \d+\)", r"\1-N[…)", line)
    line = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", line)
    line = re.sub(r"\b(tampered|healthy)\.", "", line)
    topic = re.escape(topic.partition(".")[2])
    line = re.sub(
        rf"(?<![\w-]){topic}(?=-\d)|(?<=topic ){topic}\b|(?<=mirror ){topic}\b|(?<='){topic}(?=')",
        "T",
        line,
    )
    line = re.sub(r"(^|; )T-0(\[\d+, \d+\), copied to T-0\[\d+, \d+\))?: ", r"\1", line)
    line = _REMEDY.sub("", line)
    return re.sub(r"([*_<>|])(?![^`]*`)", r"\\\1", line) if "`" not in line else line

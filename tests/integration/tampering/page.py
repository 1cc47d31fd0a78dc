"""Writes docs/tampering.md from what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.integration.tampering.stage import Row
from tests.integration.tampering.statements import KINDS, Edited
from tests.integration.tampering.views import COLUMNS, Cell, Measured, cells_of

PATH = Path(__file__).parents[3] / "docs" / "tampering.md"
MARKS = {"D": "**found**", "N": "not verified", "R": "refused", "F": "failed", ".": "passes"}
_BEFORE = """\
<!-- written by tests/integration/test_tampering.py; change the tests, not this page -->
# What tampering shows
A test makes each change on real brokers, looks with each column, and compares the result with
this page. *statement* is `relay audit --against` a statement from before; *exporter* is an alert of
`relay exporter`; *window check* is the check `message_counts` of a window that has all records. The
samples here read all chunks.

| cell | meaning |
|---|---|
| **found** | It is reported as a difference: exit code 4, a failed check, or an alert. |
| not verified | Some of it could not be verified: the line says why; `--strict` ends with 4. |
| passes | Nothing is reported. This column does not look there, or cannot see it. |

Changes with the same result share a row. Below each table are the lines that the columns print;
changes and columns with the same line stand together, and `T` is the topic of the change. Two parts
of a line are left out: the place in front, such as `T-0[10, 20), copied to T-0[11, 21): `, and what
to do.
[Security](security.md#what-can-still-be-hidden) says what can still be hidden.
"""
_REMEDY = re.compile(
    "; (find out who|to copy again|mirror it under|make it again|restore the topic, or"
    "|create it again|put the newest) .*"
)
_HEALTHY = """
## Changes of healthy life
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
    """Return the page."""
    parts = [_BEFORE]
    for title, rows in tamperings.items():
        parts += [f"\n## {title}\n", _of_rows(measured, rows, "What it says there")]
    parts += [_HEALTHY, _of_rows(measured, healthy, "What is not verified")]
    found = [(each.what, edited[each.name]) for each in statements]
    parts += [_STATEMENTS, _table(KINDS, found)]
    return "".join(parts)


Cells = Iterable[tuple[str, Mapping[str, Cell]]]


def _of_rows(measured: Measured, rows: Sequence[Row], title: str) -> str:
    cells = [(row, cells_of(measured, row)) for row in rows]
    table = _table(COLUMNS, [(row.what, found) for row, found in cells])
    said = [(row, {name: cell.lines[:1] for name, cell in found.items()}) for row, found in cells]
    return f"{table}\n### {title}\n{says(said)}"


def _table(columns: Iterable[str], rows: Cells) -> str:
    head = ["what was done", *columns]
    lines = [head, ["---"] * len(head)]
    together: dict[tuple[str, ...], list[str]] = {}
    for what, cells in rows:
        marks = tuple(MARKS[cells[name].state] for name in head[1:])
        together.setdefault(marks, []).append(what)
    lines += [["<br>".join(whats), *marks] for marks, whats in together.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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

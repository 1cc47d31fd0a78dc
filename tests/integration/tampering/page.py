"""Writes docs/tampering.md from what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.integration.tampering.stage import Row
from tests.integration.tampering.statements import KINDS, Edited
from tests.integration.tampering.views import COLUMNS, Cell, Measured, cells_of

PATH = Path(__file__).parents[3] / "docs" / "tampering.md"
MARKS = {"D": "**found**", "N": "not verified", "R": "refused", "F": "failed", ".": "passes"}
_BEFORE = """\
<!-- written by tests/integration/test_tampering.py; change the tests, not this page -->
# What tampering shows
Each row of these tables is done to real brokers by a test, each column looks, and the test compares
what it says with this page. `full` and `sample` are shown with the client of the copy and with
librdkafka; the samples here read all chunks. *statement* is `relay audit --against` a statement
from before; *exporter* is an alert of `relay exporter`; *window check* is the check
`message_counts` of a window that has all records.

| cell | meaning |
|---|---|
| **found** | It is reported as a difference: exit code 4, a failed check, or an alert. |
| not verified | Some of it could not be verified: it says what and why; `--strict` ends with 4. |
| passes | Nothing is reported. This column does not look there, or cannot see it. |

[Security](security.md#what-can-still-be-hidden) says what can still be hidden.
"""
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
        cells = [(row.what, cells_of(measured, row)) for row in rows]
        parts += [f"\n## {title}\n", _table(COLUMNS, cells), "\n### What it says there\n"]
        parts += [_says(cells)]
    cells = [(row.what, cells_of(measured, row)) for row in healthy]
    parts += [_HEALTHY, _table(COLUMNS, cells), "\n### What is not verified\n", _says(cells)]
    found = [(each.what, edited[each.name]) for each in statements]
    parts += [_STATEMENTS, _table(KINDS, found)]
    return "".join(parts)


Cells = Iterable[tuple[str, Mapping[str, Cell]]]


def _table(columns: Iterable[str], rows: Cells) -> str:
    head = ["what was done", *columns]
    lines = [head, ["---"] * len(head)]
    lines += [[what, *(MARKS[cell.state] for cell in cells.values())] for what, cells in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _says(rows: Cells) -> str:
    return "".join(line for what, cells in rows for line in _of_row(what, cells))


def _of_row(what: str, cells: Mapping[str, Cell]) -> Iterator[str]:
    """Yield the first line of each column, once for all columns that say the same."""
    columns: dict[str, list[str]] = {}
    for column, cell in cells.items():
        if cell.lines:
            columns.setdefault(_plain(cell.lines[0]), []).append(column)
    if columns:
        yield f"- {what[0].upper() + what[1:] if what[0] != '`' else what}\n"
    for line, some in columns.items():
        yield f"    - {', '.join(some)}: {line}\n"


def _plain(line: str) -> str:
    """Leave out what differs from run to run, and what Markdown would read."""
    line = re.sub(r"(__relay_\w+)-\d+\[\d+, \d+\)", r"\1-N[…)", line)
    line = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", line)
    line = re.sub(r"\b(tampered|healthy)\.", "", line)
    return re.sub(r"([*_<>|])(?![^`]*`)", r"\\\1", line) if "`" not in line else line

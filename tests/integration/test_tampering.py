"""The tamper matrix: what every level of proof makes of everything that somebody may do.

docs/tampering.md shows it. A third of the rows is in the suite; all of them, and the page, are in
`make long`. `RELAY_WRITE_PAGES=1` in the environment writes the page again.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from relay_pipelines.local_kafka import LocalCluster
from tests.integration.tampering import page
from tests.integration.tampering.healthy import HEALTHY
from tests.integration.tampering.stage import Row, Stage
from tests.integration.tampering.statements import EDITED, KINDS, Edited, look
from tests.integration.tampering.tamperings import TAMPERINGS
from tests.integration.tampering.views import COLUMNS, FOUND, Measured, cells_of, measure

pytestmark = pytest.mark.timeout(900)  # the first test waits for all
ROWS = [*(row for rows in TAMPERINGS.values() for row in rows), *HEALTHY]
STATED = "second"
"""The mirror whose statement is edited; nothing is wrong with it."""
SHORT = [row for index, row in enumerate(ROWS) if index % 3 == 0 or row.mirror == STATED]
LONG = pytest.mark.long(minutes=8, together="the tamper matrix")
LAZY = {"log.initial.task.delay.ms": 3_600_000}
"""Retention is what the rows do, and not what the broker does meanwhile."""


@pytest.fixture(scope="module")
def stage(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    local_spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Stage]:
    """Everything is copied, attested, and tampered with."""
    own = {item.name for item in request.session.items if item.path == request.path}
    is_whole = test_the_page_is_current.__name__ in own
    rows = [
        row for row in ROWS if is_whole or row in SHORT or any(row.name in name for name in own)
    ]
    folder = tmp_path_factory.mktemp("tampered")
    destination = LocalCluster("tampered", folder=folder / "kafka", config=LAZY)
    destination.start()
    stage = Stage(
        source_cluster.cluster(),
        destination_cluster.cluster(),
        destination,
        folder,
        local_spark.session(),
        rows,
    )
    stage.set_up()
    stage.copy_rounds()
    stage.tamper()
    yield stage
    for sender in stage.open:
        sender.abort_transaction(10)
    destination.discard()


@pytest.fixture(scope="module")
def edited(stage: Stage) -> dict[str, dict[str, Any]]:
    """What comparisons with edited statements show; before the state topics are deleted."""
    return {each.name: dict(zip(KINDS, look(stage, STATED, each), strict=True)) for each in EDITED}


@pytest.fixture(scope="module")
def measured(stage: Stage, edited: object) -> Measured:
    """What every column shows of every mirror."""
    del edited
    return measure(stage)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=() if row in SHORT else LONG) for row in ROWS]
)
def test_every_column_shows_what_it_must(measured: Measured, row: Row) -> None:
    """Found, not verified, or passed, as the table of the rows says."""
    cells = cells_of(measured, row)
    shown = "".join(cell.state for cell in cells.values())
    details = "\n".join(f"{column}: {cell.state} {cell.lines}" for column, cell in cells.items())
    assert shown == row.expect, details


@pytest.mark.parametrize("each", EDITED, ids=lambda each: each.name)
def test_edited_statements(edited: dict[str, dict[str, Any]], each: Edited) -> None:
    """Found, refused, or passed, as the table says."""
    cells = edited[each.name]
    details = "\n".join(f"{kind}: {cell.state} {cell.lines}" for kind, cell in cells.items())
    assert "".join(cell.state for cell in cells.values()) == each.expect, details


def test_the_matrix_is_large_enough() -> None:
    """Forty tamperings and twenty changes of healthy life, of which none is found."""
    assert len(ROWS) - len(HEALTHY) >= 40
    assert len(HEALTHY) >= 20
    assert {len(row.expect) for row in ROWS} == {len(COLUMNS)}
    assert [row.name for row in HEALTHY if FOUND in row.expect] == []


@LONG
def test_the_page_is_current(measured: Measured, edited: dict[str, dict[str, Any]]) -> None:
    """Page and lines are what was measured: set RELAY_WRITE_PAGES=1 to write them again."""
    written = {
        page.PATH: page.text(TAMPERINGS, HEALTHY, measured, EDITED, edited),
        page.LINES: page.lines(TAMPERINGS, HEALTHY, measured),
    }
    for path, text in written.items():
        if os.environ.get("RELAY_WRITE_PAGES"):
            path.write_text(text)
        assert path.read_text() == text

"""What is done to statements, and what `relay audit --against` makes of it.

D: exit code 4. R: refused, with exit code 2. A dot: it passes; only a signature over the file shows
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay_pipelines.audit.against_statement import audit_against
from relay_pipelines.errors import DIFFERENCE, RelayError
from tests.integration.tampering.stage import CLOCK, Stage
from tests.integration.tampering.views import Cell
from tests.support.findings import differences

Document = dict[str, Any]
REFUSED = "R"
KINDS = ("what it shows",)


@dataclass(frozen=True)
class Edited:
    """One row: an edit of a statement."""

    name: str
    what: str
    expect: str
    edit: Callable[[Document], object]


def _first(document: Document) -> Document:
    found: Document = document["topic_partitions"][0]
    return found


def _entry(number: int, **fields: Any) -> Callable[[Document], object]:
    def edit(document: Document) -> None:
        entries = _first(document)["entries"]
        entry = json.loads(entries[number]) | fields
        entries[number] = json.dumps(entry, separators=(",", ":"))

    return edit


def _cut(document: Document) -> None:
    """Leave out the newest entry, and make the one before it the head."""
    first = _first(document)
    newest = json.loads(first["entries"].pop())
    first["head"] = {
        "number": newest["number"] - 1,
        "hash": newest["previous"],
        "committed_at_ms": newest["previous_at_ms"],
    }
    first["records"] -= newest["records"]


EDITED = [
    Edited("nothing", "nothing", ".", lambda _: None),
    Edited("entry", "an entry changed", "D", _entry(1, records=9)),
    Edited("removed", "an entry removed", "D", lambda found: _first(found)["entries"].pop(1)),
    Edited("newest", "the newest entry left out, and the head set to match", ".", _cut),
    Edited(
        "total",
        "the number of records in its summary changed",
        ".",
        lambda found: _first(found).update(records=7),
    ),
    Edited(
        "partition",
        "a topic-partition left out",
        ".",
        lambda found: found["topic_partitions"].pop(),
    ),
    Edited("time", "its time changed", ".", lambda found: found.update(made_at="2020-01-01")),
    Edited("mirror", "its mirror changed", "R", lambda found: found.update(mirror="main")),
    Edited(
        "cluster",
        "its cluster changed",
        "R",
        lambda found: found.update(destination_cluster_id="another"),
    ),
]


def look(stage: Stage, mirror: str, edited: Edited) -> list[Cell]:
    """Return what a comparison shows, for each of `KINDS`."""
    document = json.loads(stage.statement(mirror).read_text())
    edited.edit(document)
    path = stage.folder / "edited.json"
    path.write_text(json.dumps(document))
    try:
        found = audit_against(path, mirror, stage.settings(mirror), CLOCK)
    except RelayError as error:
        state = "D" if error.exit_code == DIFFERENCE else REFUSED
        return [Cell(state, (str(error).replace(str(path), "FILE"),))]
    return [Cell("D" if differences(found) else ".", tuple(differences(found)))]

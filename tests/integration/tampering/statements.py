"""What is done to statements, and what `relay audit --against` makes of it.

D: exit code 4. R: refused, with exit code 2. A dot: it passes; only a signature over the file shows
it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay_pipelines.audit.against_statement import audit_against
from relay_pipelines.errors import DIFFERENCE, RelayError
from relay_pipelines.sides import Sides
from tests.integration.tampering.stage import CLOCK, Stage
from tests.integration.tampering.views import Cell
from tests.support.findings import differences

Line = dict[str, Any]
Edit = Callable[[list[Line]], object]
"""Changes the lines of a statement: a header, entries, and a line for each topic-partition."""
REFUSED = "R"
KINDS = ("what it shows",)


@dataclass(frozen=True)
class Edited:
    """One row: an edit of a statement."""

    name: str
    what: str
    expect: str
    edit: Edit


def _entry(number: int, **fields: Any) -> Edit:
    return lambda lines: lines[1 + number].update(fields)


def _header(**fields: Any) -> Edit:
    return lambda lines: lines[0].update(fields)


def _remove(number: int) -> Edit:
    def edit(lines: list[Line]) -> None:
        del lines[1 + number]
        lines[0]["entries"] -= 1

    return edit


def _cut(lines: list[Line]) -> None:
    """Leave out the newest entry, and make the one before it the head."""
    *_, last = lines
    newest = lines.pop(lines[0]["entries"])
    lines[0]["entries"] -= 1
    last["head"] = {
        "number": newest["number"] - 1,
        "hash": newest["previous"],
        "committed_at_ms": newest["previous_at_ms"],
    }
    last["records"] -= newest["records"]


def _without_topic_partition(lines: list[Line]) -> None:
    tp = {name: lines[-1][name] for name in ("topic", "partition")}
    lines[1:] = [
        line for line in lines[1:-1] if line.get("source", {}).get("topic_partition") != tp
    ]
    lines[0] |= {
        "topic_partitions": lines[0]["topic_partitions"] - 1,
        "entries": sum("source" in line for line in lines),
    }


EDITED = [
    Edited("nothing", "nothing", ".", lambda _: None),
    Edited("entry", "an entry changed", "D", _entry(1, records=9)),
    Edited("removed", "an entry removed", "D", _remove(1)),
    Edited("newest", "the newest entry left out, and the head set to match", ".", _cut),
    Edited(
        "total",
        "the number of records in its summary changed",
        ".",
        lambda lines: lines[-1].update(records=7),
    ),
    Edited("partition", "a topic-partition left out", ".", _without_topic_partition),
    Edited("time", "its time changed", ".", _header(made_at="2020-01-01")),
    Edited("mirror", "its mirror changed", "R", _header(mirror="main")),
    Edited("cluster", "its cluster changed", "R", _header(destination_cluster_id="another")),
]


def look(stage: Stage, mirror: str, edited: Edited) -> list[Cell]:
    """Return what a comparison shows, for each of `KINDS`."""
    lines = [json.loads(line) for line in stage.statement(mirror).read_text().splitlines()]
    edited.edit(lines)
    path = stage.folder / "edited.jsonl"
    path.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
    try:
        found = audit_against(path, Sides(mirror, stage.settings(mirror), CLOCK))
    except RelayError as error:
        state = "D" if error.exit_code == DIFFERENCE else REFUSED
        return [Cell(state, (str(error).replace(str(path), "FILE"),))]
    return [Cell("D" if differences(found) else ".", tuple(differences(found)))]

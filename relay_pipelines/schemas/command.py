"""The command `schemas verify`: whether ids mean the same at both registries."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from relay_pipelines.audit.metrics import require_rewritable
from relay_pipelines.invocation import Invocation, the_mirror
from relay_pipelines.output import messages, tables
from relay_pipelines.output.formatting import count, stderr, stdout
from relay_pipelines.schemas import metrics
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.schemas.verdict import TopicVerdict, total
from relay_pipelines.schemas.verify import verify
from relay_pipelines.sides import Sides


def run(
    invocation: Invocation,
    mirror_name: str | None,
    request: SchemasRequest,
    textfile: Path | None,
    *,
    as_json: bool,
) -> int:
    """Compare the schemas of copied records; return the exit code.

    Args:
        textfile: where metrics are written; None for nowhere.
    """
    if textfile is not None:
        require_rewritable(textfile, metrics.NAMES)
    sides = the_mirror(invocation.settings(), mirror_name, "schemas are of")
    name = sides.name
    with invocation.reporting_errors(name):
        verdicts = _verdicts(sides, request)
        of_mirror = total(name, verdicts)
        invocation.raise_exit_code(of_mirror.exit_code)
        if textfile is not None:
            metrics.write(textfile, name, verdicts, is_part=request.is_part)
        if as_json:
            topics = [document(verdict) for verdict in verdicts]
            messages.document({"mirror": name, **document(of_mirror), "topics": topics})
        else:
            _show(name, verdicts, of_mirror)
    return invocation.exit_code


def _verdicts(sides: Sides, request: SchemasRequest) -> list[TopicVerdict]:
    """Return the verdict on each topic, and show on a terminal how many have come."""
    console = stderr()
    columns = TextColumn("topics"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        return list(bar.track(verify(sides, request)))


def _show(name: str, verdicts: list[TopicVerdict], of_mirror: TopicVerdict) -> None:
    table = tables.titled(f"{name}: schemas of copied records")
    tables.add_columns(table, ("topic",), ("records", "with ids", "ids", "same"), ("verdict",))
    for verdict in verdicts:
        numbers = (verdict.records, verdict.with_ids, len(verdict.ids), len(verdict.same))
        table.add_row(verdict.topic, *map(count, numbers), str(verdict))
    tables.show(stdout(), table)
    stdout().print(f"{name}: {of_mirror}", soft_wrap=True)


def document(verdict: TopicVerdict) -> dict[str, Any]:
    """Return a verdict as JSON."""
    problems = [
        asdict(each) | {"first": str(each.first)}
        for each in sorted(verdict.problems, key=lambda problem: not problem.differs)
    ]
    return {
        "topic": verdict.topic,
        "state": verdict.state.value,
        "records": verdict.records,
        "records_with_ids": verdict.with_ids,
        "records_left_out": verdict.left_out,
        "entries_gone": verdict.entries_gone,
        "ids": len(verdict.ids),
        "ids_same": len(verdict.same),
        "problems": problems,
        "not_looked_at": {why: number for why, number in verdict.not_looked_at.items() if number},
    }

"""The command `move`: producers and consumers go to the copy, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay_pipelines.errors import ConfigError
from relay_pipelines.finding import Finding
from relay_pipelines.invocation import Invocation, the_mirror
from relay_pipelines.move.gates import Gate
from relay_pipelines.move.inventory import document as group_document
from relay_pipelines.move.move import Move
from relay_pipelines.move.record import MoveRecord, MoveResult
from relay_pipelines.move.rehearsal import Rehearsal
from relay_pipelines.move.request import MoveRequest, MoveStep
from relay_pipelines.move.states import State
from relay_pipelines.output import messages, tables
from relay_pipelines.output.formatting import count, format_time, stdout

_CHANGES = {
    MoveStep.FENCE: "stops the producers of the source",
    MoveStep.CUT: "takes the topics from the mirror and moves the groups",
    MoveStep.BACK: "gives the topics back to the mirror and lifts the fence",
}


def run(
    invocation: Invocation,
    mirror: str | None,
    request: MoveRequest,
    step: MoveStep,
    *,
    execute: bool,
    as_json: bool,
) -> int:
    """Do one step, or only look; return the exit code. It changes nothing without `execute`."""
    sides = the_mirror(invocation.settings(), mirror, "a move is of")
    name = sides.name
    if step in _CHANGES and not execute:
        raise ConfigError(
            f"relay move {step} {_CHANGES[step]}; nothing is changed",
            remedy="add --execute to do it; relay move rehearse shows whether it can",
        )
    say = (lambda _: None) if as_json else (lambda line: messages.note(f"{name}: {line}"))
    advice = "`relay move status` says where the move stands"
    with (
        invocation.session(invocation.settings(), advice, name) as session,
        invocation.reporting_errors(name),
    ):
        move = Move(sides, request, session, say=say)
        if step.is_rehearsal:
            _show_rehearsal(invocation, name, move.rehearse(), step, as_json=as_json)
        else:
            _show(invocation, name, move.do(step), as_json=as_json)
    return invocation.exit_code


def _show(invocation: Invocation, name: str, result: MoveResult, *, as_json: bool) -> None:
    if as_json:
        messages.document(document(result))
        for finding in result.findings:
            invocation.raise_exit_code(finding.exit_code)
    else:
        for line in result.lines:
            stdout().print(f"{name}: {line}", soft_wrap=True)
        invocation.report(result.findings, name)


def document(result: MoveResult) -> dict[str, Any]:
    """Return what a step has done as JSON."""
    return {
        **record_document(result.record),
        "lines": list(result.lines),
        "findings": [finding.document for finding in result.findings],
    }


def record_document(record: MoveRecord) -> dict[str, Any]:
    """Return where a move stands as JSON."""
    begun = record.state is not State.NONE
    return {
        "mirror": record.mirror,
        "state": str(record.state),
        "since": format_time(record.state_since_ms) if begun else None,
        "by": record.by or None,
        "topics": list(record.topics),
        "fence": str(record.fence.by) if begun else None,
        "groups": list(record.groups),
    }


def _show_rehearsal(
    invocation: Invocation, name: str, rehearsal: Rehearsal, step: MoveStep, *, as_json: bool
) -> None:
    for gate in rehearsal.gates:
        for finding in gate.reasons:
            invocation.raise_exit_code(finding.exit_code)
    if as_json:
        messages.document(rehearsal_document(rehearsal))
        return
    console = stdout()
    if step is MoveStep.PLAN:
        tables.show(console, _group_table(name, rehearsal))
        for line in _writer_lines(rehearsal):
            console.print(f"{name}: {line}", soft_wrap=True)
    tables.show(console, _gate_table(name, rehearsal.gates))
    invocation.report(_named(rehearsal.gates), name)
    console.print(f"{name}: {rehearsal.record.where}", soft_wrap=True)
    console.print(f"{name}: {rehearsal.summary}", soft_wrap=True)


def _named(gates: Sequence[Gate]) -> list[Finding]:
    return [
        finding.inside(gate.name) for gate in gates for finding in gate.findings or gate.reasons
    ]


def rehearsal_document(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return what a rehearsal has found as JSON."""
    return {
        "move": record_document(rehearsal.record),
        "topics": list(rehearsal.topics),
        "topic_partitions": len(rehearsal.partitions),
        "offsets_to_copy": rehearsal.waiting,
        "gates": [gate.document for gate in rehearsal.gates],
        "groups": group_document(rehearsal.groups.positions),
        "writers": [
            {
                "upstream": upstream,
                "producer_id": producer_id,
                "transactional_id": active.names.get(producer_id),
                "topic_partitions": [str(each.topic_partition) for each in some],
                "last": format_time(max(each.last_ms for each in some)),
            }
            for upstream, active in rehearsal.writers.items()
            for producer_id, some in active.producers.items()
        ],
    }


def _writer_lines(rehearsal: Rehearsal) -> list[str]:
    return [
        f"{active.named(producer_id)} wrote to"
        f" {', '.join(sorted(str(each.topic_partition) for each in some)[:3])}"
        f" of upstream {upstream},"
        f" the last at {format_time(max(each.last_ms for each in some))}"
        for upstream, active in rehearsal.writers.items()
        for producer_id, some in active.producers.items()
    ]


def _gate_table(name: str, gates: Sequence[Gate]) -> Any:
    table = tables.titled(f"{name}: gates")
    tables.add_columns(table, ("gate", "state", "what was looked at"), (), ())
    for gate in gates:
        table.add_row(gate.name, str(gate.state), gate.saw)
    return table


def _group_table(name: str, rehearsal: Rehearsal) -> Any:
    table = tables.titled(f"{name}: groups")
    columns = ("topic-partitions", "exact", "re-reads", "no answer")
    tables.add_columns(table, ("group", "type", "state"), columns, ())
    for each in group_document(rehearsal.groups.positions):
        numbers = ("topic_partitions", "exact", "rereads", "without_answer")
        table.add_row(
            each["group"],
            each["type"] or "",
            each["state"] or "",
            *(count(each[number]) for number in numbers),
        )
    return table

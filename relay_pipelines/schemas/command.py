"""The command `schemas`: ids mean the same at both registries, or are made to."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from relay_pipelines.audit.metrics import require_rewritable
from relay_pipelines.errors import ConfigError
from relay_pipelines.invocation import Invocation, the_mirror
from relay_pipelines.output import messages, tables
from relay_pipelines.output.formatting import count, format_time, plural, stderr, stdout
from relay_pipelines.prepare.topics import create_state
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.schemas import metrics
from relay_pipelines.schemas.apply import Applied, Import, State
from relay_pipelines.schemas.import_record import ImportRecord, Lease
from relay_pipelines.schemas.inventory import Versions, read_ids, read_subjects
from relay_pipelines.schemas.plan import Action, Step, plan, with_referenced
from relay_pipelines.schemas.registry import Registry
from relay_pipelines.schemas.request import SchemasAction, SchemasRequest
from relay_pipelines.schemas.verdict import TopicVerdict, total
from relay_pipelines.schemas.verify import registries, verify
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.validation_errors import nearest

_FAILED = 1


@dataclass(frozen=True, slots=True)
class How:
    """How the command goes about it.

    Args:
        execute: whether to register; otherwise it is only shown.
        textfile: where `verify` writes metrics; None for nowhere.
    """

    action: SchemasAction
    execute: bool
    as_json: bool
    textfile: Path | None = None

    def __post_init__(self) -> None:
        if self.textfile is not None:
            require_rewritable(self.textfile, metrics.NAMES)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what it was made from.

    Args:
        left: what an import that was killed has left at the destination's registry.
        has_versions: subjects that have versions there.
    """

    steps: Sequence[Step]
    left: ImportRecord
    has_versions: Collection[str]


def run(invocation: Invocation, mirror_name: str | None, request: SchemasRequest, how: How) -> int:
    """Compare schemas, or show or register what is missing; return the exit code."""
    names = [mirror_name] if mirror_name else []
    name, mirror = the_mirror(invocation.settings(), names, "schemas are of")
    with invocation.reporting_errors(name):
        if how.action is SchemasAction.VERIFY:
            _verify(invocation, name, mirror, request, how)
        else:
            _register(invocation, name, mirror, request, how)
    return invocation.exit_code


def _verify(
    invocation: Invocation, name: str, mirror: Mirror, request: SchemasRequest, how: How
) -> None:
    verdicts = list(_shown(verify(name, mirror, request, SystemClock()), None, "topics"))
    found = total(name, verdicts)
    invocation.raise_exit_code(found.exit_code)
    if how.textfile is not None:
        metrics.write(how.textfile, name, verdicts, is_part=request.is_part)
    if how.as_json:
        topics = [document(each) for each in verdicts]
        messages.document({"mirror": name, **document(found), "topics": topics})
        return
    table = tables.titled(f"{name}: schemas of copied records")
    tables.add_columns(table, ("topic",), ("records", "with ids", "ids", "same"), ("verdict",))
    for each in verdicts:
        numbers = (each.records, each.with_ids, len(each.ids), len(each.same))
        table.add_row(each.topic, *map(count, numbers), str(each))
    tables.show(stdout(), table)
    stdout().print(f"{name}: {found}", soft_wrap=True)


def document(found: TopicVerdict) -> dict[str, Any]:
    """Return a verdict as JSON."""
    problems = [
        {"id": each.id, "uses": each.uses, "first": str(each.first), "why": each.why, "differs": d}
        for d, some in ((True, found.differing), (False, found.unknown))
        for each in some
    ]
    return {
        "topic": found.topic,
        "state": found.state.value,
        "records": found.records,
        "records_with_ids": found.with_ids,
        "records_left_out": found.left_out,
        "ids": len(found.ids),
        "ids_same": len(found.same),
        "problems": problems,
        "not_looked_at": {why: number for why, number in found.not_looked_at.items() if number},
    }


def _register(
    invocation: Invocation, name: str, mirror: Mirror, request: SchemasRequest, how: How
) -> None:
    clock = SystemClock()
    source, destination = registries(mirror)
    options, cluster = mirror.copy_options, mirror.destination_cluster
    applies = how.action is SchemasAction.APPLY and how.execute
    if applies:
        factor = mirror.destination.replication_factor
        create_state(name, cluster, factor, options, clock)
    with source, destination, destination_client(name, cluster, options, clock) as client:
        lease = Lease(client, destination, uuid.uuid4().hex[:12])
        planned = _plan(source, destination, lease, request)
        applied: list[Applied] = []
        if applies:
            importing = Import(destination, lease, planned.has_versions)
            with closing(importing.run(planned.steps)) as running:
                to_do = sum(
                    step.action in {Action.REGISTER, Action.DELETE} for step in planned.steps
                )
                applied = list(_shown(running, to_do, "versions"))
        refused = any(step.action is Action.REFUSED for step in planned.steps)
        if refused or any(each.state is State.FAILED for each in applied):
            invocation.raise_exit_code(_FAILED)
        _show(name, planned, applied, how)


def _plan(
    source: Registry, destination: Registry, lease: Lease, request: SchemasRequest
) -> Planned:
    """Read both registries, and say what becomes of each version."""
    here = _wanted(_read(source), source, request.subjects)
    subjects = {subject for subject, _ in here}
    existing = set(destination.subjects(deleted=True)) & subjects
    there = _read(destination, existing)
    ids = read_ids(destination, sorted({version.id for version in here.values()}))
    steps = plan(here, there, ids)
    return Planned(steps, lease.read(), existing)


def _read(registry: Registry, subjects: Collection[str] | None = None) -> Versions:
    names = registry.subjects(deleted=True) if subjects is None else sorted(subjects)
    found = _shown(read_subjects(registry, names), len(names), f"subjects of {registry.side}")
    return {version.place: version for some in found for version in some}


def _wanted(versions: Versions, source: Registry, subjects: Sequence[str]) -> Versions:
    if not subjects:
        return versions
    known = {subject for subject, _ in versions}
    for subject in subjects:
        if subject not in known:
            raise ConfigError(
                f"{source} has no subject {subject!r}", remedy=nearest(subject, known, "subjects")
            )
    wanted = with_referenced(versions, subjects)
    return {place: version for place, version in versions.items() if version.subject in wanted}


def _show(name: str, planned: Planned, applied: Sequence[Applied], how: How) -> None:
    done = {(each.step.version.place, each.step.action): each for each in applied}
    rows = [(step, done.get((step.version.place, step.action))) for step in planned.steps]
    if how.as_json:
        messages.document(_plan_document(name, planned, rows))
        return
    table = tables.titled(f"{name}: versions that are not at the destination as at the source")
    tables.add_columns(table, ("subject",), ("version", "id"), ("state",))
    for step, outcome in rows:
        if step.action is not Action.NONE:
            version = step.version
            table.add_row(
                version.subject, str(version.number), str(version.id), _says(step, outcome)
            )
    if table.rows:
        tables.show(stdout(), table)
    for line in _summary(planned, how):
        stdout().print(f"{name}: {line}", soft_wrap=True)


def _says(step: Step, outcome: Applied | None) -> str:
    state, why = (step.action.value, step.why) if outcome is None else (outcome.state, outcome.why)
    return ": ".join(filter(None, (state, why)))


def _summary(planned: Planned, how: How) -> Iterator[str]:
    numbers = {action: sum(step.action is action for step in planned.steps) for action in Action}
    said = [f"{count(number)} {action.value}" for action, number in numbers.items() if number]
    subjects = {step.version.subject for step in planned.steps}
    yield f"{plural(len(subjects), 'subject')}; versions: {', '.join(said) or 'none'}"
    executed = how.action is SchemasAction.APPLY and how.execute
    left = planned.left
    if left.modes and not executed:
        since = format_time(left.written_at_ms)
        yield (
            f"an import of {since} has {plural(len(left.modes), 'subject')} in import mode; if it"
            " was killed, `relay schemas apply --execute` restores them"
        )
    if how.action is SchemasAction.APPLY and not executed:
        yield "nothing is changed; add --execute to do it"


def _plan_document(
    name: str, planned: Planned, rows: Iterable[tuple[Step, Applied | None]]
) -> dict[str, Any]:
    return {
        "mirror": name,
        "left_in_import_mode": sorted(planned.left.modes),
        "versions": [
            {
                "subject": step.version.subject,
                "version": step.version.number,
                "id": step.version.id,
                "type": step.version.schema.type,
                "action": step.action.value,
                "state": outcome and outcome.state.value,
                "why": (outcome.why if outcome else step.why) or None,
            }
            for step, outcome in rows
        ],
    }


def _shown(items: Iterable[Any], number: int | None, what: str) -> Iterator[Any]:
    """Yield the items, and show on a terminal how many have come."""
    console = stderr()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield from bar.track(items, number, description=what)

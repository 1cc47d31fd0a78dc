"""The commands that only show: check, plan, status."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from relay_pipelines import api
from relay_pipelines.errors import RelayError, together
from relay_pipelines.finding import of_errors
from relay_pipelines.invocation import Invocation, selected_mirrors
from relay_pipelines.offsets.group_look import lines_of, looked_at
from relay_pipelines.output import json_output, messages, page_view, run_report, tables
from relay_pipelines.output.formatting import stdout
from relay_pipelines.page.look import Looker
from relay_pipelines.page.page import Page, page_of, page_unreachable
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.prepare import findings
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.replay import replay
from relay_pipelines.run import preflight, transaction_probe
from relay_pipelines.run.session import Session, StopSignal
from relay_pipelines.schemas import preflight as schemas_preflight
from relay_pipelines.sides import Sides


def check(invocation: Invocation, names: Sequence[str], *, probe: bool) -> int:
    """Print one line per finding.

    Args:
        probe: whether to try the transactions of each destination, which writes.
    """
    settings, stop = invocation.settings(), StopSignal()
    session = Session(settings.spark, stop, purpose="check", verbose=invocation.debug)
    with stop.heard():
        mirrors = selected_mirrors(settings, names)
        results = [preflight.check_spark(settings.spark, session, mirrors.values())]
        taken: preflight.Taken = {}
        for name, mirror in mirrors.items():
            sides = Sides(name, mirror)
            results.append(preflight.check(sides, taken))
            results.append(preflight.check_sql(sides, session))
            results.append(schemas_preflight.check(sides))
            if probe:
                results.append(transaction_probe.probe(sides))
        try:
            for finding in chain.from_iterable(results):
                stdout().print(tables.finding(finding), soft_wrap=True)
                invocation.raise_exit_code(finding.exit_code)
        finally:
            session.stop()
    return invocation.exit_code


def plan(
    invocation: Invocation, names: Sequence[str], topic: str | None, *, why: bool, as_json: bool
) -> int:
    """Show what a run would copy."""
    clock, settings = SystemClock(), invocation.settings()
    documents = []
    for name, mirror in selected_mirrors(settings, names).items():
        with invocation.reporting_errors(name):
            planned = api.Mirror(name, mirror, Session(settings.spark)).plan(topic)
            planned = planned.with_all_configs()
            remarks = [*preflight.classes(planned.snapshot.sides)]
            remarks += findings.of_snapshot(planned.snapshot)
            remarks += of_errors(together(planned.held))
            document = json_output.plan(planned, remarks, clock.now_ms())
            documents.append(document)
            if not as_json:
                run_report.show_plan(planned, document, clock.now_ms(), why=why)
            invocation.report(remarks, name)
    if as_json:
        messages.document({"mirrors": documents})
    return invocation.exit_code


def status(invocation: Invocation, names: Sequence[str], *, everything: bool, as_json: bool) -> int:
    """Show the page of each mirror.

    Args:
        everything: also show a table of all topic-partitions, and the replays.
    """
    clock = SystemClock()
    documents = []
    for name, mirror in selected_mirrors(invocation.settings(), names).items():
        try:
            sides = Sides(name, mirror, clock)
            look = Looker(sides).look()
            shown = page_of(look)
            states = replay.replays(sides) if everything or as_json else []
            document = json_output.status(look, shown, states)
            lines = _add_groups(invocation, sides, document)
            # of these, it cannot say how far they are copied
            unknown = look.snapshot.held_for(Blocker.UNKNOWN, Blocker.REFUSED)
            for error in unknown.values():
                invocation.raise_exit_code(error.exit_code)
        except RelayError as error:
            invocation.note(error)
            shown, states = page_unreachable(name, error, clock.now_ms()), []
            lines = []
            document = json_output.page(shown)
        documents.append(document)
        if not as_json:
            show_page(invocation, shown)
            for line in lines:
                stdout().print(f"  {line}", soft_wrap=True)
        if everything and not as_json and "topics" in document:
            tables.show(stdout(), tables.status(document))
        for state in [] if as_json else states:
            stdout().print(f"{name}: {replay.line(state)}", soft_wrap=True)
    if as_json:
        messages.document({"mirrors": documents})
    return invocation.exit_code


def _add_groups(invocation: Invocation, sides: Sides, document: dict[str, Any]) -> list[str]:
    """Add the groups that the mirror follows to its status; return what to print of them."""
    try:
        looks = looked_at(sides)
    except RelayError as error:
        document["groups"] = None
        invocation.raise_exit_code(error.exit_code)
        return [f"groups: nothing is known: {error}"]
    document["groups"] = [look.document() for look in looks]
    return list(lines_of(looks, follows=bool(sides.mirror.groups.allow)))


def show_page(invocation: Invocation, shown: Page) -> None:
    """Print the page of a mirror: what is held back stands out."""
    for line in page_view.text(shown, invocation.relay):
        style = "bold" if not line.startswith(" ") else ""
        stdout().print(line, soft_wrap=True, style=style)

"""The command `replay`: copies a range of a topic again, or shows what it would copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay_pipelines.errors import RelayError
from relay_pipelines.finding import of_errors
from relay_pipelines.invocation import Invocation, observed, the_mirror
from relay_pipelines.output import json_output, messages, run_report
from relay_pipelines.output.formatting import plural, stderr, stdout
from relay_pipelines.output.progress import progress
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.replay.replay import Replay, copy_replay, plan_replay
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.run.session import Session

if TYPE_CHECKING:
    from relay_pipelines.metrics import Publication


def run(
    invocation: Invocation,
    mirror: str | None,
    request: ReplayRequest,
    *,
    execute: bool,
    as_json: bool,
) -> int:
    """Show what a replay copies, and copy it if `execute` is given; return the exit code."""
    settings = invocation.settings()
    sides = the_mirror(settings, mirror, "a replay is of")
    advice = "committed records stay, run again to continue"
    with invocation.session(settings, advice) as session, observed(settings.metrics) as publication:
        replay = plan_replay(sides, request, session, settings.mirrors)
        only_shown = not (execute and replay.plan.planned)
        # otherwise the run reports its losses
        losses = of_errors(replay.plan.held) if only_shown else []
        remarks = [*replay.findings, *losses]
        document = json_output.plan(replay.plan, remarks, sides.clock.now_ms())
        if not as_json:
            _show(replay, request, document)
        elif only_shown:
            messages.document(document)
        invocation.report(remarks, replay.name)
        if not only_shown:
            _copy(invocation, session, replay, publication, as_json=as_json)
        elif replay.plan.planned and not as_json:
            messages.note(f"{replay.name}: nothing is copied; add --execute to do it")
    return invocation.exit_code


def _copy(
    invocation: Invocation,
    session: Session,
    replay: Replay,
    publication: Publication | None,
    *,
    as_json: bool,
) -> None:
    try:
        with progress(replay.name, stderr()) as display:
            observers = [display] if publication is None else [display, publication.observer]
            result = copy_replay(replay, session, observers)
    except RelayError as error:
        invocation.fail(error, replay.name)
    else:
        invocation.raise_exit_code(result.exit_code)
        run_report.report(replay.plan, result, as_json=as_json)


def _show(replay: Replay, request: ReplayRequest, document: json_output.Document) -> None:
    """Print what is left, as `relay plan` does."""
    if replay.is_complete:
        stdout().print(
            f"{replay.name}: complete since an earlier run, and {request.to} is still that topic"
            f" (`relay audit --replay {replay.id}` counts its records); give another --id to copy"
            " them once more",
            soft_wrap=True,
        )
        return
    run_report.show_plan(replay.plan, document, SystemClock().now_ms(), why=False)
    records = plural(replay.plan.offsets, "offset")
    doing = "continues with" if replay.is_started else "reads"
    what = "copies the records of the time span" if request.has_dates else "copies their records"
    stdout().print(
        f"{replay.name}: {doing} {records} from the {request.side}, and {what}", soft_wrap=True
    )

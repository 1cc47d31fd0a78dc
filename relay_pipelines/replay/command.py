"""The command `replay`: copies a range of a topic again, after it has shown what."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay_pipelines.audit.selection import parse_offsets, parse_time
from relay_pipelines.errors import INTERRUPTED, ConfigError, RelayError
from relay_pipelines.invocation import Invocation, observed, the_mirror
from relay_pipelines.output import json_output, messages, run_report
from relay_pipelines.output.formatting import plural, stderr, stdout
from relay_pipelines.output.progress import progress
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.replay.replay import Replay, copy_replay, plan_replay
from relay_pipelines.replay.request import ReplayRequest, Side, records_of
from relay_pipelines.run.session import Session
from relay_pipelines.run.signals import StopSignal

if TYPE_CHECKING:
    from relay_pipelines.metrics import Publication


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command, as typed."""

    topic: str
    to: str
    mirror: str | None
    partition: int | None
    offsets: str | None
    since: str | None
    until: str | None
    window: str | None
    side: str
    filters: Sequence[str]
    where: str | None
    transform: str | None
    select: Sequence[str]
    replay_id: str | None
    verbatim: bool
    into_itself: bool
    dry_run: bool
    yes: bool
    as_json: bool


def run(invocation: Invocation, options: Options) -> int:
    """Show what a replay copies, ask, and copy it; return the exit code."""
    settings = invocation.settings()
    names = [options.mirror] if options.mirror else []
    name, _ = the_mirror(settings, names, "a replay is of")
    stop = StopSignal()
    session = Session(settings.spark, stop, verbose=invocation.debug)
    with stop.heard(), observed(settings.metrics) as publication:
        try:
            request = _request(invocation, options)
            replay = plan_replay(settings.mirrors, name, request, session, SystemClock())
            _show(replay, options)
            if options.dry_run or not replay.plan.windows:
                for error in replay.plan.data_losses:  # otherwise the run reports them
                    invocation.fail(error, replay.name)
            elif _is_wanted(options):
                _copy(invocation, session, replay, publication, as_json=options.as_json)
        except KeyboardInterrupt:
            invocation.raise_exit_code(INTERRUPTED)
            messages.error("interrupted; committed records stay, run again to continue")
        finally:
            session.stop()
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
            result = copy_replay(replay, session, observers, SystemClock())
    except RelayError as error:
        invocation.fail(error, replay.name)
    else:
        invocation.raise_exit_code(result.exit_code)
        run_report.report(replay.plan, result, as_json=as_json)


def _request(invocation: Invocation, options: Options) -> ReplayRequest:
    records: dict[str, Any] = {}
    if options.filters:
        records["filters"] = [_class("--filter", text) for text in options.filters]
    if options.where is not None:
        records["where"] = options.where
    if options.transform is not None:
        records["transform"] = _class("--transform", options.transform)
    if options.select:
        records["select"] = dict(_column(text) for text in options.select)
    return ReplayRequest(
        topic=options.topic,
        to=options.to,
        side=Side(options.side),
        partition=options.partition,
        offsets=None if options.offsets is None else parse_offsets("--offsets", options.offsets),
        from_ms=None if options.since is None else parse_time("--from", options.since),
        until_ms=None if options.until is None else parse_time("--until", options.until),
        window=options.window or "",
        records=records_of(records, invocation.config.absolute().parent),
        verbatim=options.verbatim,
        into_itself=options.into_itself,
        replay_id=options.replay_id or "",
    )


def _class(option: str, text: str) -> Mapping[str, Any]:
    name, equals, config = text.partition("=")
    try:
        given = json.loads(config) if equals else {}
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(
            f"{option}: {config!r} is no config of a class",
            remedy='write CLASS, or CLASS={"key": "value"} with JSON, in quotes of the shell',
        )
    return {"class": name, "config": given}


def _column(text: str) -> tuple[str, str]:
    column, equals, expression = text.partition("=")
    if not equals:
        raise ConfigError(
            f"--select: {text!r} is no column", remedy="write COLUMN=SQL, such as value=upper(key)"
        )
    return column, expression


def _show(replay: Replay, options: Options) -> None:
    """Print what is left, as `relay plan` does."""
    now_ms = SystemClock().now_ms()
    for note in replay.notes:
        messages.warning(f"{replay.name}: {note}")
    if options.as_json:
        if options.dry_run or not replay.plan.windows:
            messages.document(json_output.plan(replay.plan, now_ms))
        return
    if replay.is_complete:
        stdout().print(
            f"{replay.name}: complete since an earlier run, and {options.to} is still that topic"
            f" (`relay audit --replay {replay.id}` counts its records); give another --id to copy"
            " them once more",
            soft_wrap=True,
        )
        return
    run_report.show_plan(replay.plan, now_ms, why=False, sync=False)
    records = plural(sum(map(replay.plan.offsets, replay.plan.windows)), "offset")
    doing = "continues with" if replay.is_started else "reads"
    of_span = options.since is not None or options.until is not None
    what = "copies the records of the time span" if of_span else "copies their records"
    stdout().print(
        f"{replay.name}: {doing} {records} from the {options.side}, and {what}", soft_wrap=True
    )


def _is_wanted(options: Options) -> bool:
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            f"a replay writes to {options.to}, and nobody is there to be asked",
            remedy="add --yes, or --dry-run to only see the plan",
        )
    import typer

    return typer.confirm(f"Copy these records to {options.to}?")

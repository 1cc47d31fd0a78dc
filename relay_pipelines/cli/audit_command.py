"""The command `audit`: does the destination hold what the source did?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines import api
from relay_pipelines.cli.context import Invocation, selected_mirrors
from relay_pipelines.console import json_output, messages, tables
from relay_pipelines.console.formatting import stderr, stdout
from relay_pipelines.console.progress import bytes_progress
from relay_pipelines.errors import INTERRUPTED, ConfigError
from relay_pipelines.protocol.clock import SystemClock, moment_ms
from relay_pipelines.run.session import Session
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.verify.audit import BY_RECORD, Audit
from relay_pipelines.verify.selection import Selection

_DIFFERENCE = 4
_FAILED = 1
_OFFSETS = re.compile(r"(\d*):(\d*)")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command, as typed.

    Args:
        share: of the chunks, from 0 to 1.
    """

    topic: str | None
    partition: int | None
    window: str | None
    offsets: str | None
    since: str | None
    until: str | None
    level: str
    share: float
    seed: str | None
    html: Path | None
    as_json: bool


def run(invocation: Invocation, names: Sequence[str], options: Options) -> int:
    """Audit one mirror after the other, and return the highest exit code."""
    selection = _selection(options)
    if options.html is not None and not options.html.parent.is_dir():
        raise ConfigError(
            f"--html: there is no folder {options.html.parent}", remedy="create it first"
        )
    settings, stop = invocation.settings(), StopSignal()
    session = Session(settings.spark, stop, verbose=invocation.debug)
    found: list[Audit] = []
    with stop.heard():
        try:
            for name, mirror in selected_mirrors(settings, names).items():
                with invocation.reporting_errors(name):
                    audit = _audit(api.Mirror(name, mirror, session), selection, options)
                    found.append(audit)
                    _report(invocation, audit, as_json=options.as_json)
        except KeyboardInterrupt:
            invocation.raise_exit_code(INTERRUPTED)
            messages.error("interrupted; run again, or audit less with --since or --level sample")
        finally:
            session.stop()
    if options.html is not None:
        from relay_pipelines.console import audit_page

        options.html.write_text(audit_page.page(found, SystemClock().now_ms()))
    if options.as_json:
        messages.document({"mirrors": [json_output.audit(audit) for audit in found]})
    return invocation.exit_code


def _selection(options: Options) -> Selection:
    start, end = _offsets(options)
    if options.partition is not None and not options.topic:
        raise ConfigError("--partition needs --topic", remedy="name the source topic")
    if options.window and (options.offsets or options.since or options.until):
        raise ConfigError(
            "--window names offsets by itself", remedy="leave out --offsets, --since and --until"
        )
    if options.offsets and (options.since or options.until):
        raise ConfigError("--offsets and dates exclude each other", remedy="leave one of them out")
    return Selection(
        options.topic or "",
        options.partition,
        options.window or "",
        start,
        end,
        _time("--since", options.since),
        _time("--until", options.until),
    )


def _offsets(options: Options) -> tuple[int | None, int | None]:
    if options.offsets is None:
        return None, None
    if not options.topic:
        raise ConfigError("--offsets needs --topic", remedy="name the source topic")
    given = _OFFSETS.fullmatch(options.offsets)
    start, end = (int(text) if text else None for text in given.groups()) if given else (None, None)
    if not given or (start is not None and end is not None and start >= end):
        raise ConfigError(
            f"--offsets: {options.offsets!r} is no range of offsets",
            remedy="write START:END, such as 100:200, 100: or :200",
        )
    return start, end


def _time(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else moment_ms(text)
    except ValueError:
        raise ConfigError(
            f"{option}: {text!r} is no time", remedy="write 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None


def _audit(mirror: api.Mirror, selection: Selection, options: Options) -> Audit:
    clock = SystemClock()
    started = clock.monotonic()
    audit = mirror.begin_audit(
        selection, level=options.level, share=options.share, seed=options.seed
    )
    if audit.work:
        total = sum(each.size_bytes for each in audit.work)
        sizes = mirror.read(audit)
        with bytes_progress(f"{audit.mirror}: read", total, stderr()) as advance, closing(sizes):
            for size_bytes in sizes:
                advance(size_bytes)
    audit.seconds = clock.monotonic() - started
    return audit


def _report(invocation: Invocation, audit: Audit, *, as_json: bool) -> None:
    for line in audit.problems:
        messages.error(f"{audit.mirror}: {line}")
        invocation.raise_exit_code(_DIFFERENCE)
    for line in audit.errors:
        messages.error(f"{audit.mirror}: {line}")
        invocation.raise_exit_code(_FAILED)
    if as_json:
        return
    console = stdout()
    tables.show(console, tables.audit(audit))
    for line in _notes(audit):
        console.print(f"{audit.mirror}: {line}", soft_wrap=True)
    for at, each in audit.partitions.items():
        first = each.first_difference
        if first is not None and first.difference is not None:
            tables.show(console, tables.difference(str(at), first.difference))


def _notes(audit: Audit) -> Iterator[str]:
    for at, each in audit.partitions.items():
        for line in each.notes:
            yield f"{at}: {line}"
        if each.rule and each.rule != BY_RECORD:
            yield f"{at}: {each.rule}"

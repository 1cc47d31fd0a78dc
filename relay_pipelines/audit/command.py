"""The command `audit`: does the destination hold what the source did?"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines.audit import document, tables
from relay_pipelines.audit.audit import BY_RECORD, Audit, Level, begin, default_seed
from relay_pipelines.audit.chunks import Client
from relay_pipelines.audit.selection import Selection, parse_offsets, parse_time
from relay_pipelines.audit.verdict import State, Verdict
from relay_pipelines.errors import INTERRUPTED, ConfigError
from relay_pipelines.invocation import Invocation, selected_mirrors, the_mirror
from relay_pipelines.output import messages
from relay_pipelines.output.formatting import stderr, stdout
from relay_pipelines.output.progress import bytes_progress
from relay_pipelines.output.tables import show
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.session import Session
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Mirror


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command, as typed.

    Args:
        share: of the chunks, from 0 to 1.
        against: a statement to compare with, instead of the source.
        key: the public key that must have signed it.
        strict: whether whatever is noted is a difference.
    """

    topic: str | None
    partition: int | None
    window: str | None
    offsets: str | None
    since: str | None
    until: str | None
    level: str
    client: str
    against: Path | None
    key: Path | None
    share: float
    seed: str | None
    html: Path | None
    textfile: Path | None
    as_json: bool
    strict: bool = False


def run(
    invocation: Invocation,
    names: Sequence[str],
    options: Options,
    replayed: Callable[[str, Mirror], tuple[str, Mirror]] | None = None,
) -> int:
    """Audit one mirror after the other, and return the highest exit code.

    Args:
        replayed: returns the mirror that is a replay, which is audited instead of its own.
    """
    if options.against is not None or options.key is not None:
        return _run_against(invocation, names, options)
    selection = _selection(options)
    for option, file in (("--html", options.html), ("--textfile", options.textfile)):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(
                f"{option}: there is no folder {file.parent}", remedy="create it first"
            )
    if options.client != Client.RELAY and not Level(options.level).compares:
        raise ConfigError(
            f"--client {options.client} is for comparing both sides",
            remedy="add --level full or --level sample",
        )
    settings, stop = invocation.settings(), StopSignal()
    session = Session(settings.spark, stop, verbose=invocation.debug)
    audits: dict[str, Audit | None] = {}
    with stop.heard():
        try:
            for name, mirror in selected_mirrors(settings, names).items():
                audits[name] = None
                with invocation.reporting_errors(name):
                    bound = replayed(name, mirror) if replayed else (name, mirror)
                    audit = audits[name] = _audit(*bound, session, selection, options)
                    report(invocation, audit, as_json=options.as_json)
        except KeyboardInterrupt:
            invocation.raise_exit_code(INTERRUPTED)
            messages.error("interrupted; run again, or audit less with --since or --level sample")
        finally:
            session.stop()
    found = [audit for audit in audits.values() if audit is not None]
    if options.textfile is not None and not stop():  # an audit that was cut short proves nothing
        from relay_pipelines.audit import metrics

        metrics.write(options.textfile, audits)
    if options.html is not None:
        from relay_pipelines.audit import page

        options.html.write_text(page.page(found, SystemClock().now_ms()))
    if options.as_json:
        messages.document({"mirrors": [document.audit(audit) for audit in found]})
    return invocation.exit_code


def _run_against(invocation: Invocation, names: Sequence[str], options: Options) -> int:
    """Compare the destination of one mirror with a statement."""
    if options.against is None:
        raise ConfigError("--key needs --against", remedy="name the statement")
    if any(_others(options)):
        raise ConfigError(
            "--against audits what the statement says, and not a part of it",
            remedy="leave out " + ", ".join(_others(options)),
        )
    from relay_pipelines.audit.against_statement import audit_against  # cryptography is slow

    name, mirror = the_mirror(invocation.settings(), names)
    found = audit_against(options.against, name, mirror, SystemClock(), options.key)
    verdict, statement = found.verdict, found.statement
    wrong, passed = _lines(verdict, found.differences, found.notes, strict=options.strict)
    for line in wrong:
        messages.error(f"{name}: {line}")
    invocation.raise_exit_code(verdict.exit_code(strict=options.strict))
    if options.as_json:
        messages.document(document.against_statement(found))
        return invocation.exit_code
    signed = f"signed by {statement.signer}" if statement.signer else "not signed"
    for line in [f"the statement of {statement.made_at} is {signed}", *passed]:
        stdout().print(f"{name}: {line}", soft_wrap=True)
    return invocation.exit_code


def _lines(
    verdict: Verdict, wrong: Sequence[str], notes: Sequence[str], *, strict: bool
) -> tuple[list[str], list[str]]:
    """Return what is told as errors, and what is told beside the results."""
    code = verdict.exit_code(strict=strict)
    is_told = verdict.state in {State.DIFFERS, State.FAILED}
    errors = [*wrong, *(notes if strict else ())]
    errors += [str(verdict)] if code and not is_told else []
    passed = [*(() if strict else notes), *([str(verdict)] if is_told or not code else [])]
    return errors, passed


def _others(options: Options) -> list[str]:
    """Return the options that have no meaning together with --against."""
    given = {
        "--topic": options.topic,
        "--partition": options.partition is not None,
        "--window": options.window,
        "--offsets": options.offsets,
        "--since": options.since,
        "--until": options.until,
        "--level": options.level != Level.RECOUNT,
        "--client": options.client != Client.RELAY,
        "--seed": options.seed,
        "--html": options.html,
    }
    return [option for option, is_given in given.items() if is_given]


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
    return parse_offsets("--offsets", options.offsets)


def _time(option: str, text: str | None) -> int | None:
    return None if text is None else parse_time(option, text)


def _audit(
    name: str, mirror: Mirror, session: Session, selection: Selection, options: Options
) -> Audit:
    clock = SystemClock()
    started = clock.monotonic()
    audit = begin(
        *(name, mirror, selection, Level(options.level), clock),
        share=options.share,
        seed=options.seed or default_seed(clock),
        client=Client(options.client),
        strict=options.strict,
    )
    if audit.work:
        from relay_pipelines.audit import spark_job  # Spark is slow to import

        total = sum(each.size_bytes for each in audit.work)
        tag = f"relay-audit-{uuid.uuid4().hex[:12]}"
        results = spark_job.read(audit, session, tag)
        with bytes_progress(f"{name}: read", total, stderr()) as advance, closing(results):
            for result in results:
                advance(result.size_bytes)
    audit.seconds = clock.monotonic() - started
    return audit


def report(invocation: Invocation, audit: Audit, *, as_json: bool) -> None:
    """Print what an audit found, and raise the exit code."""
    found, notes = [*audit.problems, *audit.errors], list(_notes(audit))
    wrong, passed = _lines(audit.verdict, found, notes, strict=audit.strict)
    for line in wrong:
        messages.error(f"{audit.mirror}: {line}")
    invocation.raise_exit_code(audit.exit_code)
    if as_json:
        return
    console = stdout()
    show(console, tables.audit(audit))
    for line in passed:
        console.print(f"{audit.mirror}: {line}", soft_wrap=True)
    for at, each in audit.partitions.items():
        if each.policies:
            line = f"{at}: several configurations decided its records: {', '.join(each.policies)}"
            console.print(f"{audit.mirror}: {line}", soft_wrap=True)
        first = each.first_difference
        if first is not None and first.difference is not None:
            show(console, tables.difference(str(at), first.difference))


def _notes(audit: Audit) -> Iterator[str]:
    for at, each in audit.partitions.items():
        for line in each.notes:
            yield f"{at}: {line}"
        if each.rule and each.rule != BY_RECORD:
            yield f"{at}: {each.rule}"

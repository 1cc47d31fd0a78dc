"""The command `audit`: does the destination hold what the source did?"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from relay_pipelines.audit import metrics
from relay_pipelines.audit.against_statement import audit_against
from relay_pipelines.audit.audit import Audit, begin
from relay_pipelines.audit.coverage import no_entries
from relay_pipelines.audit.report import (
    audit_document,
    audit_table,
    difference_table,
    statement_document,
)
from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.audit.verdict import State, Verdict
from relay_pipelines.errors import ConfigError
from relay_pipelines.finding import Finding, Severity
from relay_pipelines.invocation import Invocation, require_writable, selected_mirrors, the_mirror
from relay_pipelines.output import messages
from relay_pipelines.output.formatting import plural, stderr, stdout
from relay_pipelines.output.progress import bytes_progress
from relay_pipelines.output.tables import show
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.request import asked_fields
from relay_pipelines.run.session import Session
from relay_pipelines.sides import Sides


def run(
    invocation: Invocation,
    names: Sequence[str],
    request: AuditRequest,
    replayed: Callable[[Sides], Sides] | None = None,
    *,
    html: Path | None = None,
    textfile: Path | None = None,
    as_json: bool,
) -> int:
    """Audit one mirror after the other, and return the highest exit code.

    Args:
        replayed: returns the mirror that is a replay, which is audited instead of its own.
        html: where a page is written, too.
        textfile: where metrics are written, too.
    """
    if html is not None:
        require_writable("--html", html)
    if textfile is not None:
        metrics.require_rewritable(textfile, metrics.NAMES)
    settings, audits = invocation.settings(), list[tuple[str, Audit | None]]()
    advice = "run again, or audit less with --since or --level sample"
    with invocation.session(settings, advice, "audit") as session:
        for name, mirror in selected_mirrors(settings, names).items():
            audit = None
            with invocation.reporting_errors(name):
                sides = Sides(name, mirror)
                audit = _audit(replayed(sides) if replayed else sides, session, request)
                report(invocation, audit, as_json=as_json)
            audits.append((audit.mirror if audit else name, audit))
    complete = [audit for _, audit in audits if audit is not None]
    if as_json:
        messages.document({"mirrors": [audit_document(audit) for audit in complete]})
    with invocation.reporting_errors():
        # an audit that was cut short proves nothing
        if textfile is not None and not session.stopped():
            for name, audit in audits:
                metrics.write(textfile, name, request, audit)
    with invocation.reporting_errors():
        if html is not None:
            from relay_pipelines.audit import page  # jinja2 is slow to import
            from relay_pipelines.output import html_page

            html_page.write(html, page.page(complete, SystemClock().now_ms()))
    return invocation.exit_code


def refuse_a_part(request: AuditRequest, html: Path | None) -> None:
    """Refuse options that ask for a part of a statement.

    Raises:
        ConfigError: there are some.
    """
    default = AuditRequest(strict=request.strict)
    others = [
        f"--{asked.name}"
        for asked in asked_fields(AuditRequest)
        if getattr(request, asked.field) != getattr(default, asked.field)
    ]
    others += ["--html"] if html else []
    if others:
        raise ConfigError(
            "--against audits what the statement says, and not a part of it",
            remedy="leave out " + ", ".join(others),
        )


def run_against(
    invocation: Invocation, names: Sequence[str], against: Path, *, strict: bool, as_json: bool
) -> int:
    """Compare the destination of one mirror with a statement.

    Args:
        against: the statement.
    """
    sides = the_mirror(invocation.settings(), names)
    name, statement_audit = sides.name, audit_against(against, sides)
    statement = statement_audit.statement
    passed = _report(
        invocation, name, statement_audit.verdict, statement_audit.findings, strict=strict
    )
    if as_json:
        messages.document(statement_document(statement_audit))
        return invocation.exit_code
    for line in [f"the statement of {statement.header.made_at}", *passed]:
        stdout().print(f"{name}: {line}", soft_wrap=True)
    return invocation.exit_code


def _report(
    invocation: Invocation,
    name: str,
    verdict: Verdict,
    findings: Iterable[Finding],
    *,
    strict: bool,
) -> list[str]:
    """Print what does not pass, raise the exit code, and return the lines on what does pass."""
    code = verdict.exit_code(strict=strict)
    is_told = verdict.state in {State.DIFFERS, State.FAILED}
    wrong: list[str] = []
    passed: list[str] = []
    for finding in findings:
        passes = finding.severity in ({Severity.OK} if strict else {Severity.OK, Severity.WARNING})
        (passed if passes else wrong).append(str(finding))
    (passed if is_told or not code else wrong).append(str(verdict))
    for line in wrong:
        messages.error(f"{name}: {line}")
    invocation.raise_exit_code(code)
    return passed


def _audit(sides: Sides, session: Session, request: AuditRequest) -> Audit:
    started = sides.clock.monotonic()
    audit = begin(sides, request)
    if audit.work:
        from relay_pipelines.audit import spark_job  # Spark is slow to import

        total = sum(part.size_bytes for part in audit.work)
        tag = f"relay-audit-{uuid.uuid4().hex[:12]}"
        results = spark_job.read(audit, session, tag)
        what = f"{plural(len(audit.partitions), 'topic-partition')}, level {audit.level}"
        reading = bytes_progress(f"{sides.name}: read", total, what, stderr())
        with reading as advance, closing(results):
            for size_bytes in results:
                advance(size_bytes)
    audit.seconds = sides.clock.monotonic() - started
    return audit


def report(invocation: Invocation, audit: Audit, *, as_json: bool) -> None:
    """Print what an audit found, and raise the exit code."""
    strict, copied = audit.request.strict, {tp.topic for tp in audit.partitions}
    for topic in set(audit.request.topics) - copied:
        invocation.fail(no_entries(topic, copied), audit.mirror)
    passed = _report(invocation, audit.mirror, audit.verdict, audit.findings, strict=strict)
    if as_json:
        return
    console = stdout()
    show(console, audit_table(audit))
    for line in passed:
        console.print(f"{audit.mirror}: {line}", soft_wrap=True)
    for tp, partition_audit in audit.partitions.items():
        if first := partition_audit.first_difference:
            show(console, difference_table(str(tp), first[1]))

"""The command `compare`: do two clusters hold the same, whoever has copied it?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from relay_pipelines.audit.report import difference_table
from relay_pipelines.audit.verdict import State
from relay_pipelines.compare.comparing import compare, settings_of
from relay_pipelines.compare.pairs import MOST_READINGS
from relay_pipelines.compare.report import compare_document, compare_table, group_table
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.compare.result import Compared
from relay_pipelines.errors import ConfigError
from relay_pipelines.finding import Severity
from relay_pipelines.invocation import Invocation, require_writable, the_mirror
from relay_pipelines.output import messages
from relay_pipelines.output.formatting import plural, stderr, stdout
from relay_pipelines.output.progress import bytes_progress
from relay_pipelines.output.tables import show
from relay_pipelines.protocol.clock import SystemClock

_SHOWN = 10


def run(
    invocation: Invocation,
    mirror: str | None,
    request: CompareRequest,
    *,
    html: Path | None = None,
    as_json: bool,
) -> int:
    """Compare two clusters, and return the exit code.

    Args:
        mirror: of relay.yaml; None for its only one, or for clusters that the request names.
        html: where a page is written, too.
    """
    if html is not None:
        require_writable("--html", html)
    if request.source and mirror is not None:
        raise ConfigError(
            "a mirror and two clusters are named", remedy="leave out --mirror or --source"
        )
    settings = settings_of(request) if request.source else invocation.settings()
    sides = the_mirror(settings, mirror, "a comparison is of")
    advice = "run again, or compare less with --from"
    with invocation.session(settings, advice, "compare") as session, invocation.reporting_errors():
        compared = compare(sides, request, session, _progress)
        _report(invocation, compared, as_json=as_json)
        if html is not None:
            _write_page(html, compared)
    return invocation.exit_code


def _progress(compared: Compared) -> AbstractContextManager[Callable[[int], None]]:
    total = sum(pair.size_bytes for pair in compared.pairs)
    what = plural(len(compared.pairs), "comparison")
    title = f"{compared.name}: read"
    if any(any(pair.compacts) for pair in compared.pairs):
        title += f" (compacted topics that differ up to {MOST_READINGS} times)"
    return bytes_progress(title, total, what, stderr())


def _report(invocation: Invocation, compared: Compared, *, as_json: bool) -> None:
    verdict = compared.verdict
    invocation.raise_exit_code(compared.exit_code)
    for finding in compared.findings:
        if finding.severity in {Severity.DIFFERENCE, Severity.ERROR}:
            messages.error(f"{compared.name}: {finding}")
    if as_json:
        messages.document(compare_document(compared))
        return
    console = stdout()
    show(console, compare_table(compared))
    if (groups := group_table(compared)) is not None:
        show(console, groups)
    for finding in compared.findings:
        if finding.severity in {Severity.OK, Severity.WARNING}:
            console.print(f"{compared.name}: {finding}", soft_wrap=True)
    shown = [(result, each) for result in compared.results for each in result.first.values()]
    for result, example in shown[:_SHOWN]:
        if example.shown is not None:
            show(console, difference_table(f"{result.pair.where}: {example}", example.shown))
    say = messages.error if verdict.state is not State.AGREES else messages.line
    say(f"{compared.name}: {verdict}")


def _write_page(path: Path, compared: Compared) -> None:
    from relay_pipelines.compare import page  # jinja2 is slow to import
    from relay_pipelines.output import html_page

    html_page.write(path, page.page(compared, SystemClock().now_ms()))

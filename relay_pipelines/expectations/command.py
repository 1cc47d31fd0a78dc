"""The command `expectations`: are the copied records as relay.yaml expects them?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relay_pipelines.errors import DIFFERENCE, ConfigError
from relay_pipelines.expectations import selected
from relay_pipelines.expectations.request import ExpectationsRequest
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.expectations.validation import Result, great_expectations
from relay_pipelines.invocation import Invocation, selected_mirrors
from relay_pipelines.output import messages, tables
from relay_pipelines.output.formatting import plural, stdout
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.expectations import CheckSeverity


def run(
    invocation: Invocation, names: Sequence[str], request: ExpectationsRequest, *, as_json: bool
) -> int:
    """Validate, report each expectation, and return 4 if one failed that is not a warning."""
    documents: list[dict[str, Any]] = []

    def one(session: Session, name: str, mirror: Mirror) -> None:
        clock = SystemClock()
        for found in selected.validate(session, invocation.config, name, mirror, request, clock):
            documents.append(_document(name, found.window, found.results))
            _report(invocation, name, found.window, found.results)
            if not as_json:
                _show(name, found.window, found.results)

    _each(invocation, names, one)
    if as_json:
        messages.document({"topics": documents})
    return invocation.exit_code


def docs(
    invocation: Invocation,
    names: Sequence[str],
    request: ExpectationsRequest,
    folder: Path | None,
) -> int:
    """Write Data Docs of what `run` would validate."""
    from relay_pipelines.expectations.data_docs import DataDocs

    if folder is None:
        raise ConfigError("expectations docs needs --output", remedy="name a folder")
    pages: list[DataDocs] = []

    def one(session: Session, name: str, mirror: Mirror) -> None:
        for window in selected.windows(name, mirror, request, SystemClock()):
            if not pages:
                pages.append(DataDocs(session, invocation.config, folder))
            pages[0].add(name, mirror, window)

    _each(invocation, names, one)
    for each in pages:
        each.write()
        messages.note(f"wrote {folder / 'index.html'}")
    return invocation.exit_code


def _each(
    invocation: Invocation, names: Sequence[str], one: Callable[[Session, str, Mirror], None]
) -> None:
    """Call `one` for every mirror; its error is the mirror's alone."""
    settings = invocation.settings()
    great_expectations()  # without it, nothing of this works
    with invocation.session(settings, "run again, or look at less with --topic") as session:
        for name, mirror in selected_mirrors(settings, names).items():
            with invocation.reporting_errors(name):
                one(session, name, mirror)


def _document(name: str, window: TopicWindow, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "mirror": name,
        "topic": window.topic,
        "window": window.name,
        "records": window.records,
        "expectations": [
            {
                "name": result.expectation.name,
                "side": result.expectation.side.value,
                "severity": result.expectation.severity.value,
                "blocking": result.expectation.blocking,
                "passed": result.passed,
                "result": result.what,
                "failing": result.failing,
                "sample": [dict(row) for row in result.sample],
            }
            for result in results
        ],
    }


def _show(name: str, window: TopicWindow, results: Sequence[Result]) -> None:
    console = stdout()
    title = f"{name}: {window.topic}, {window.name}: {plural(window.records, 'record')}"
    cells = [
        (
            result.expectation.name,
            result.expectation.side.value,
            "met" if result.passed else f"{result.expectation.severity}: {result.what}",
        )
        for result in results
    ]
    tables.show(console, tables.rows(title, ("expectation", "side", "result"), cells))
    for result in results:
        if result.sample:
            names = list(dict.fromkeys(column for row in result.sample for column in row))
            rows = [[str(row.get(column, "")) for column in names] for row in result.sample]
            tables.show(console, tables.rows(f"{result.expectation.name}: some", names, rows))


def _report(
    invocation: Invocation, name: str, window: TopicWindow, results: Sequence[Result]
) -> None:
    for result in results:
        if result.passed:
            continue
        line = f"{name}: {window.topic}: {result.expectation.name}: {result.what}"
        if result.expectation.severity is CheckSeverity.WARN:
            messages.warning(line)
        else:
            messages.error(line)
            invocation.raise_exit_code(DIFFERENCE)

"""The command `expectations`: are the copied records as relay.yaml expects them?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relay_pipelines.errors import DIFFERENCE, ConfigError
from relay_pipelines.expectations import selected
from relay_pipelines.expectations.request import ExpectationsRequest
from relay_pipelines.expectations.selected import TopicResults
from relay_pipelines.expectations.validation import great_expectations
from relay_pipelines.invocation import Invocation, selected_mirrors
from relay_pipelines.output import messages, tables
from relay_pipelines.output.formatting import plural, stdout
from relay_pipelines.run.session import Session
from relay_pipelines.sides import Sides


def run(
    invocation: Invocation, names: Sequence[str], request: ExpectationsRequest, *, as_json: bool
) -> int:
    """Validate, report each expectation, and return 4 if one failed that is not a warning."""
    documents: list[dict[str, Any]] = []

    def one(session: Session, sides: Sides) -> None:
        for results in selected.validate(session, invocation.config, sides, request):
            documents.append(_document(sides.name, results))
            for line, warns in results.failed:
                (messages.warning if warns else messages.error)(f"{sides.name}: {line}")
            if results.problems:
                invocation.raise_exit_code(DIFFERENCE)
            if not as_json:
                _show(sides.name, results)

    _each(invocation, names, one)
    if as_json:
        messages.document({"topics": documents})
    return invocation.exit_code


def docs(
    invocation: Invocation, names: Sequence[str], request: ExpectationsRequest, folder: Path | None
) -> int:
    """Write Data Docs of what `run` would validate."""
    from relay_pipelines.expectations.data_docs import DataDocs

    if folder is None:
        raise ConfigError("expectations docs needs --output", remedy="name a folder")
    pages: list[DataDocs] = []

    def one(session: Session, sides: Sides) -> None:
        for window in selected.windows(sides, request):
            if not pages:
                pages.append(DataDocs(session, invocation.config, folder))
            pages[0].add(sides, window)

    _each(invocation, names, one)
    for page in pages:
        page.write()
        messages.note(f"wrote {folder / 'index.html'}")
    return invocation.exit_code


def _each(
    invocation: Invocation, names: Sequence[str], one: Callable[[Session, Sides], None]
) -> None:
    """Call `one` for every mirror; its error is the mirror's alone."""
    settings = invocation.settings()
    great_expectations()  # without it, nothing of this works
    with invocation.session(settings, "run again, or look at less with --topic") as session:
        for name, mirror in selected_mirrors(settings, names).items():
            with invocation.reporting_errors(name):
                one(session, Sides(name, mirror))


def _document(name: str, of_topic: TopicResults) -> dict[str, Any]:
    return {
        "mirror": name,
        "topic": of_topic.window.topic,
        "window": of_topic.window.name,
        "records": of_topic.window.records,
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
            for result in of_topic.results
        ],
    }


def _show(name: str, of_topic: TopicResults) -> None:
    console, window = stdout(), of_topic.window
    title = f"{name}: {window.topic}, {window.name}: {plural(window.records, 'record')}"
    cells = [
        (
            result.expectation.name,
            result.expectation.side.value,
            "met" if result.passed else f"{result.expectation.severity}: {result.what}",
        )
        for result in of_topic.results
    ]
    tables.show(console, tables.rows(title, ("expectation", "side", "result"), cells))
    for result in of_topic.results:
        if result.sample:
            names = result.columns
            rows = [[str(row.get(column, "")) for column in names] for row in result.sample]
            tables.show(console, tables.rows(f"{result.expectation.name}: some", names, rows))

"""The command `expectations`: are the copied records as relay.yaml expects them?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from relay_pipelines.cli.context import Invocation, selected_mirrors
from relay_pipelines.console import messages, tables
from relay_pipelines.console.formatting import plural, stdout
from relay_pipelines.errors import DIFFERENCE, INTERRUPTED, ConfigError
from relay_pipelines.expectations.topic_window import TopicWindow, from_ledger
from relay_pipelines.expectations.validation import Result, great_expectations, validate
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.session import Session
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Mirror, Settings
from relay_pipelines.settings.config_types import LongDuration
from relay_pipelines.settings.expectations import Severity
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.state.ledger_reader import read_ledger


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options that say what to look at, as typed."""

    mirrors: Sequence[str]
    topic: str | None
    window: str | None
    last: str | None

    @property
    def last_ms(self) -> int:
        """The duration of `--last`.

        Raises:
            ConfigError: it is no duration.
        """
        try:
            return int(TypeAdapter(LongDuration).validate_python(self.last))
        except ValidationError:
            raise ConfigError(
                f"--last: {self.last!r} is no duration", remedy="write 30m, 1h or 2d"
            ) from None


def run(invocation: Invocation, wanted: Wanted, *, as_json: bool) -> int:
    """Validate, report each expectation, and return 4 if one failed that is not a warning."""
    documents: list[dict[str, Any]] = []

    def one(session: Session, name: str, mirror: Mirror, window: TopicWindow) -> None:
        clock = SystemClock()
        results = validate(session, invocation.config, name, mirror, window, clock)
        documents.append(_document(name, window, results))
        _report(invocation, name, window, results)
        if not as_json:
            _show(name, window, results)

    _each(invocation, wanted, one)
    if as_json:
        messages.document({"topics": documents})
    return invocation.exit_code


def docs(invocation: Invocation, wanted: Wanted, folder: Path | None) -> int:
    """Write Data Docs of what `run` would validate."""
    from relay_pipelines.expectations.data_docs import DataDocs

    if folder is None:
        raise ConfigError("expectations docs needs --output", remedy="name a folder")
    pages: list[DataDocs] = []

    def one(session: Session, name: str, mirror: Mirror, window: TopicWindow) -> None:
        if not pages:
            pages.append(DataDocs(session, invocation.config, folder))
        pages[0].add(name, mirror, window)

    _each(invocation, wanted, one)
    for each in pages:
        each.write()
        messages.note(f"wrote {folder / 'index.html'}")
    return invocation.exit_code


def _each(
    invocation: Invocation,
    wanted: Wanted,
    one: Callable[[Session, str, Mirror, TopicWindow], None],
) -> None:
    """Call `one` for every topic with expectations in what is wanted."""
    if (wanted.window is None) == (wanted.last is None):
        raise ConfigError("give either --window or --last", remedy="such as --last 1h")
    settings = invocation.settings()
    great_expectations()  # without it, nothing of this works
    with _session(invocation, settings) as session:
        for name, mirror in selected_mirrors(settings, wanted.mirrors).items():
            with invocation.reporting_errors(name):
                for window in _windows(name, mirror, wanted):
                    one(session, name, mirror, window)


@contextmanager
def _session(invocation: Invocation, settings: Settings) -> Iterator[Session]:
    stop = StopSignal()
    session = Session(settings.spark, stop, verbose=invocation.debug)
    with stop.heard():
        try:
            yield session
        except KeyboardInterrupt:
            invocation.raise_exit_code(INTERRUPTED)
            messages.error("interrupted; run again, or look at less with --topic")
        finally:
            session.stop()


def _windows(name: str, mirror: Mirror, wanted: Wanted) -> list[TopicWindow]:
    """Return what to look at in a mirror, from its ledger.

    Raises:
        ConfigError: the ledger has nothing of it, or no expectations are configured for it.
    """
    clock = SystemClock()
    since_ms = clock.now_ms() - wanted.last_ms if wanted.last else None
    found = read_ledger(mirror.destination_cluster, name, mirror.copy_options, clock, since_ms)
    entries = [record.entry for record in found]
    if wanted.window and not any(entry.window == wanted.window for entry in entries):
        windows = sorted({entry.window for entry in entries} - {""})[-10:]
        raise ConfigError(
            f"the ledger has no entries of the window {wanted.window!r}",
            remedy=nearest(wanted.window, windows, "windows")
            if windows
            else "see `relay ledger` for what it has",
        )
    title = wanted.window or f"the last {wanted.last}"
    copied = from_ledger(
        title,
        entries,
        lambda entry: (
            wanted.topic in {None, entry.source.topic_partition.topic}
            and wanted.window in {None, entry.window}
            and (since_ms is None or entry.committed_at_ms >= since_ms)
        ),
    )
    if not copied:
        of_topic = f" of the source topic {wanted.topic!r}" if wanted.topic else ""
        raise ConfigError(
            f"the ledger has no copies{of_topic} in {title}",
            remedy="see `relay ledger` for what it has",
        )
    expecting = [window for window in copied if mirror.expectations_of(window.topic)]
    if not expecting:
        raise ConfigError(
            "no expectations are configured for the topics that were copied",
            remedy="add expectations to the mirror in relay.yaml",
        )
    return expecting


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
        if result.expectation.severity is Severity.WARN:
            messages.warning(line)
        else:
            messages.error(line)
            invocation.raise_exit_code(DIFFERENCE)

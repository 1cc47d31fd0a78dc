"""Which chunks expectations look at without Dagster: those of a window, or of the last hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay_pipelines.audit.coverage import require_window
from relay_pipelines.errors import ConfigError
from relay_pipelines.expectations import validation
from relay_pipelines.expectations.request import ExpectationsRequest
from relay_pipelines.expectations.topic_window import TopicWindow, from_ledger
from relay_pipelines.expectations.validation import Result, great_expectations
from relay_pipelines.ledger.committed import entries_back_to, entries_since
from relay_pipelines.ledger.reader import read_checkpoints
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.settings.expectations import CheckSeverity
from relay_pipelines.sides import Sides


@dataclass(frozen=True, slots=True)
class TopicResults:
    """What the expectations of one topic have found."""

    window: TopicWindow
    results: Sequence[Result]

    @property
    def problems(self) -> list[str]:
        """A line for each expectation that failed and is not a warning."""
        return [line for line, warns in self.failed if not warns]

    @property
    def failed(self) -> list[tuple[str, bool]]:
        """A line for each expectation that failed, and whether that is only a warning."""
        return [
            (
                f"{self.window.topic}: {result.expectation.name}: {result.what}",
                result.expectation.severity is CheckSeverity.WARN,
            )
            for result in self.results
            if not result.passed
        ]


def windows(sides: Sides, request: ExpectationsRequest) -> list[TopicWindow]:
    """Return what to look at in a mirror, from its ledger, a value per topic.

    Of the last hours, also the topics of which nothing was copied: an expectation may be that there
    is something.

    Raises:
        ConfigError: the ledger has nothing of it, or no expectations are configured for it.
    """
    now_ms = sides.clock.now_ms()
    since_ms = None if request.last_ms is None else now_ms - request.last_ms
    of_topic = None if request.topic is None else [request.topic]
    if since_ms is None:
        entries = entries_back_to(sides, of_topic, [request.window or ""])
    else:
        entries = entries_since(sides, of_topic, since_ms)
    require_window(request.window, entries)
    copied = from_ledger(
        request.title, entries, lambda entry: request.window in {None, entry.window}
    )
    if since_ms is not None:
        topics = {window.topic for window in copied}
        copied += [
            TopicWindow(topic, request.title, (), now_ms)
            for topic in _begun(sides)
            if topic not in topics and request.topic in {None, topic}
        ]
    if not copied:
        of = f" of the source topic {request.topic!r}" if request.topic else ""
        raise ConfigError(
            f"the ledger has no copies{of} in {request.title}",
            remedy="see `relay ledger` for what it has",
        )
    expecting = [window for window in copied if sides.mirror.expectations_of(window.topic)]
    if not expecting:
        raise ConfigError(
            "no expectations are configured for the topics that were copied",
            remedy="add expectations to the mirror in relay.yaml",
        )
    return expecting


def validate(
    session: Callable[[], Any], config: Path, sides: Sides, request: ExpectationsRequest
) -> list[TopicResults]:
    """Validate what is asked for; an expectation that cannot run fails.

    Args:
        config: the relay.yaml, beside which suites are.

    Raises:
        ConfigError: as of `windows`, or Great Expectations is not installed.
    """
    great_expectations()
    sides = sides.seen()
    return [
        TopicResults(window, validation.validate(session, config, sides, window))
        for window in windows(sides, request)
    ]


def _begun(sides: Sides) -> list[str]:
    """Return the source topics that the mirror has begun and still selects."""
    snapshot = read_checkpoints(sides)
    configured = sides.mirror.topics
    topics = {*snapshot.starts, *(tp.topic for tp in snapshot.checkpoints)} - {""}
    decisions = select(topics, configured.allow, configured.deny)
    return [decision.topic for decision in decisions if decision.included]

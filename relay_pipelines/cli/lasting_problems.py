"""What keeps failing from round to round: one line when it begins, and one when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from relay_pipelines.console import messages
from relay_pipelines.console.formatting import seconds
from relay_pipelines.errors import FencedError, RelayError, error_class
from relay_pipelines.model import Status, TopicPartition
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run.result import RunResult


@dataclass(frozen=True, slots=True)
class Problem:
    """A failure of one round.

    Args:
        line: what happened, where, and what to do.
    """

    kind: type[RelayError]
    topic_partition: TopicPartition | None
    line: str

    @property
    def key(self) -> tuple[str, ...]:
        """What stays the same while it lasts; messages may change, such as the offsets in them.

        An outage on one side is one problem, whatever it looks like and however many
        topic-partitions it stops.
        """
        if self.kind.retryable:
            return (self.kind.side or self.kind.__name__,)
        if self.kind is FencedError or self.topic_partition is None:
            return (self.kind.__name__,)
        return (self.kind.__name__, str(self.topic_partition))


def problem(error: RelayError) -> Problem:
    """Return the problem that an error is."""
    return Problem(type(error), error.topic_partition, str(error))


def problems(result: RunResult) -> Iterator[Problem]:
    """Yield the problems of a run."""
    yield from map(problem, result.errors)
    for outcome in result.outcomes:
        if outcome.status is not Status.DONE:
            kind = error_class(outcome.error_kind)
            yield Problem(kind, outcome.range.topic_partition, outcome.error)


class LastingProblems:
    """The problems of one mirror that last, and their lines on stderr.

    Args:
        prefix: of every line.
    """

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._lasting: dict[tuple[str, ...], tuple[Problem, float]] = {}

    def update(self, found: Iterable[Problem], *, complete: bool) -> None:
        """Report what is new, and what is over.

        Args:
            complete: whether the round reached its end, so that what it did not find is over.
        """
        now = self._clock.monotonic()
        current: dict[tuple[str, ...], Problem] = {}
        for one in found:
            current.setdefault(one.key, one)
        for key, one in current.items():
            if key not in self._lasting:
                self._lasting[key] = one, now
                messages.error(f"{self._prefix}{one.line}")
        if complete:
            for key in self._lasting.keys() - current.keys():
                one, since = self._lasting.pop(key)
                what, _, _ = one.line.partition("; ")
                messages.note(f"{self._prefix}over after {seconds(now - since)}: {what}")

    @property
    def exit_code(self) -> int:
        """The highest exit code of what lasts; 0 if nothing does."""
        return max((one.kind.exit_code for one, _ in self._lasting.values()), default=0)

"""What keeps failing from round to round: one line when it begins, and one when it is over."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from relay_pipelines.errors import FencedError, RelayError, error_class
from relay_pipelines.model import Status, TopicPartition
from relay_pipelines.output import messages
from relay_pipelines.output.formatting import seconds
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run.result import RunResult

_SHOWN = 3  # of each kind, when many begin or end in one round
_QUOTED = re.compile(r"'[^']*'")

Key = tuple[str, str]
"""The kind of a problem, and where it is; empty if it concerns a whole side."""


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
    def key(self) -> Key:
        """What stays the same while it lasts; messages may change, such as the offsets in them.

        What can be retried looks different from round to round: its side stands for its kind. A
        fight with another deployment is one problem, however many topic-partitions it stops.
        """
        if self.kind is FencedError:
            return self.kind.__name__, ""
        kind = (self.kind.retryable and self.kind.side) or self.kind.__name__
        # errors without a topic-partition quote the topics that they are about
        where = self.topic_partition or ", ".join(_QUOTED.findall(self.line))
        return kind, str(where)

    @property
    def is_outage(self) -> bool:
        """Whether it may be the cause of others of its kind."""
        return self.kind.retryable and not self.key[1]


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
        self._lasting: dict[Key, tuple[Problem, float]] = {}
        self._symptoms: dict[Key, set[Key]] = {}

    def update(self, found: Iterable[Problem], *, complete: bool) -> None:
        """Report what is new, and what is over.

        Args:
            complete: whether the round reached its end, so that what it did not find is over.
        """
        now = self._clock.monotonic()
        current: dict[Key, Problem] = {}
        for one in found:
            current.setdefault(one.key, one)
        current = self._without_symptoms(current, complete=complete)
        new = {key: one for key, one in current.items() if key not in self._lasting}
        self._lasting |= {key: (one, now) for key, one in new.items()}
        for line in _lines({key: one.line for key, one in new.items()}, "and"):
            messages.error(f"{self._prefix}{line}")
        if complete:
            self._end({*self._lasting} - current.keys(), now)

    def _without_symptoms(
        self, found: Mapping[Key, Problem], *, complete: bool
    ) -> dict[Key, Problem]:
        """Return the problems without what an outage explains.

        What begins to fail beside an outage is part of it; it gets one more round to recover.
        """
        current = dict(found)
        outages = {key for key, one in found.items() if one.is_outage}
        for outage in outages | (self._symptoms.keys() if complete else set()):
            if outage in outages:
                same = {key for key in found if key[0] == outage[0] and key != outage}
                symptoms = self._symptoms[outage] = same - self._lasting.keys()
            elif symptoms := self._symptoms.pop(outage) & found.keys():
                current[outage] = self._lasting[outage][0]
            for key in symptoms:
                del current[key]
        return current

    def _end(self, keys: set[Key], now: float) -> None:
        lines = {}
        for key in [key for key in self._lasting if key in keys]:
            one, since = self._lasting.pop(key)
            what, _, _ = one.line.partition("; ")
            lines[key] = f"over after {seconds(now - since)}: {what}"
        for line in _lines(lines, "over, too:"):
            messages.note(f"{self._prefix}{line}")

    @property
    def exit_code(self) -> int:
        """The highest exit code of what lasts; 0 if nothing does."""
        return max((one.kind.exit_code for one, _ in self._lasting.values()), default=0)


def _lines(lines: Mapping[Key, str], more: str) -> Iterator[str]:
    """Yield the first lines of each kind, and one that counts the others of it."""
    kinds: dict[str, list[Key]] = defaultdict(list)
    for key in lines:
        kinds[key[0]].append(key)
    for keys in kinds.values():
        shown = _SHOWN if len(keys) > _SHOWN + 1 else len(keys)
        others = keys[shown:]
        yield from (lines[key] for key in keys[:shown])
        if others:
            places = ", ".join(where for _, where in others[:_SHOWN])
            places += ", ..." if len(others) > _SHOWN else ""
            yield f"{more} {len(others)} more problems of this kind: {places}"

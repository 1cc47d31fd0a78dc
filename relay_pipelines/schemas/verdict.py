"""What a look at the schemas of copied records has found: one value with one wording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from relay_pipelines.errors import DIFFERENCE
from relay_pipelines.schemas.read_ids import Place, TopicIds

_FAILED = 1
_SHOWN = 3


class State(StrEnum):
    """What was found.

    `NO_IDS`: records were read, and none names a schema. `NOT_VERIFIED`: some do, and nobody could
    look at all of them. `NOTHING`: there are no records.
    """

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_VERIFIED = "not verified"
    NO_IDS = "no ids found"
    NOTHING = "nothing to verify"


@dataclass(frozen=True, slots=True)
class IdProblem:
    """An id that does not resolve to the same schema, or that nobody could resolve.

    Args:
        uses: how many keys and values name it.
    """

    id: int
    first: Place
    uses: int
    why: str

    def __str__(self) -> str:
        return f"id {self.id} of {self.first}: {self.why}"


@dataclass(frozen=True, slots=True)
class TopicVerdict:
    """What was found in a topic, or in several.

    Args:
        records: that were read.
        with_ids: of them, those whose key or value has an id.
        ids: that were found.
        same: of them, those that resolve to the same schema at both registries.
        differing: those that do not.
        unknown: those that nobody could resolve, or compare.
        left_out: records that a sample did not read.
        not_looked_at: records, by the reason.
    """

    topic: str
    records: int = 0
    with_ids: int = 0
    ids: frozenset[int] = frozenset()
    same: frozenset[int] = frozenset()
    differing: Sequence[IdProblem] = ()
    unknown: Sequence[IdProblem] = ()
    left_out: int = 0
    not_looked_at: Counter[str] = field(default_factory=Counter)
    topics: int = 1

    @property
    def state(self) -> State:
        """The worst of what was found."""
        if self.differing:
            return State.DIFFERS
        if self.unknown or self.not_looked_at.total():
            return State.NOT_VERIFIED
        if self.ids:
            return State.AGREES
        return State.NO_IDS if self.records else State.NOTHING

    @property
    def exit_code(self) -> int:
        """Of the command; a check passes with 0 alone."""
        if self.state is State.DIFFERS:
            return DIFFERENCE
        return 0 if self.state is State.AGREES else _FAILED

    def __str__(self) -> str:
        if self.state is State.NOTHING:
            return f"{self.state}: no record was copied"
        of_topics = f" of {self.topics:,} topics" if self.topics > 1 else ""
        ids = f"{len(self.same):,} of {len(self.ids):,} ids are the same at both registries"
        records = f"in {self.with_ids:,} of {self.records:,} records{of_topics}"
        parts = [f"{self.state}: {ids}, {records}"]
        parts += [str(problem) for problem in (*self.differing, *self.unknown)[:_SHOWN]]
        more = len(self.differing) + len(self.unknown) - _SHOWN
        parts += [f"{more:,} more ids"] if more > 0 else []
        parts += [
            f"not looked at: {number:,} records ({why})"
            for why, number in self.not_looked_at.items()
            if number
        ]
        parts += [f"the sample leaves out {self.left_out:,} records"] if self.left_out else []
        return "; ".join(parts)


def verdict(found: TopicIds, problems: Iterable[tuple[IdProblem, bool]]) -> TopicVerdict:
    """Return the verdict on a topic.

    Args:
        problems: of its ids, and whether each is a difference.
    """
    problems = list(problems)
    ids = frozenset(found.ids)
    return TopicVerdict(
        found.topic,
        found.records,
        found.with_ids,
        ids,
        ids - {problem.id for problem, _ in problems},
        [problem for problem, differs in problems if differs],
        [problem for problem, differs in problems if not differs],
        found.left_out,
        found.not_looked_at,
    )


def total(name: str, verdicts: Sequence[TopicVerdict]) -> TopicVerdict:
    """Return the verdict on several topics; an id is one, however many topics name it."""
    counts: Counter[str] = Counter()
    for each in verdicts:
        counts += each.not_looked_at
    return TopicVerdict(
        name,
        sum(each.records for each in verdicts),
        sum(each.with_ids for each in verdicts),
        frozenset().union(*(each.ids for each in verdicts)),
        frozenset().union(*(each.same for each in verdicts)),
        _each_once(problem for each in verdicts for problem in each.differing),
        _each_once(problem for each in verdicts for problem in each.unknown),
        sum(each.left_out for each in verdicts),
        counts,
        len(verdicts),
    )


def _each_once(problems: Iterable[IdProblem]) -> list[IdProblem]:
    return list({problem.id: problem for problem in problems}.values())

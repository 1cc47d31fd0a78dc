"""The gates of a move: what must hold before a cut, and what a look has found of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from relay_pipelines.errors import RelayError
from relay_pipelines.finding import Finding, Kind, Severity
from relay_pipelines.offsets.positions import Outcome, State

WAY_BACK = "way back"
"""The gate of `back`; the others are those of `fence` and `cut`."""
GATES = (
    *("topics", "writers", "groups", "source groups", "destination groups"),
    *("schemas", "fence", "acls", WAY_BACK),
)
"""Their names, in the order in which a rehearsal looks at them."""


class GateState(StrEnum):
    """What was found."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_SEEN = "could not be looked at"


@dataclass(frozen=True, slots=True)
class Gate:
    """One of them.

    Args:
        saw: what was looked at, in words.
        findings: errors if it fails, and warnings.
        is_seen: whether anybody could look.
    """

    name: str
    saw: str = ""
    findings: Sequence[Finding] = ()
    is_seen: bool = True

    @property
    def reasons(self) -> Sequence[Finding]:
        """Why it does not hold: one at least, unless it does."""
        failing = [finding for finding in self.findings if finding.exit_code]
        if failing or self.is_seen:
            return failing
        return [fails("", "its look failed", "see what else failed, and repeat the step")]

    @property
    def state(self) -> GateState:
        """A gate that could not be looked at does not hold."""
        if not self.is_seen:
            return GateState.NOT_SEEN
        return GateState.FAILS if self.reasons else GateState.HOLDS

    @property
    def document(self) -> dict[str, Any]:
        """The gate as JSON."""
        return {
            "gate": self.name,
            "state": str(self.state),
            "saw": self.saw,
            "findings": [finding.document for finding in self.findings],
        }


def looked(name: str, look: Callable[[], Gate]) -> Gate:
    """Return what a look finds; an error is a gate that could not be looked at."""
    try:
        return look()
    except RelayError as error:
        return Gate(name, findings=(Finding.of(error),), is_seen=False)


def not_moved(applied: Iterable[Outcome], where: str, again: str) -> list[Finding]:
    """Return why groups have not moved to where they go on.

    Args:
        where: they have to be stopped.
        again: the command to repeat then.
    """
    return [
        fails(
            f"group {each.answer.position.group}: {each.answer.position.topic_partition}",
            each.why,
            f"stop it {where}, or leave it out with --without-group {each.answer.position.group};"
            f" then repeat `{again}`",
        )
        for each in applied
        if each.state is State.REFUSED
    ]


def fails(where: str, text: str, remedy: str) -> Finding:
    """Return why a gate does not hold."""
    return Finding(Kind.NOT_READY, where, Severity.ERROR, text, remedy)

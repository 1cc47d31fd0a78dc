"""Offsets that consumers have reached on one side, and where they go on at the other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relay_pipelines.errors import DIFFERENCE, RelayError
from relay_pipelines.model import TopicPartition


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """What a consumer reads next.

    Args:
        group: that has committed it; empty if it is somebody's who keeps offsets elsewhere.
        metadata: what the consumer has committed beside the offset.
    """

    topic_partition: TopicPartition
    offset: int
    group: str = ""
    metadata: str = ""


class Exactness(StrEnum):
    """How sure an answer is."""

    EXACT = "exact"
    """The consumer reads every record that it has not read, and none twice."""
    REREADS = "re-reads"
    """It reads every record that it has not read, and some twice."""
    CANNOT = "cannot"
    """Nobody can tell, or it would miss records."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a consumer goes on.

    Args:
        position: that was asked about.
        to: the topic-partition of the other side; None if there is none.
        offset: its next offset there; None if there is no answer.
        rereads: how many records at most it reads twice.
        why: why there is no answer, or no exact one.
        nearest: the offset to use if somebody accepts what `why` says; None if there is none.
        notes: what the operator may want to know about an answer.
        topic_id: that the topic of `to` had; empty if it is not known.
    """

    position: ConsumerPosition
    to: TopicPartition | None
    offset: int | None
    rereads: int = 0
    why: str = ""
    nearest: int | None = None
    notes: tuple[str, ...] = ()
    topic_id: str = ""

    @property
    def exactness(self) -> Exactness:
        """How sure it is."""
        if self.offset is None:
            return Exactness.CANNOT
        return Exactness.REREADS if self.rereads else Exactness.EXACT

    @property
    def says(self) -> str:
        """The answer in words."""
        if self.offset is None:
            return f"cannot, because {self.why}"
        return f"re-reads at most {self.rereads:,}: {self.why}" if self.rereads else "exact"


class State(StrEnum):
    """What became of an answer, or what a look at the records around it has found."""

    COMMITTED = "committed"
    SAME = "same"
    """The group was there already; or the records are the same."""
    WOULD = "would be committed"
    REFUSED = "refused"
    DIFFERS = "differs"
    NOT_COMPARED = "not compared"


_EXIT_CODES = {State.REFUSED: 1, State.NOT_COMPARED: 1, State.DIFFERS: DIFFERENCE}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one answer for a group, or what was found about it.

    Args:
        why: it was refused, differs, or was not compared.
        error: of a coordinator, which refused it.
    """

    answer: Answer
    state: State
    why: str = ""
    error: RelayError | None = None

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return _EXIT_CODES.get(self.state, 0)

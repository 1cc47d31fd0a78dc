"""Which runs copy nothing more: those that have said so at their end.

A run that was killed says nothing. Who finds its commits waits until nothing has moved for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MOST = 100  # `relay run` by a timer has another run each time


@dataclass(frozen=True, slots=True)
class RunEnd:
    """That a run copies nothing more.

    Args:
        deployment: that started it: a Dagster, or a command; no other one has this id.
        at_ms: when it said so; what it commits later, it has not ended before.
        goes_on: whether its deployment may start other runs.
    """

    deployment: str
    at_ms: int
    goes_on: bool


RunEnds = Mapping[str, RunEnd]
"""By the id of the run."""


def is_over(ends: RunEnds, run_id: str, committed_at_ms: int, deployment: str = "") -> bool:
    """Whether nobody has to wait for a run that has committed.

    That is so if its deployment has ended, or if it is the own one. The end of a run alone says
    nothing where another one of its deployment follows.

    Args:
        committed_at_ms: when it committed last.
        deployment: the own one.
    """
    end = ends.get(run_id)
    if end is None or committed_at_ms > end.at_ms:
        return False
    if end.deployment == deployment:
        return True
    return any(
        each.deployment == end.deployment and not each.goes_on and each.at_ms >= end.at_ms
        for each in ends.values()
    )


def with_end(ends: RunEnds, run_id: str, end: RunEnd) -> dict[str, RunEnd]:
    """Return the ends with one more, without the oldest of very many."""
    newest = sorted({**ends, run_id: end}.items(), key=lambda pair: -pair[1].at_ms)
    return dict(newest[:_MOST])

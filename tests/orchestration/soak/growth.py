"""How fast a measured series grows, and whether that is within its limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, groupby
from statistics import median
from typing import NamedTuple

_DAY_SECONDS = 86_400.0
_SESSION_SECONDS = 900.0


class Point(NamedTuple):
    """A sample at a time, or a number of windows; growth across lives of a process is none."""

    x: float
    value: float
    life: int = 0


class Per(StrEnum):
    """The unit of a growth."""

    DAY = "a day"
    SESSION = "in a session of 15 min"
    MINUTE = "a minute"
    WINDOW = "a window"

    @property
    def factor(self) -> float:
        """How many steps of x it has."""
        steps = {Per.DAY: _DAY_SECONDS, Per.SESSION: _SESSION_SECONDS, Per.MINUTE: 60.0}
        return steps.get(self, 1.0)

    @property
    def least(self) -> float:
        """The least span of x in one life from which growth is judged."""
        return {Per.DAY: 600.0, Per.SESSION: 120.0, Per.MINUTE: 100.0, Per.WINDOW: 60.0}[self]

    @property
    def settled(self) -> float:
        """How much of x at the start of a life is left out: imports, caches, connections."""
        return {Per.DAY: 600.0, Per.SESSION: 60.0, Per.MINUTE: 0.0, Per.WINDOW: 0.0}[self]


class Verdict(StrEnum):
    """What a growth is."""

    FLAT = "within"
    GROWS = "**above**"
    SHORT = "too short to judge"


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a series in the second half of a run.

    Args:
        first, last: medians of a tenth of the points, at the beginning and at the end.
        slope: per `per`; None if no life of the process was long enough.
        limit: the most that `slope` may be.
    """

    first: float
    last: float
    slope: float | None
    limit: float
    per: Per

    @property
    def verdict(self) -> Verdict:
        """Whether the limit is kept."""
        if self.slope is None:
            return Verdict.SHORT
        return Verdict.FLAT if self.slope <= self.limit else Verdict.GROWS


def growth(points: Sequence[Point], since: float, limit: float, per: Per) -> Growth:
    """Judge a series from `since` on by Theil and Sen's slope: peaks and a step do not count."""
    recent = [point for point in points if point.x >= since]
    tenth = max(1, len(recent) // 10)
    first, last = (
        median(point.value for point in part) if part else 0.0
        for part in (recent[:tenth], recent[-tenth:])
    )
    slopes: list[float] = []
    for life in _lives(points):
        own = [point for point in life if point.x >= max(since, life[0].x + per.settled)]
        if own and own[-1].x - own[0].x >= per.least:
            slopes += [
                (after.value - before.value) / (after.x - before.x)
                for before, after in combinations(own, 2)
                if after.x > before.x
            ]
    slope = median(slopes) * per.factor if slopes else None
    return Growth(first, last, slope, limit, per)


def _lives(points: Sequence[Point]) -> list[list[Point]]:
    ordered = sorted(points, key=lambda point: (point.life, point.x))
    return [list(life) for _, life in groupby(ordered, key=lambda point: point.life)]

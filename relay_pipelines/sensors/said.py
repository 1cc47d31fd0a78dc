"""What sensors have reported, to tell what is to be reported again; their cursors."""

import math
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TypeVar

from relay_pipelines.checks.other_deployments import Foreign
from relay_pipelines.formats import Format
from relay_pipelines.orchestration.lane import Lane

DELETED = "deleted"
"""The mark of a topic that the source has deleted, or never had: nothing of it waits."""


@dataclass(slots=True)
class Said:
    """What was reported of some things: it is due again when it changes, or after a while.

    Args:
        marks: of each thing by its key, what was reported, in short, and when.
    """

    marks: dict[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def at(self) -> float:
        """When something was reported last; 0 if nothing was."""
        return max((at for _, at in self.marks.values()), default=0.0)

    def due(self, key: str, mark: str, now: float, repeat: float = math.inf) -> bool:
        """Whether something is to be reported; if so, it counts as reported.

        Args:
            mark: another one than the last is due at once. An empty one is not stored: what was
                never reported counts as empty.
            repeat: seconds after which the same is due again.
        """
        last, at = self.marks.pop(key, ("", now))
        is_due = mark != last or now - at >= repeat
        if mark:
            self.marks[key] = mark, now if is_due else at
        return is_due

    def keep(self, keys: Container[str]) -> None:
        """Forget all others."""
        self.marks = {key: mark for key, mark in self.marks.items() if key in keys}


@dataclass(slots=True)
class Cursor:
    """What the next tick must know of a lane.

    Args:
        checks: what its checks have said, and the turn over its topics.
        topics: what `lag_target` has said of them, but that a topic meets it.
        known_at: when the clusters answered last.
        lag_seconds: how old the oldest record was when `lag` was reported.
        foreign: runs of other deployments.
        looked: the last topic that had its turn.
        left: how many topics have theirs before all rest.
    """

    checks: Said = field(default_factory=Said)
    topics: Said = field(default_factory=Said)
    known_at: float = 0.0
    lag_seconds: float = 0.0
    foreign: dict[str, Foreign] = field(default_factory=dict)
    looked: str = ""
    left: int = 0

    def is_deleted(self, topic: str) -> bool:
        """Whether the source had no such topic at the last tick."""
        return self.topics.marks.get(topic, ("",))[0] == DELETED

    def is_unknown(self, lane: Lane, now: float) -> bool:
        """Whether the lag has not been known for longer than its target."""
        return (now - self.known_at) * 1000 > lane.window.lag_target


@dataclass(slots=True)
class MirrorCursor:
    """What the next tick of a planner must know.

    Args:
        lanes: by name.
        line: what the last tick that looked has said, if nothing was to be done; else empty.
    """

    lanes: dict[str, Cursor] = field(default_factory=dict)
    line: str = ""

    @property
    def at(self) -> float:
        """When a tick has looked last; 0 if none has."""
        return max((cursor.known_at for cursor in self.lanes.values()), default=0.0)

    def of(self, lane: Lane) -> Cursor:
        """The cursor of a lane; an empty one at its first tick."""
        return self.lanes.get(lane.name, Cursor())


T = TypeVar("T", Said, MirrorCursor)


def recalled(stored: Format, kind: type[T], text: str | None, now: float) -> T:
    """Return the cursor of a sensor; an empty one at the first tick.

    What cannot be read, as of another version, counts as nothing: all is reported again. So does
    what a clock that was ahead has stored: nothing of it would be due until that time.
    """
    cursor = stored.recalled(kind, text)
    return kind() if cursor.at > now else cursor

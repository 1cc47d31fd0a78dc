"""What a planner remembers from tick to tick."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from relay_pipelines.checks.other_deployments import Foreign
from relay_pipelines.orchestration.lane import Lane


@dataclass(slots=True)
class Cursor:
    """What was reported last of a lane.

    Args:
        lag_seconds: how old the oldest record was.
        missing: topics that are missing or have no asset, each with which of the two.
        foreign: runs of other deployments.
        foreign_at: when they were reported.
        held: topics of which a guard holds something back.
        late: topics that miss the lag target.
        topics: how many topics had an asset.
        source: the last source topic at which a tick looked.
        known_at: when the clusters answered last.
    """

    lag_passed: bool | None = None
    lag_at: float = 0.0
    lag_seconds: float = 0.0
    missing: list[str] | None = None
    foreign: dict[str, Foreign] | None = None
    foreign_at: float = 0.0
    held: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    topics: int = 0
    source: str = ""
    known_at: float = 0.0

    def of_tick(self, lane: Lane, now: float) -> "Cursor":
        """The cursor of a tick in which the clusters answer.

        After a time in which the lag was reported as unknown, all of it is reported anew.
        """
        if self.is_unknown(lane, now):
            return replace(self, lag_passed=None, late=[], topics=0, known_at=now)
        return replace(self, known_at=now)

    def is_unknown(self, lane: Lane, now: float) -> bool:
        """Whether the lag has not been known for longer than its target."""
        return (now - self.known_at) * 1000 > lane.window.lag_target


def _cursor(foreign: Mapping[str, Sequence[Any]] | None = None, **others: Any) -> Cursor:
    found = None if foreign is None else {run: Foreign(*each) for run, each in foreign.items()}
    return Cursor(foreign=found, **others)


@dataclass(slots=True)
class MirrorCursor:
    """What was reported last of a mirror.

    Args:
        lanes: by name.
        denied: topics with an asset that are no longer mirrored.
    """

    lanes: dict[str, Cursor] = field(default_factory=dict)
    denied: list[str] = field(default_factory=list)

    def of(self, lane: Lane) -> Cursor:
        """What was reported of a lane; nothing at its first tick."""
        return self.lanes.get(lane.name, Cursor())

    @staticmethod
    def load(text: str | None) -> "MirrorCursor":
        """Return what `dump` stored; nothing at the first tick."""
        found = json.loads(text) if text else {"lanes": {}}
        lanes = {lane: _cursor(**values) for lane, values in found.pop("lanes").items()}
        return MirrorCursor(lanes, **found)

    @property
    def looked_at(self) -> float:
        """When the last tick looked at all lanes; 0 if none has."""
        return min((cursor.known_at for cursor in self.lanes.values()), default=0.0)

    def dump(self) -> str:
        """Return it as Dagster stores it."""
        return json.dumps(asdict(self))

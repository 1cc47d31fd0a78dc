"""What a planner remembers from tick to tick."""

import json
from dataclasses import asdict, dataclass, field, replace

from relay_pipelines.lanes.lane import Lane


@dataclass(slots=True)
class Cursor:
    """What was reported last.

    Args:
        lag_seconds: how old the oldest record was.
        missing: topics that are missing or have no asset.
        foreign: runs of other deployments.
        late: topics that miss the lag target.
        topics: how many topics had an asset.
        source: the last source topic at which a tick looked.
        known_at: when the clusters answered last.
    """

    lag_passed: bool | None = None
    lag_at: float = 0.0
    lag_seconds: float = 0.0
    missing: list[str] | None = None
    foreign: list[str] | None = None
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

    @staticmethod
    def load(text: str | None) -> "Cursor":
        """Return what `dump` stored; nothing at the first tick."""
        return Cursor(**json.loads(text)) if text else Cursor()

    def dump(self) -> str:
        """Return it as Dagster stores it."""
        return json.dumps(asdict(self))

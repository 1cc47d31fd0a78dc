"""How often a session may cut a window: copying often and reporting often are two things.

A window costs Dagster two events for each topic with news. `dagster.events_per_minute` of
relay.yaml is divided among all lanes, so that no lane needs to know what the others do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.protocol.clock import Clock, SystemClock

Shares = Mapping[tuple[str, str], float | None]
"""Path of a mirror and name of a lane -> the events that it may store a minute; None for as many as
there are: it stays within its share if all of its topics have news in each `window.every`."""

EVENTS_PER_TOPIC = 2
"""A materialization, and the result of a check."""


@dataclass(slots=True)
class EventBudget:
    """The events that a lane may store.

    Args:
        per_minute: events; None for as many as there are.
    """

    per_minute: float | None = None
    clock: Clock = field(default_factory=SystemClock)
    _due: float = field(default=0.0, init=False)

    def is_due(self) -> bool:
        """Whether a window may be cut now."""
        return self.per_minute is None or self.clock.monotonic() >= self._due

    def spend(self, events: int) -> None:
        """Note that a window was cut."""
        self._due = self.clock.monotonic() + self.seconds(events)

    def seconds(self, events: int) -> float:
        """For how long so many events use the budget up."""
        return 0.0 if self.per_minute is None else 60 * events / self.per_minute


def budgets(lanes: Sequence[Lane], per_minute: float) -> Shares:
    """Divide a budget: who needs less than an equal share leaves the rest to the others.

    Args:
        lanes: all lanes of a relay.yaml.
        per_minute: events.
    """
    found: dict[tuple[str, str], float | None] = {}
    left = per_minute
    for number, lane in enumerate(sorted(lanes, key=_most)):
        share = left / (len(lanes) - number)
        found[lane.path, lane.name] = None if _most(lane) <= share else share
        left -= min(share, _most(lane))
    return found


def events_of(topics: int) -> int:
    """The events of a window of so many topics: those of the topics, and the plan."""
    return EVENTS_PER_TOPIC * topics + 1


def seconds_between_windows(lane: Lane, per_minute: float | None) -> float:
    """Return how far apart the windows of a lane are if all of its topics have news.

    Args:
        per_minute: its share.
    """
    budget = EventBudget(per_minute).seconds(events_of(len(lane.topics)))
    return max(lane.window.every / 1000, budget)


def _most(lane: Lane) -> float:
    """The events a minute if all topics of a lane have news in each round."""
    return 60_000 * events_of(len(lane.topics)) / lane.window.every

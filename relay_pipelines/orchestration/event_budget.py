"""How often a session may cut a window: copying often and reporting often are two things.

A window costs Dagster two events and more for each topic with news. `dagster.events_per_minute` of
relay.yaml is divided among all lanes, so that no lane needs to know what the others do. A session
spends its share on all events that it stores, also on those of checks that run behind the copy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from relay_pipelines.orchestration.event_store import Batch
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.settings import Mirror, Settings

Shares = Mapping[tuple[str, str], float | None]
"""Path of a mirror and name of a lane -> the events that it may store a minute; None for as many as
there are: it stays within its share if all of its topics have news in each `window.every`."""

EVENTS_PER_TOPIC = 2
"""A materialization, and the result of the check `message_counts`."""


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
        """Note that events are stored: no window is due until they are paid."""
        self._due = max(self._due, self.clock.monotonic()) + self.seconds(events)

    def spending(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a run, whatever stores them, and spend the events of each."""
        for batch in batches:
            self.spend(len(batch))
            yield batch

    def seconds(self, events: int) -> float:
        """For how long so many events use the budget up."""
        return 0.0 if self.per_minute is None else 60 * events / self.per_minute


def budgets(lanes: Sequence[Lane], settings: Settings) -> Shares:
    """Divide the budget: who needs less than an equal share leaves the rest to the others.

    Args:
        lanes: all lanes of the settings.
    """
    most = {lane: _most(lane, settings.mirror(lane.mirror)) for lane in lanes}
    found: dict[tuple[str, str], float | None] = {}
    left = float(settings.dagster.events_per_minute)
    for number, (lane, events) in enumerate(sorted(most.items(), key=lambda each: each[1])):
        share = left / (len(lanes) - number)
        found[lane.path, lane.name] = None if events <= share else share
        left -= min(share, events)
    return found


def events_of(lane: Lane, mirror: Mirror) -> int:
    """The events of a window in which all topics of a lane have news: theirs, and the plan."""
    of_topic = EVENTS_PER_TOPIC + mirror.has_registries
    expectations = sum(len(mirror.expectations_of(topic)) for topic in lane.topics)
    return of_topic * len(lane.topics) + expectations + 1


def seconds_between_windows(lane: Lane, mirror: Mirror, per_minute: float | None) -> float:
    """Return how far apart the windows of a lane are if all of its topics have news.

    Args:
        per_minute: its share.
    """
    budget = EventBudget(per_minute).seconds(events_of(lane, mirror))
    return max(lane.window.every / 1000, budget)


def _most(lane: Lane, mirror: Mirror) -> float:
    """The events a minute if all topics of a lane have news in each round."""
    return 60_000 * events_of(lane, mirror) / lane.window.every

"""Which lane copies a topic before the code location is loaded again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane, lanes_of
from relay_pipelines.settings import Mirror


@dataclass(frozen=True, slots=True)
class Share:
    """What one planned lane copies.

    Args:
        lane: as relay.yaml has it now.
        guests: lanes of relay.yaml, or parts of lanes, that the code location has not loaded: this
            lane copies their topics until then.
    """

    lane: Lane
    guests: tuple[Lane, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are known of the lane and its guests."""
        return tuple(topic for lane in (self.lane, *self.guests) for topic in lane.topics)

    def belongs(self, topic: str) -> bool:
        """Whether the lane, or one of its guests, copies the topic."""
        return self.lane.belongs(topic) or self.is_guest(topic)

    def is_guest(self, topic: str) -> bool:
        """Whether the topic belongs to a lane that is not loaded."""
        return any(guest.belongs(topic) for guest in self.guests)


def shares(lanes: Sequence[Lane], loaded: Collection[str]) -> list[Share]:
    """Assign each lane of relay.yaml to one that the code location has loaded.

    Only jobs that are loaded can be requested. A part of a lane that is not loaded goes to the lane
    of which it is a part, and a lane to the main lane, which every mirror has.

    Args:
        lanes: as relay.yaml has them now.
        loaded: the names of the lanes that were loaded.
    """
    guests: dict[str, list[Lane]] = {}
    for lane in lanes:
        if lane.name not in loaded:
            host = lane.whole if lane.whole in loaded else naming.MAIN
            guests.setdefault(host, []).append(lane)
    return [Share(lane, tuple(guests.get(lane.name, ()))) for lane in lanes if lane.name in loaded]


def homes(
    name: str, mirror: Mirror, known: Sequence[str], topics: Collection[str]
) -> Mapping[str, str]:
    """Return the lane of each of these topics, as relay.yaml has it now.

    Args:
        known: topics in the order in which they were first seen.
    """
    lanes = lanes_of(name, mirror, known)
    return {topic: lane.name for topic in topics for lane in lanes if lane.belongs(topic)}

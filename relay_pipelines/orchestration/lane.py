"""Lanes: the topics of a mirror whose windows are cut together.

One run copies one window of one lane, in one Spark job.

Which lane copies a topic before the code location is loaded again.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.plan.frozen_window import WindowLimits
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.settings import Mirror, WindowSettings

MOST_TOPICS = 250


@dataclass(frozen=True, slots=True)
class Lane:
    """Some topics of a mirror.

    Args:
        name: a-z, 0-9, "_"; unique in the mirror.
        topics: topics known when the definitions were loaded, sorted.
        others: known topics that belong to other lanes of the mirror.
        patterns: patterns of this lane; none for the main lane, which takes the remaining topics.
        foreign_patterns: patterns of other lanes that take precedence over this one.
        takes_new: whether this lane takes topics that were unknown at loading.
        prefix: the key prefix of the definitions.
        whole: the name of the lane of which this one is a part; its own if it is not split.
    """

    mirror: str
    name: str
    window: WindowSettings
    topics: tuple[str, ...]
    others: frozenset[str] = field(default=frozenset(), repr=False)
    patterns: tuple[str, ...] = ()
    foreign_patterns: tuple[str, ...] = field(default=(), repr=False)
    takes_new: bool = True
    prefix: tuple[str, ...] = ()
    whole: str = naming.MAIN

    @property
    def path(self) -> str:
        """The mirror's name in Dagster: after the key prefix."""
        return naming.path(self.prefix, self.mirror)

    @property
    def identifier(self) -> str:
        """The part of the lane in names of ops, sensors and pools."""
        return naming.identifier(self.path, self.name)

    @property
    def windows_asset(self) -> dg.AssetKey:
        """The asset of the lane's plan."""
        return naming.windows_asset(self.path, self.name)

    def check(self, name: str) -> dg.AssetCheckKey:
        """A check of the lane."""
        return dg.AssetCheckKey(self.windows_asset, name)

    @property
    def limits(self) -> WindowLimits:
        """The largest window that the lane may cut."""
        return WindowLimits(self.window.max_records, self.window.max_bytes)

    def belongs(self, topic: str) -> bool:
        """Whether the lane copies the topic, be it known or new."""
        if topic in self.topics:
            return True
        if not self.takes_new or topic in self.others:
            return False
        if self.patterns and not _matches(topic, self.patterns):
            return False
        return not _matches(topic, self.foreign_patterns)


@dataclass(frozen=True, slots=True)
class _Group:
    """The topics that match one lane of relay.yaml, mirrored or not, before it is split."""

    name: str
    window: WindowSettings
    patterns: tuple[str, ...]
    foreign_patterns: tuple[str, ...]
    topics: list[str]


def lanes_of(
    name: str, mirror: Mirror, known: Sequence[str], prefix: tuple[str, ...] = ()
) -> list[Lane]:
    """The lanes of a mirror, the main lane first.

    A lane of more than `MOST_TOPICS` is split. A lane is also split if Dagster cannot distinguish
    two of its topics, such as `a.b` and `a-b`: Dagster replaces every character that is not a
    letter or a digit, and it gives the check of `a` the same name as a topic `a_message_counts`.
    A topic keeps its part when others come, or are mirrored no longer: these keep their places.

    Args:
        known: topics in the order in which they were first seen.
        prefix: the key prefix of the definitions.
    """
    decisions = select(known, mirror.topics.allow, mirror.topics.deny)
    included = frozenset(decision.topic for decision in decisions if decision.included)
    return [
        replace(lane, prefix=prefix)
        for group in _groups(mirror, known)
        for lane in _lanes_of_group(name, mirror, group, included)
    ]


def _groups(mirror: Mirror, topics: Sequence[str]) -> list[_Group]:
    """Assign each topic to the first lane with a matching pattern, else to the main lane."""
    remaining = list(topics)
    groups: list[_Group] = []
    foreign: tuple[str, ...] = ()
    for lane, settings in mirror.all_lanes.items():
        matching = [topic for topic in remaining if _matches(topic, settings.topics)]
        taken = set(matching)
        remaining = [topic for topic in remaining if topic not in taken]
        window = settings.window or mirror.window
        groups.append(_Group(lane, window, settings.topics, foreign, matching))
        foreign += settings.topics
    return [_Group(naming.MAIN, mirror.window, (), foreign, remaining), *groups]


def _lanes_of_group(
    name: str, mirror: Mirror, group: _Group, included: frozenset[str]
) -> list[Lane]:
    parts = _split(group.topics, mirror)
    # new topics go to the lane that will list them after the next loading
    takes_new = next(
        (index for index, part in enumerate(parts) if len(part) < MOST_TOPICS), len(parts) - 1
    )
    return [
        Lane(
            mirror=name,
            # relay.yaml refuses lanes that have the name of a part
            name=f"{group.name}_{index + 1}" if index else group.name,
            window=group.window,
            topics=tuple(sorted(included.intersection(part))),
            others=included.difference(part),
            patterns=group.patterns,
            foreign_patterns=group.foreign_patterns,
            takes_new=index == takes_new,
            whole=group.name,
        )
        for index, part in enumerate(parts)
        if not index or index == takes_new or included.intersection(part)
    ]


def _split(topics: Iterable[str], mirror: Mirror) -> list[list[str]]:
    """Put each topic into the first part that has room and none of its names in Dagster."""
    parts: list[list[str]] = [[]]
    used_names: list[set[str]] = [set()]
    for topic in topics:
        output = re.sub(r"[^A-Za-z0-9]", "_", topic)
        expected = (expectation.name for expectation in mirror.expectations_of(topic))
        names = {output, *(f"{output}_{check}" for check in (naming.MESSAGE_COUNTS, *expected))}
        fitting = (
            index
            for index, part in enumerate(parts)
            if len(part) < MOST_TOPICS and used_names[index].isdisjoint(names)
        )
        home = next(fitting, len(parts))
        if home == len(parts):
            parts.append([])
            used_names.append(set())
        parts[home].append(topic)
        used_names[home] |= names
    return parts


def _matches(topic: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, topic) for pattern in patterns)


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

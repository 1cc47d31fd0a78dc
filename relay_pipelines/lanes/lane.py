"""Lanes: the topics of a mirror whose windows are cut together. One run copies one window of one lane, in one Spark job."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from relay_pipelines.lanes import naming
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.plan.window_sizing import WindowLimits
from relay_pipelines.settings import Mirror, WindowSettings

MAIN = "main"
MOST_TOPICS = 250


@dataclass(frozen=True, slots=True)
class Lane:
    """Some topics of a mirror.

    Args:
        name: a-z, 0-9, "_"; unique in the mirror.
        topics: those known when the definitions were loaded, sorted.
        others: known topics of the mirror that other lanes have.
        patterns: of this lane; none for the main one, which takes what no other lane takes.
        foreign_patterns: of the lanes that come before this one, and take what they match.
        takes_new: whether topics that nobody knew at loading are copied here.
    """

    mirror: str
    name: str
    window: WindowSettings
    topics: tuple[str, ...]
    others: frozenset[str] = field(default=frozenset(), repr=False)
    patterns: tuple[str, ...] = ()
    foreign_patterns: tuple[str, ...] = field(default=(), repr=False)
    takes_new: bool = True

    @property
    def identifier(self) -> str:
        """For ops, sensors and pools."""
        return naming.identifier(self.mirror, self.name)

    @property
    def partitions_name(self) -> str:
        """Of the partitions definition."""
        return naming.partitions(self.mirror, self.name)

    @property
    def limits(self) -> WindowLimits:
        """What one of its windows may hold."""
        return WindowLimits(self.window.max_records, self.window.max_bytes)

    def belongs(self, topic: str) -> bool:
        """Whether the lane copies the topic."""
        if topic in self.topics:
            return True
        if not self.takes_new or topic in self.others:
            return False
        if self.patterns and not _matches(topic, self.patterns):
            return False
        return not _matches(topic, self.foreign_patterns)


def lanes_of(name: str, mirror: Mirror, known: Sequence[str]) -> list[Lane]:
    """The lanes of a mirror, that of the main topics first.

    A lane of more than `MOST_TOPICS` is split, and so is one with topics that Dagster cannot tell
    apart, `a.b` and `a-b`: it replaces what is neither letter nor digit, and names the check of `a`
    as it would the topic `a_message_counts`.

    Args:
        known: topics in the order in which they were first seen.
    """
    chosen = {
        one.topic for one in select(known, mirror.topics.allow, mirror.topics.deny) if one.included
    }
    waiting = [topic for topic in known if topic in chosen]
    groups: list[tuple[str, WindowSettings, tuple[str, ...], tuple[str, ...], list[str]]] = []
    foreign: tuple[str, ...] = ()
    for lane, settings in mirror.all_lanes.items():
        mine = [topic for topic in waiting if _matches(topic, settings.topics)]
        waiting = [topic for topic in waiting if topic not in mine]
        groups.append((lane, settings.window or mirror.window, settings.topics, foreign, mine))
        foreign += settings.topics
    groups.insert(0, (MAIN, mirror.window, (), foreign, waiting))
    lanes = []
    for lane, window, patterns, before, topics in groups:
        parts = _split(topics)
        roomy = next(
            (index for index, part in enumerate(parts) if len(part) < MOST_TOPICS), len(parts) - 1
        )
        for index, part in enumerate(parts):
            lanes.append(
                Lane(
                    mirror=name,
                    name=lane
                    if index == 0
                    else f"{lane}_{index + 1}",  # settings keep these names free
                    window=window,
                    topics=tuple(sorted(part)),
                    others=frozenset(chosen.difference(part)),
                    patterns=patterns,
                    foreign_patterns=before,
                    takes_new=index == roomy,  # where they will be listed from the next loading on
                )
            )
    return lanes


def _split(topics: Iterable[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    snapshot: list[set[str]] = [set()]
    for topic in topics:
        output = re.sub(r"[^A-Za-z0-9]", "_", topic)
        names = {output, f"{output}_{naming.MESSAGE_COUNTS}"}
        fitting = (
            at
            for at, part in enumerate(parts)
            if len(part) < MOST_TOPICS and snapshot[at].isdisjoint(names)
        )
        home = next(fitting, len(parts))
        if home == len(parts):
            parts.append([])
            snapshot.append(set())
        parts[home].append(topic)
        snapshot[home] |= names
    return parts


def _matches(topic: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, topic) for pattern in patterns)

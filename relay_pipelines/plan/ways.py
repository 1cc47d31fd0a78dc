"""Follows topics by their names over all mirrors of a relay.yaml, to find copies that come back.

A *way* begins at a topic of a source, and takes each mirror at most once. It ends in a *return* if
a copy would come to a cluster where its records have been. A mirror within one cluster makes none:
there, the mirror itself refuses to copy its own copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from relay_pipelines.errors import ConfigError
from relay_pipelines.plan.topic_selection import (
    INTERNAL_PREFIX,
    Rename,
    is_topic_name,
    literal_names,
    renamed_target,
    select,
    target,
)

_PATTERNS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class MirrorNames:
    """What a mirror reads and writes, by names alone.

    Args:
        sources: ids of the clusters that it reads: they hold the same records.
        destination: id of the cluster that it writes to.
        allow, deny, rename: of its topics.
        quarantine: the destination topic that gets the failed records of a source topic and its
            copy; empty if there is none.
    """

    name: str
    sources: frozenset[str]
    destination: str
    allow: Sequence[str]
    deny: Sequence[str]
    rename: Rename
    quarantine: Callable[[str, str], str] = lambda _source, _copy: ""

    def selected(self, topics: Iterable[str]) -> list[str]:
        """Return which of these source topics it copies."""
        decisions = select(topics, self.allow, self.deny)
        return [decision.topic for decision in decisions if decision.included]

    def steps(self, topic: str) -> list[Step]:
        """Return where the records of a selected topic go; nowhere if the name is refused."""
        copy = renamed_target(topic, self.rename).topic
        names = filter(None, (copy, self.quarantine(topic, copy)))
        return [
            Step(self, topic, name)
            for name in names
            if is_topic_name(name) and not name.startswith(INTERNAL_PREFIX)
        ]

    def pattern_of(self, copy: str) -> str:
        """Return a pattern for `topics.deny` of another mirror: all copies of this one, or one."""
        template = target(self.rename).topic if isinstance(self.rename, str) else "{topic}"
        pattern = template.replace(".", r"\.").replace("{topic}", ".*")
        return pattern if template != "{topic}" and re.fullmatch(pattern, copy) else copy


@dataclass(frozen=True, slots=True)
class Step:
    """A mirror copies the records of a source topic to a destination topic."""

    mirror: MirrorNames
    topic: str
    to: str

    @property
    def names(self) -> tuple[str, str, str]:
        """What tells it from other steps."""
        return self.mirror.name, self.topic, self.to


_Way = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Return:
    """A way that ends at the cluster where it began.

    Args:
        steps: at least two.
    """

    steps: _Way

    @property
    def mirrors(self) -> tuple[str, ...]:
        """The mirrors that it takes, in order."""
        return tuple(step.mirror.name for step in self.steps)

    @property
    def pattern(self) -> str:
        """What the last mirror has to deny."""
        return self.steps[-2].mirror.pattern_of(self.steps[-1].topic)

    def path(self, cluster_name: Callable[[str], str]) -> str:
        """Return the way in words, such as `t at a -> t at b (mirror ab) -> t at a (mirror ba)`."""
        begins = f"{self.steps[0].topic} at {cluster_name(self.steps[-1].mirror.destination)}"
        steps = (
            f"{step.to} at {cluster_name(step.mirror.destination)} (mirror {step.mirror.name})"
            for step in self.steps
        )
        return " -> ".join((begins, *steps))


def starts(
    mirrors: Sequence[MirrorNames], topics: Mapping[str, Collection[str]]
) -> Iterator[list[Step]]:
    """Yield the first steps of each topic that a mirror copies, by mirror and topic.

    Args:
        topics: cluster id -> the topics there. Names that `allow` spells out need not exist yet.
    """
    names = {cluster: set(found) for cluster, found in topics.items()}
    for mirror in mirrors:
        for cluster in mirror.sources:
            names.setdefault(cluster, set()).update(literal_names(mirror.allow))
    for mirror in mirrors:
        for topic in mirror.selected(set().union(*map(names.__getitem__, mirror.sources))):
            yield mirror.steps(topic)


def returns(mirrors: Sequence[MirrorNames], first_steps: Iterable[list[Step]]) -> list[Return]:
    """Return the shortest returns of each topic; those of the same steps once.

    Args:
        first_steps: as `starts` yields them.
    """
    found: dict[frozenset[tuple[str, str, str]], Return] = {}
    for steps in first_steps:
        for way in _shortest(mirrors, [(step,) for step in steps]):
            found.setdefault(frozenset(step.names for step in way), Return(way))
    return list(found.values())


def errors(found: Iterable[Return], cluster_name: Callable[[str], str]) -> list[ConfigError]:
    """Return an error for each sequence of mirrors by which records would come back.

    Args:
        cluster_name: what people call a cluster, by its id.
    """
    groups: dict[tuple[str, ...], list[Return]] = {}
    for each in found:
        groups.setdefault(each.mirrors, []).append(each)
    return [_error(group, cluster_name) for group in groups.values()]


def _error(group: Sequence[Return], cluster_name: Callable[[str], str]) -> ConfigError:
    first, others = group[0], len(group) - 1
    also = f", and so would {others:,} more topic{'s' * (others > 1)}" if others else ""
    patterns = list(dict.fromkeys(each.pattern for each in group))
    more = len(patterns) - _PATTERNS_SHOWN
    shown = ", ".join(f"'{pattern}'" for pattern in patterns[:_PATTERNS_SHOWN])
    return ConfigError(
        f"records would come back: {first.path(cluster_name)}{also}",
        remedy=f"add {shown}{f' and {more:,} more' if more > 0 else ''} to topics.deny of mirror"
        f" {first.mirrors[-1]!r}",
    )


def _shortest(mirrors: Sequence[MirrorNames], ways: list[_Way]) -> list[_Way]:
    """Follow the ways, all one step at a time, until some come back; return these."""
    while ways:
        if back := [_loop(way) for way in ways if _comes_back(way)]:
            return back
        longer = (_continued(way, step) for way in ways for step in _next(mirrors, way))
        ways = list(dict(longer).values())
    return []


def _next(mirrors: Sequence[MirrorNames], way: _Way) -> Iterator[Step]:
    last, used = way[-1], {step.mirror.name for step in way}
    for mirror in mirrors:
        if (
            last.mirror.destination in mirror.sources
            and mirror.name not in used
            and mirror.selected([last.to])
        ):
            yield from mirror.steps(last.to)


def _continued(way: _Way, step: Step) -> tuple[object, _Way]:
    """Return a longer way, and what decides how it goes on: two of the same go the same ways."""
    longer = (*way, step)
    used = frozenset(each.mirror.name for each in longer)
    return (step.mirror.destination, step.to, used), longer


def _comes_back(way: _Way) -> bool:
    *before, last = way
    there = last.mirror.destination
    return there not in last.mirror.sources and any(there in each.mirror.sources for each in before)


def _loop(way: _Way) -> _Way:
    """Return the way from where it has left the cluster to which it comes back."""
    there = way[-1].mirror.destination
    return way[max(index for index, step in enumerate(way) if there in step.mirror.sources) :]

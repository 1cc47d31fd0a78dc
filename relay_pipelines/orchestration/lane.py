"""Lanes: the topics of a mirror whose windows are cut together.

One run copies one window of one lane, in one Spark job. A planner tells it the patterns of the
lane: relay.yaml may have other lanes by now than the code location has loaded.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from relay_pipelines.orchestration import naming
from relay_pipelines.plan.frozen_window import WindowLimits
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.settings import Mirror, WindowSettings

_TOPICS_PER_OP = 250


@dataclass(frozen=True, slots=True)
class Lane:
    """Some topics of a mirror: those that a lane of relay.yaml names, or the remaining ones.

    Args:
        name: a-z, 0-9, "_"; unique in the mirror.
        topics: topics known when the definitions were loaded, sorted.
        patterns: patterns of this lane; none for the main lane, which takes the remaining topics.
        foreign_patterns: patterns of other lanes that take precedence over this one.
        prefix: the key prefix of the definitions.
    """

    mirror: str
    name: str
    window: WindowSettings
    topics: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    foreign_patterns: tuple[str, ...] = field(default=(), repr=False)
    prefix: tuple[str, ...] = ()

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

    @property
    def op(self) -> str:
        """The op of the lane's job."""
        return f"copy_{self.identifier}"

    @property
    def op_config(self) -> dict[str, list[str]]:
        """The configuration of its op: which topics a run of it copies."""
        return {"topics": list(self.patterns), "not_topics": list(self.foreign_patterns)}

    def with_config(self, config: Mapping[str, Any]) -> "Lane":
        """The lane of a run with this configuration of its op; this one if it has none."""
        topics = {**self.op_config, **config}
        patterns, foreign = tuple(topics["topics"]), tuple(topics["not_topics"])
        return replace(self, patterns=patterns, foreign_patterns=foreign)

    def of_run(self, run: dg.DagsterRun) -> "Lane":
        """The lane as a run of its job was told."""
        ops: Any = run.run_config.get("ops", {})
        return self.with_config(ops.get(self.op, {}).get("config", {}))

    def belongs(self, topic: str) -> bool:
        """Whether the lane copies the topic, be it known or new."""
        is_own = not self.patterns or _matches(topic, self.patterns)
        return is_own and not _matches(topic, self.foreign_patterns)


def lanes_of(
    name: str,
    mirror: Mirror,
    known: Iterable[str],
    prefix: tuple[str, ...] = (),
    only: Container[str] | None = None,
) -> list[Lane]:
    """The lanes of a mirror, the main lane first; a topic is in the first one that it matches.

    Args:
        known: topics of the source, mirrored or not.
        prefix: the key prefix of the definitions.
        only: the lanes that there are; the topics of others are not taken out of these.
    """
    lanes: list[Lane] = []
    foreign: tuple[str, ...] = ()
    for lane, settings in mirror.all_lanes.items():
        if only is not None and lane not in only:
            continue
        window, patterns = settings.window or mirror.window, settings.topics
        lanes.append(Lane(name, lane, window, (), patterns, foreign, prefix))
        foreign += patterns
    main = Lane(name, naming.MAIN, mirror.window, (), (), foreign, prefix)
    decisions = select(known, mirror.topics.allow, mirror.topics.deny)
    topics = sorted(decision.topic for decision in decisions if decision.included)
    return [replace(lane, topics=tuple(filter(lane.belongs, topics))) for lane in (main, *lanes)]


def ops(kind: str, lane: Lane, mirror: Mirror) -> Iterator[tuple[str, Sequence[str]]]:
    """Divide the topics of a lane among ops of Dagster; yield the name of each, and its topics.

    An op of very many assets is slow, and has no two that Dagster cannot distinguish, such as `a.b`
    and `a-b`: Dagster replaces every character that is not a letter or a digit, and it gives the
    check of `a` the same name as a topic `a_message_counts`.

    Args:
        kind: of op; the beginning of its name.
    """
    parts: list[list[str]] = []
    used_names: list[set[str]] = []
    for topic in lane.topics:
        output = re.sub(r"[^A-Za-z0-9]", "_", topic)
        expected = (expectation.name for expectation in mirror.expectations_of(topic))
        checks = naming.MESSAGE_COUNTS, *expected
        names = {output, *(f"{output}_{check}" for check in checks)}
        fitting = (
            index
            for index, part in enumerate(parts)
            if len(part) < _TOPICS_PER_OP and used_names[index].isdisjoint(names)
        )
        home = next(fitting, len(parts))
        if home == len(parts):
            parts.append([])
            used_names.append(set())
        parts[home].append(topic)
        used_names[home] |= names
    for number, part in enumerate(parts, 1):
        yield f"{kind}{number if number > 1 else ''}_{lane.identifier}", part


def _matches(topic: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, topic) for pattern in patterns)

"""Which topics of a mirror are read, and on which side. On the driver.

Options name topics as the source does, also for the destination. Partitions and offsets are those
of the side that is read.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay_pipelines import settings
from relay_pipelines.dataframe.option_names import TOPICS, only_one
from relay_pipelines.errors import ConfigError, DestinationError, RetriableError, SourceError
from relay_pipelines.ledger.state_table import read_any_state
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.plan.topic_selection import Target, renamed_target, select
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.sides import Sides

_SIDES = ("source", "destination")
# what Java reads as a union or an intersection, and Python as characters
_SET_IN_SET = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*?(?:\[|&&)")

TopicPartitions = Mapping[str, Sequence[TopicPartition]]
"""The topic-partitions of the side, by the topic's name at the source."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics of a mirror, on one of its sides.

    Args:
        topics: the names at the source; empty with a pattern.
        pattern: of such names, for topics of the mirror.
        assigned: the only partitions to read, by topic; None for all.
        upstream: of the source; the first one if empty.
    """

    sides: Sides
    at_source: bool
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: Mapping[str, Sequence[int]] | None = None
    upstream: str = ""

    @property
    def cluster(self) -> Cluster:
        """An upstream, its first one by default, or the destination."""
        mirror = self.sides.mirror
        upstreams = [
            upstream for upstream in mirror.upstreams if self.upstream in {"", upstream.name}
        ]
        return upstreams[0] if self.at_source else mirror.destination_cluster

    def target(self, topic: str) -> Target:
        """The topic's name on this side."""
        if self.at_source:
            return Target(topic)
        return renamed_target(topic, self.sides.mirror.topics.rename)

    def client(self) -> ClusterClient:
        """Connect to the cluster."""
        error: type[RetriableError] = SourceError if self.at_source else DestinationError
        return ClusterClient(self.cluster, error, purpose="frame")

    def topic_partitions(self, client: ClusterClient) -> dict[str, list[TopicPartition]]:
        """Return the topic-partitions; of a pinned topic only the pinned one.

        Topics that are pinned to one partition share it, and the first one has it: it is read once.

        Raises:
            ConfigError: an assigned partition does not exist.
            RetriableError: a topic does not exist.
        """
        by_topic: dict[str, list[TopicPartition]] = {}
        known: set[TopicPartition] = set()
        for topic in self._topics(client):
            new = [tp for tp in self._partitions(client, topic) if tp not in known]
            known.update(new)
            by_topic[topic] = new
        return by_topic

    def _topics(self, client: ClusterClient) -> Sequence[str]:
        if self.pattern is None:
            return self.topics
        matching = filter(self.pattern.fullmatch, self._mirrored(client))
        if self.at_source:
            return sorted(matching)
        targets = {topic: self.target(topic).topic for topic in sorted(matching)}
        existing = client.existing(targets.values())
        return [topic for topic, target in targets.items() if target in existing]

    def _mirrored(self, client: ClusterClient) -> Iterable[str]:
        """The topics that the mirror copies; at the destination, those that it has copied."""
        if self.at_source:
            topics, shown = self.sides.mirror.topics, client.metadata().topics
            decisions = select(shown, topics.allow, topics.deny)
            return [decision.topic for decision in decisions if decision.included]
        # not from the source, so that its copies can be read without it
        every = read_any_state(client)
        # the key of a checkpoint that cannot be read says which topic has copies, all the same
        return {
            each.source.topic
            for part in (every.checkpoints, every.unreadable)
            for each in part
            if each.mirror == self.sides.name
        }

    def _partitions(self, client: ClusterClient, topic: str) -> list[TopicPartition]:
        target = self.target(topic)
        there = [
            topic_partition
            for topic_partition in client.topic(target.topic).topic_partitions
            if target.partition in {None, topic_partition.partition}
        ]
        if self.assigned is None:
            return there
        by_number = {topic_partition.partition: topic_partition for topic_partition in there}
        for partition in self.assigned[topic]:
            if partition not in by_number:
                raise ConfigError(
                    f"option assign: topic {topic} has no partition {partition}",
                    remedy=f"name some of {', '.join(map(str, by_number))}",
                )
        return [by_number[partition] for partition in sorted({*self.assigned[topic]})]


def selection_of(options: Mapping[str, str]) -> Selection:
    """Return what options select.

    Raises:
        ConfigError: one is wrong, or none names a topic.
    """
    sides = mirror_of(options)
    side, upstream = options.get("side", "source"), options.get("upstream", "")
    if side not in _SIDES:
        raise ConfigError(
            f"option side: {side!r} is neither source nor destination",
            remedy=nearest(side, _SIDES, "values"),
        )
    upstreams = [each.name for each in sides.mirror.upstreams]
    if upstream and upstream not in upstreams:
        raise ConfigError(
            f"option upstream: the source has no upstream {upstream!r}",
            remedy=nearest(upstream, upstreams, "upstreams"),
        )
    which = only_one(options, *TOPICS)
    given = options.get(which, "").strip()
    names = topic_names(given)
    if not names:
        raise ConfigError(
            f"option {which or 'topic'} is missing",
            remedy="name topics of the source, as in orders,payments",
        )
    selection = (sides, side == "source")
    if which == "subscribePattern":
        return Selection(*selection, pattern=java_pattern(given), upstream=upstream)
    if which == "assign":
        assigned = _assigned(given)
        return Selection(*selection, topics=tuple(assigned), assigned=assigned, upstream=upstream)
    return Selection(*selection, topics=names, upstream=upstream)


def topic_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, each one once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def mirror_of(options: Mapping[str, str]) -> Sides:
    """Return the mirror that options name.

    Raises:
        ConfigError: there is none, or several and none is named; or relay.yaml is wrong.
    """
    loaded = settings.load(Path(options.get("config", "relay.yaml")))
    name = options.get("mirror", "")
    if not name and len(loaded.mirrors) > 1:
        raise ConfigError(
            "option mirror is missing", remedy=f"there are {', '.join(loaded.mirrors)}"
        )
    name = name or next(iter(loaded.mirrors))
    return Sides(name, loaded.mirror(name))


def java_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of Java in Python, if it means the same there."""
    remedy = "write one that Python knows, too, as in orders\\..*"
    if _SET_IN_SET.search(text):
        raise ConfigError(
            f"option subscribePattern: {text!r} has a set within a set", remedy=remedy
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(text)
    except (re.error, Warning) as error:
        raise ConfigError(
            f"option subscribePattern: {text!r} is not a regular expression: {error}",
            remedy=remedy,
        ) from None


def _assigned(text: str) -> dict[str, list[int]]:
    try:
        given: Any = json.loads(text)
    except ValueError:
        given = None
    if not _is_assignment(given):
        raise ConfigError(
            f"option assign: {text!r} is not JSON of topic to partitions",
            remedy='write {"orders": [0, 1]}',
        )
    return dict(given)


def _is_assignment(given: Any) -> bool:
    return (
        isinstance(given, dict)
        and bool(given)
        and all(
            isinstance(partitions, list) and all(type(partition) is int for partition in partitions)
            for partitions in given.values()
        )
    )

"""Which topics are copied, and what they are called at the destination."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import TopicPartition

INTERNAL_PREFIX = "__"
QUARANTINE = ".quarantine"
"""The end of the name of the topic for records that could not be copied."""
_PINNED = re.compile(r"(?P<topic>.+):(?P<partition>\d{1,9})")
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # org.apache.kafka.common.internals.Topic


@dataclass(frozen=True, slots=True)
class TopicDecision:
    """Whether a topic is copied, and why."""

    topic: str
    included: bool
    why: str


def is_topic_name(name: str) -> bool:
    """Whether a Kafka broker accepts the name."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in {".", ".."}


def literal_names(patterns: Iterable[str]) -> list[str]:
    r"""The names that patterns spell out: `orders`, and `orders\.events`, but not `orders.*`."""
    names = ((pattern, pattern.replace("\\.", ".")) for pattern in patterns)
    return [
        name
        for pattern, name in names
        if pattern == name.replace(".", "\\.") and is_topic_name(name)
    ]


def named_without_match(patterns: Iterable[str], shown: Iterable[str]) -> list[str]:
    r"""The topic names among patterns that match no topic: `orders.eu` is one, as `orders\.eu` is.

    The dot of a name is a regex character, and most people write it as it is.
    """
    names = (pattern.replace("\\.", ".") for pattern in matches_nothing(shown, patterns))
    return list(filter(is_topic_name, names))


def select(
    all_topics: Iterable[str], allow: Sequence[str], deny: Sequence[str]
) -> list[TopicDecision]:
    """Decide on every topic, sorted by name.

    Internal topics (`__*`) are never copied; then a pattern of `deny` wins over one of `allow`.

    Args:
        all_topics: names at the source; duplicates count once.
        allow: regular expressions for the whole name.
        deny: regular expressions for the whole name.

    Raises:
        re.error: a pattern is not a regular expression; the settings refuse those.
    """
    allowed, denied = _patterns(tuple(allow)), _patterns(tuple(deny))
    return [_decide(topic, allowed, denied) for topic in sorted(set(all_topics))]


@lru_cache(1 << 16)  # the same topics, from one look at a cluster to the next
def _decide(topic: str, allow: _Patterns, deny: _Patterns) -> TopicDecision:
    if topic.startswith(INTERNAL_PREFIX):
        return TopicDecision(topic, included=False, why="internal topics are never copied")
    if (pattern := deny.first_match(topic)) is not None:
        return TopicDecision(topic, included=False, why=f"denied by {pattern!r}")
    if (pattern := allow.first_match(topic)) is not None:
        return TopicDecision(topic, included=True, why=f"allowed by {pattern!r}")
    return TopicDecision(topic, included=False, why="no allow pattern matches")


class _Patterns:
    """Regular expressions for whole names; those that spell out a name are not tried one by one.

    Thousands of names in a list would otherwise be compared with thousands of topics.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._names: dict[str, int] = {}
        self._others: list[tuple[int, re.Pattern[str]]] = []
        for number, pattern in enumerate(patterns):
            if names := literal_names([pattern]):
                self._names.setdefault(names[0], number)
            else:
                self._others.append((number, re.compile(pattern)))

    def first_match(self, name: str) -> str | None:
        """Return the first pattern that matches; None if none does."""
        named = self._names.get(name, len(self._patterns))
        for number, pattern in self._others:
            if number > named:
                break
            if pattern.fullmatch(name):
                return self._patterns[number]
        return self._patterns[named] if named < len(self._patterns) else None


@lru_cache(256)  # two for each mirror of a file
def _patterns(patterns: Sequence[str]) -> _Patterns:
    return _Patterns(patterns)


class RenameRule(NamedTuple):
    r"""Topics whose whole name matches are renamed to `to`, where `\1` is the first group."""

    match: str
    to: str


Rename = str | Mapping[str, str] | Sequence[RenameRule]


class Target(NamedTuple):
    """A destination topic; if pinned, also the partition to which all records go."""

    topic: str
    partition: int | None = None

    def __str__(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}:{self.partition}"

    def of(self, source: TopicPartition) -> TopicPartition:
        """Return the topic-partition to which a source topic-partition is copied."""
        return TopicPartition(
            self.topic, source.partition if self.partition is None else self.partition
        )


def target(name: str) -> Target:
    """Parse `dst`, or `dst:3` with a pinned partition: topic names contain no colons."""
    match = _PINNED.fullmatch(name)
    return Target(match["topic"], int(match["partition"])) if match else Target(name)


def targets(topics: Iterable[str], rename: Rename) -> dict[str, Target]:
    """Source topic -> where its records go, unless `refusals` has the topic.

    Args:
        topics: the included ones.
        rename: a template in which `{topic}` is the source's name, a map, or rules of which the
            first that matches counts; topics that are not in the map, or match no rule, keep their
            names. If the new name ends in `:3`, every topic-partition goes to that partition;
            pinned topics may share one.
    """
    return {topic: renamed_target(topic, rename) for topic in sorted(set(topics))}


def refusals(
    targets: Mapping[str, Target], quarantines: Mapping[str, str], holders: Container[str]
) -> dict[str, ConfigError]:
    """Return source topic -> why it is not copied: its name, or the one that its copy would get.

    Two topics that are not both pinned would mix their records in one destination topic, and so
    would a quarantine with the copy of a topic. Whoever creates such a topic stops no other one.

    Args:
        targets: all topics that the mirror copies.
        quarantines: source topic -> the destination topic of its quarantine, if it may have one.
        holders: source topics whose copies are where they are wanted: the others give way.
    """
    errors: dict[str, ConfigError] = {}
    sources: dict[str, list[str]] = defaultdict(list)
    for source, to in targets.items():
        if error := _bad_name(source, to.topic):
            errors[source] = error
        sources[to.topic].append(source)
    for topic, some in sources.items():
        for source in some:
            others = [
                other for other in some if other != source and not _pinned(targets, source, other)
            ]
            if others and (source not in holders or any(other in holders for other in others)):
                errors[source] = _both(min(source, others[0]), max(source, others[0]), topic)
    for source, quarantine in quarantines.items():
        for copied in sources.get(quarantine, ()):
            errors[source if copied in holders else copied] = _quarantine(
                source, quarantine, copied
            )
    return errors


def _pinned(targets: Mapping[str, Target], *sources: str) -> bool:
    return all(targets[source].partition is not None for source in sources)


def _both(one: str, other: str, topic: str) -> ConfigError:
    return ConfigError(
        f"topics {one!r} and {other!r} would both be copied to {topic!r}",
        remedy="change rename so that each has its own destination topic, pin both to"
        f' partitions of it ("{topic}:0"), or deny one',
    )


def _quarantine(source: str, quarantine: str, copied: str) -> ConfigError:
    return ConfigError(
        f"the quarantine of topic {source!r} is {quarantine!r}, which is also the copy of topic"
        f" {copied!r}",
        remedy="rename one of them with topics.rename, or exclude one with topics.deny",
    )


def renamed_target(topic: str, rename: Rename) -> Target:
    """Where a topic's records go, whether or not that is refused."""
    return target(_rename(topic, rename))


def _rename(topic: str, rename: Rename) -> str:
    if isinstance(rename, str):
        return rename.replace("{topic}", topic)
    if isinstance(rename, Mapping):
        return rename.get(topic, topic)
    for rule in rename:
        if match := re.fullmatch(rule.match, topic):
            return match.expand(rule.to)
    return topic


def _bad_name(source: str, destination: str) -> ConfigError | None:
    if destination.startswith(INTERNAL_PREFIX):
        return ConfigError(
            f"topic {source!r} would be copied to the internal topic {destination!r}",
            remedy="change rename",
        )
    if not is_topic_name(destination):
        return ConfigError(
            f"topic {source!r} would be called {destination!r}, which is not a valid topic name",
            remedy="change rename: up to 249 letters, digits, '.', '_' and '-' are allowed",
        )
    return None


def matches_nothing(topics: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the topics: they are most likely misspelt."""
    names = set(topics)
    return [pattern for pattern in patterns if not _matches_any(pattern, names)]


def _matches_any(pattern: str, names: Collection[str]) -> bool:
    if spelled_out := literal_names([pattern]):
        return spelled_out[0] in names
    return any(re.fullmatch(pattern, name) for name in names)

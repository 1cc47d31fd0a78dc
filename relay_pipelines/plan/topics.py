"""Which topics are copied, and what they are called at the destination."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay_pipelines.errors import ConfigError

_INTERNAL_PREFIX = "__"
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")  # org.apache.kafka.common.internals.Topic


@dataclass(frozen=True, slots=True)
class TopicDecision:
    """Whether a topic is copied, and why in words."""

    topic: str
    included: bool
    why: str


def is_topic_name(name: str) -> bool:
    """Whether a Kafka broker would take the name."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in {".", ".."}


def literal_names(patterns: Iterable[str]) -> list[str]:
    """The topic names among patterns that match one name only: `orders`, and `orders.events` with its dot escaped."""
    names = ((pattern, pattern.replace("\\.", ".")) for pattern in patterns)
    return [name for pattern, name in names if pattern == name.replace(".", "\\.") and is_topic_name(name)]


def select(all_topics: Iterable[str], allow: Sequence[str], deny: Sequence[str]) -> list[TopicDecision]:
    """Decide on every topic, sorted by name.

    Internal topics (`__*`) are never copied; then a pattern of `deny` wins over one of `allow`.

    Args:
        all_topics: names at the source; doubles count once.
        allow: regular expressions for the whole name.
        deny: regular expressions for the whole name.

    Raises:
        re.error: a pattern is no regular expression; the settings refuse those before.
    """
    allowing, denying = [re.compile(pattern) for pattern in allow], [re.compile(pattern) for pattern in deny]
    return [_decide(topic, allowing, denying) for topic in sorted(set(all_topics))]


def _decide(topic: str, allow: Sequence[re.Pattern[str]], deny: Sequence[re.Pattern[str]]) -> TopicDecision:
    if topic.startswith(_INTERNAL_PREFIX):
        return TopicDecision(topic, included=False, why="internal topics are never copied")
    for pattern in deny:
        if pattern.fullmatch(topic):
            return TopicDecision(topic, included=False, why=f"denied by {pattern.pattern!r}")
    for pattern in allow:
        if pattern.fullmatch(topic):
            return TopicDecision(topic, included=True, why=f"allowed by {pattern.pattern!r}")
    return TopicDecision(topic, included=False, why="no allow pattern matches")


class RenameRule(NamedTuple):
    r"""Topics whose whole name matches are called `to`, in which `\1` stands for the first group."""

    match: str
    to: str


Rename = str | Mapping[str, str] | Sequence[RenameRule]


def destinations(topics: Iterable[str], rename: Rename) -> dict[str, str]:
    """Source topic -> destination topic.

    Args:
        topics: the included ones.
        rename: a template in which `{topic}` stands for the source's name, a map, or rules of which the first that matches
            counts; topics that are not in the map, or match no rule, keep their names.

    Raises:
        ConfigError: two topics would land on one, where their records would mix; or a name is illegal or internal.
    """
    renamed = {topic: _rename(topic, rename) for topic in sorted(set(topics))}
    sources: dict[str, str] = {}
    for source, destination in renamed.items():
        _refuse_bad_name(source, destination)
        other = sources.setdefault(destination, source)
        if other != source:
            raise ConfigError(
                f"topics {other!r} and {source!r} would both land on {destination!r}",
                remedy="change rename so that each has a destination of its own, or deny one",
            )
    return renamed


def _rename(topic: str, rename: Rename) -> str:
    if isinstance(rename, str):
        return rename.replace("{topic}", topic)
    if isinstance(rename, Mapping):
        return rename.get(topic, topic)
    found = ((match, rule.to) for rule in rename if (match := re.fullmatch(rule.match, topic)))
    return next((match.expand(to) for match, to in found), topic)


def _refuse_bad_name(source: str, destination: str) -> None:
    if destination.startswith(_INTERNAL_PREFIX):
        raise ConfigError(f"topic {source!r} would land on the internal topic {destination!r}", remedy="change rename")
    if not is_topic_name(destination):
        raise ConfigError(
            f"topic {source!r} would be called {destination!r}, which is no topic name",
            remedy="change rename: up to 249 letters, digits, '.', '_' and '-' are allowed",
        )


def matches_nothing(topics: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the topics: most likely misspelt."""
    names = list(topics)
    return [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in names)]

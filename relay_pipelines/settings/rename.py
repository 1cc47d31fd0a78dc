"""The key `rename`: a template with `{topic}`, or a map of source topic to destination topic."""

from __future__ import annotations

import re

from relay_pipelines.plan.topics import is_topic_name
from relay_pipelines.settings.values import complaints, expected

_PINNED = re.compile(r".+:\d+")
_PINNED_REFUSED = "pinning a destination partition is not supported"


def rename_rule(value: object) -> str | dict[str, str]:
    """The template or map, checked as far as that can be done without knowing the topics."""
    if isinstance(value, str):
        return _template(value)
    if not isinstance(value, dict):
        raise expected('a template such as "copy.{topic}", or a map of source topic to destination topic')
    targets = list(value.values())
    found = [((topic,), problem) for topic, target in value.items() if (problem := _problem(target))]
    found += [
        ((topic,), "another topic is renamed to the same; every source topic needs a destination of its own")
        for position, (topic, target) in enumerate(value.items())
        if isinstance(target, str) and target in targets[:position]
    ]
    if found:
        raise complaints(*found)
    return dict(value)


def _template(template: str) -> str:
    if _PINNED.fullmatch(template):
        raise expected("a template without a partition", _PINNED_REFUSED)
    if "{topic}" not in template:
        raise expected('a template that contains "{topic}"', "every topic would land on the same one")
    if not is_topic_name(template.replace("{topic}", "x")):
        raise expected("a template of letters, digits, '.', '_', '-' and \"{topic}\"")
    return template


def _problem(target: object) -> str:
    if target is None:
        return 'no destination topic given; a template needs quotes: "{topic}"'
    if not isinstance(target, str):
        return "expected the name of a destination topic; put it in quotes"
    if _PINNED.fullmatch(target):
        return f"{_PINNED_REFUSED}; name the topic alone"
    return "" if is_topic_name(target) else "expected a topic name: up to 249 letters, digits, '.', '_' and '-'"

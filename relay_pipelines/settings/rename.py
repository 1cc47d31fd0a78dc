"""The key `rename`: a template with `{topic}`, a map of source topic to destination topic, or rules with groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

from relay_pipelines.plan.topics import Rename, RenameRule, is_topic_name
from relay_pipelines.settings.values import complaints, expected

_PINNED = re.compile(r".+:\d+")
_PINNED_REFUSED = "pinning a destination partition is not supported"


def rename_rule(value: object) -> Rename:
    """The template, map or rules, checked as far as that can be done without knowing the topics."""
    if isinstance(value, str):
        return _template(value)
    if isinstance(value, list):
        return _rules(value)
    if not isinstance(value, dict):
        raise expected('a template such as "copy.{topic}", a map of source topic to destination topic, or a list of rules')
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


def _rules(entries: list[object]) -> tuple[RenameRule, ...]:
    found = [((index, key), problem) for index, entry in enumerate(entries) for key, problem in _rule_problems(entry)]
    if found:
        raise complaints(*found)
    return tuple(RenameRule(**entry) for entry in entries if isinstance(entry, dict))


def _rule_problems(entry: object) -> Iterator[tuple[str, str]]:
    if not isinstance(entry, dict) or set(entry) != {"match", "to"} or not all(isinstance(one, str) for one in entry.values()):
        yield "match", 'expected the two keys match and to, both text in quotes, as in {match: "orders\\.(.*)", to: "eu.\\1"}'
        return
    try:
        groups = re.compile(entry["match"]).groups
    except re.error as error:
        yield "match", f"expected a regular expression: {error}"
        return
    wanted = [int(number) for number in re.findall(r"\\(\d+)", entry["to"])]
    if max(wanted, default=0) > groups:
        yield "to", f"refers to group {max(wanted)}, and match has {groups}"
    elif not is_topic_name(re.sub(r"\\(?:\d+|g<\w+>)", "x", entry["to"])):
        yield "to", "expected letters, digits, '.', '_', '-' and groups such as \\1"


def _problem(target: object) -> str:
    if target is None:
        return 'no destination topic given; a template needs quotes: "{topic}"'
    if not isinstance(target, str):
        return "expected the name of a destination topic; put it in quotes"
    if _PINNED.fullmatch(target):
        return f"{_PINNED_REFUSED}; name the topic alone"
    return "" if is_topic_name(target) else "expected a topic name: up to 249 letters, digits, '.', '_' and '-'"

"""The key `rename`: a template with `{topic}`, a map of source topic to destination topic, or rules with groups.

Whatever names the destination may pin a partition of it: `dst:3`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from relay_pipelines.plan.topic_selection import Rename, RenameRule, is_topic_name, target
from relay_pipelines.settings.values import complaints, expected


def rename_rule(value: object) -> Rename:
    """The template, map or rules, checked as far as that can be done without knowing the topics."""
    if isinstance(value, str):
        return _template(value)
    if isinstance(value, list):
        return _rules(value)
    if not isinstance(value, dict):
        raise expected(
            'a template such as "copy.{topic}", a map of source topic to destination topic, or a list of rules'
        )
    targets = {topic: target(one) for topic, one in value.items() if isinstance(one, str)}
    found = [((topic,), problem) for topic, one in value.items() if (problem := _problem(one))]
    count = Counter(one.topic for one in targets.values())
    unpinned = {
        one.topic: topic
        for topic, one in targets.items()
        if one.partition is None and count[one.topic] > 1
    }
    found += [
        (
            (topic,),
            'another topic is renamed to the same; pin both to a partition of it, as in "dst:0", or let their names differ',
        )
        for topic in unpinned.values()
    ]
    if found:
        raise complaints(*found)
    return dict(value)


def _template(template: str) -> str:
    to = target(template)
    if "{topic}" not in template and to.partition is None:
        raise expected(
            'a template that contains "{topic}", or pins a partition as in "all:0"',
            "every topic would land on the same",
        )
    if not is_topic_name(to.topic.replace("{topic}", "x")):
        raise expected("a template of letters, digits, '.', '_', '-' and \"{topic}\"")
    return template


def _rules(entries: list[object]) -> tuple[RenameRule, ...]:
    found = [
        ((index, key), problem)
        for index, entry in enumerate(entries)
        for key, problem in _rule_problems(entry)
    ]
    if found:
        raise complaints(*found)
    return tuple(RenameRule(**entry) for entry in entries if isinstance(entry, dict))


def _rule_problems(entry: object) -> Iterator[tuple[str, str]]:
    if (
        not isinstance(entry, dict)
        or set(entry) != {"match", "to"}
        or not all(isinstance(one, str) for one in entry.values())
    ):
        yield (
            "match",
            'expected the two keys match and to, both text in quotes, as in {match: "orders\\.(.*)", to: "eu.\\1"}',
        )
        return
    try:
        groups = re.compile(entry["match"]).groups
    except re.error as error:
        yield "match", f"expected a regular expression: {error}"
        return
    wanted = [int(number) for number in re.findall(r"\\(\d+)", entry["to"])]
    if max(wanted, default=0) > groups:
        yield "to", f"refers to group {max(wanted)}, and match has {groups}"
    elif not is_topic_name(target(re.sub(r"\\(?:\d+|g<\w+>)", "x", entry["to"])).topic):
        yield "to", "expected letters, digits, '.', '_', '-' and groups such as \\1"


def _problem(name: object) -> str:
    if name is None:
        return 'no destination topic given; a template needs quotes: "{topic}"'
    if not isinstance(name, str):
        return "expected the name of a destination topic; put it in quotes"
    return (
        ""
        if is_topic_name(target(name).topic)
        else "expected a topic name: up to 249 letters, digits, '.', '_' and '-'"
    )

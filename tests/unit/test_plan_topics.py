"""Which topics are copied, and their names, as tables."""

from __future__ import annotations

import re

import pytest

from relay_pipelines.plan.topic_selection import (
    RenameRule,
    Target,
    TopicDecision,
    destinations,
    is_topic_name,
    matches_nothing,
    refusals,
    select,
    targets,
)
from tests.support.tables import titled


@pytest.mark.parametrize(
    ("allow", "deny", "topic", "included", "why"),
    [
        (["orders"], [], "orders", True, "allowed by 'orders'"),
        # the whole name, not its beginning, nor its end
        (["orders"], [], "orders.eu", False, "no allow pattern matches"),
        (["orders"], [], "my.orders", False, "no allow pattern matches"),
        # fullmatch binds looser than |
        (["a|orders"], [], "orders", True, "allowed by 'a|orders'"),
        ([".*"], [r".*\.tmp"], "orders.tmp", False, r"denied by '.*\\.tmp'"),
        (["orders"], ["orders"], "orders", False, "denied by 'orders'"),
        ([".*"], [], "__consumer_offsets", False, "internal topics are never copied"),
        (["__relay_ledger"], [], "__relay_ledger", False, "internal topics are never copied"),
        ([".*"], [], "_schemas", True, "allowed by '.*'"),
        (["x", "or.*", "orders"], [], "orders", True, "allowed by 'or.*'"),
        ([], [], "orders", False, "no allow pattern matches"),
    ],
)
def test_deny_wins_patterns_match_whole_names_and_internal_topics_stay(
    allow, deny, topic, included, why
):
    assert select([topic], allow, deny) == [TopicDecision(topic, included, why)]


def test_every_topic_is_decided_once_in_order():
    """The first pattern that matches is named, whether it spells a name out or not."""
    assert [decision.topic for decision in select(["b", "a", "b"], [".*"], [])] == ["a", "b"]
    patterns = ["b.*", "a", r"c\.d", "a.*", "c.d", "b"]
    topics = ["a", "ab", "b", "bb", "c.d", "cxd", "e"]
    first = {
        topic: next((one for one in patterns if re.fullmatch(one, topic)), None) for topic in topics
    }
    why = {each.topic: each.why for each in select(topics, patterns, [])}
    assert why == {
        topic: "no allow pattern matches" if one is None else f"allowed by {one!r}"
        for topic, one in first.items()
    }
    assert matches_nothing(topics, [*patterns, "x", r"x\.y", "x.*"]) == ["x", r"x\.y", "x.*"]


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ("{topic}", {"a": "a", "b.c": "b.c"}),
        ("copy.{topic}", {"a": "copy.a", "b.c": "copy.b.c"}),
        ({"a": "x"}, {"a": "x", "b.c": "b.c"}),
        ({"a": "b.c", "b.c": "a"}, {"a": "b.c", "b.c": "a"}),
        ({"gone": "a"}, {"a": "a", "b.c": "b.c"}),
        ([RenameRule(r"(\w)\.(\w)", r"\2.\1"), RenameRule(r".*", r"x")], {"a": "x", "b.c": "c.b"}),
        ([RenameRule(r"b", r"x")], {"a": "a", "b.c": "b.c"}),
    ],
)
def test_topics_are_renamed(rename, expected):
    assert destinations(["b.c", "a"], rename) == expected


@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ({"a": "x:3"}, {"a": ("x", 3), "b.c": ("b.c", None)}),
        ({"a": "x:3", "b.c": "x:3"}, {"a": ("x", 3), "b.c": ("x", 3)}),
        ({"a": "x:3", "b.c": "x:0"}, {"a": ("x", 3), "b.c": ("x", 0)}),
        ("all:0", {"a": ("all", 0), "b.c": ("all", 0)}),
        ("{topic}:1", {"a": ("a", 1), "b.c": ("b.c", 1)}),
        ([RenameRule(r"(\w)\.(\w)", r"\1:7")], {"a": ("a", None), "b.c": ("b", 7)}),
    ],
)
def test_topics_are_pinned(rename, expected):
    """Several topics may share a partition on purpose."""
    assert targets(["b.c", "a"], rename) == expected


TO_ONE = (
    "topics 'a' and 'b' would both be copied to '{0}'; change rename so that each has its own"
    ' destination topic, pin both to partitions of it ("{0}:0"), or deny one'
)


INTERNAL = "topic 'a' would be copied to the internal topic '{}'; change rename"


LONG = "a" * 245


REFUSED = [
    ("a name that another keeps", ["a", "b"], {"a": "b"}, TO_ONE.format("b")),
    ("a name twice", ["a", "b"], {"a": "c", "b": "c"}, TO_ONE.format("c")),
    ("pinned to what another keeps", ["a", "b"], {"a": "b:0"}, TO_ONE.format("b")),
    ("internal by template", ["a"], "__{topic}", INTERNAL.format("__a")),
    *(
        ("internal by map", ["a"], {"a": name}, INTERNAL.format(name))
        for name in ("__relay_checkpoints",)
    ),
    (
        *("too long for a broker", [LONG], "copy.{topic}"),
        (
            f"topic '{LONG}' would be called 'copy.{LONG}', which is not a valid topic name;"
            " change rename: up to 249 letters, digits, '.', '_' and '-' are allowed"
        ),
    ),
]


@titled("topics, rename, line", REFUSED)
def test_bad_destinations_are_refused(topics, rename, line):
    fine = {"fine": Target("fine")}
    found = refusals(targets(topics, rename) | fine, {}, ())
    assert {topic: str(error) for topic, error in found.items()} == dict.fromkeys(topics, line)


@pytest.mark.parametrize(
    ("holders", "refused"),
    [
        ([], ["a", "b", "x.quarantine"]),
        (["a"], ["b", "x.quarantine"]),
        (["a", "b"], ["a", "b", "x.quarantine"]),
        (["a", "x.quarantine"], ["b", "x"]),
    ],
)
def test_a_newcomer_gives_way(holders, refused):
    """The topic whose copies are there already is copied on."""
    wanted = targets(["a", "b", "x", "x.quarantine"], {"b": "a"})
    found = refusals(wanted, {"x": "x.quarantine"}, holders)
    assert sorted(found) == refused
    assert {error.exit_code for error in found.values()} == {2}


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("a", True),
        ("A.b_c-1", True),
        ("a" * 249, True),
        ("a" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
        ("a b", False),
    ],
)
def test_names_are_legal_as_brokers_see_it(name, legal):
    assert is_topic_name(name) is legal

"""Which topics are copied, their names, and ways on which they would return, as tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

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
from relay_pipelines.plan.ways import MirrorNames, errors, returns, starts
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


NAMES = {"A": "a", "B": "b", "C": "c", "D": "d"}


def mirror(name: str, **topics: Any) -> MirrorNames:
    """Return the mirror `ab` from A to B; `acb` reads A and C, which hold the same records."""
    *sources, destination = list(name.upper())
    everything = {"allow": [".*"], "deny": [], "rename": "{topic}"} | topics
    return MirrorNames(name, frozenset(sources), destination, **everything)


def lines(mirrors: Sequence[MirrorNames], topics: Mapping[str, Sequence[str]]) -> list[str]:
    found = returns(mirrors, starts(mirrors, topics))
    return list(map(str, errors(found, NAMES.__getitem__)))


PREFIX_A, PREFIX_B = {"rename": "a.{topic}"}, {"rename": "b.{topic}"}


DENIES_A, DENIES_B = {"deny": [r"a\..*"]}, {"deny": [r"b\..*"]}


# the way, with each mirror in brackets, and what denies it in which mirror
COME_BACK = {
    "two mirrors without prefixes, whichever side has the topic": (
        [mirror("ab"), mirror("ba")],
        {"A": ["orders"], "B": ["orders"]},
        "orders at a -> orders at b [ab] -> orders at a [ba]",
        "'orders' @ 'ba'",
    ),
    "one of two mirrors does not deny the prefix of the other": (
        [mirror("ab", **PREFIX_A, **DENIES_B), mirror("ba", **PREFIX_B)],
        {"A": ["orders", "payments"], "B": ["orders"]},
        "orders at a -> a.orders at b [ab] -> b.a.orders at a [ba], and so would 1 more topic",
        r"'a\..*' @ 'ba'",
    ),
    "a ring of three": (
        [mirror("ab"), mirror("bc"), mirror("ca", allow=["o.*"])],
        {"A": ["orders", "payments"]},
        "orders at a -> orders at b [ab] -> orders at c [bc] -> orders at a [ca]",
        "'orders' @ 'ca'",
    ),
    "a way that leads into a ring is not part of it": (
        [mirror("da"), mirror("ab"), mirror("ba")],
        {"D": ["orders"]},
        "orders at a -> orders at b [ab] -> orders at a [ba]",
        "'orders' @ 'ba'",
    ),
    "only one of two ways to a topic comes back": (
        [
            *(mirror(name, allow=["order."]) for name in ("ea", "ab", "ac", "bd", "cd")),
            mirror("db", rename="d.{topic}"),
        ],
        {"E": ["orders"]},
        "orders at b -> orders at d [bd] -> d.orders at b [db]",
        "'orders' @ 'db'",
    ),
    "a name that allow spells out, before the topic exists": (
        [mirror("ab", allow=[r"orders\.eu"]), mirror("ba")],
        {},
        "orders.eu at a -> orders.eu at b [ab] -> orders.eu at a [ba]",
        "'orders.eu' @ 'ba'",
    ),
    "a quarantine": (
        [
            mirror("ab", **PREFIX_A, quarantine=lambda _, copy: f"{copy}.quarantine"),
            mirror("ba", allow=[r".*\.quarantine"]),
        ],
        {"A": ["orders"]},
        "orders at a -> a.orders.quarantine at b [ab] -> a.orders.quarantine at a [ba]",
        r"'a\..*' @ 'ba'",
    ),
    "to another node of the source": (
        [mirror("acb"), mirror("bc")],
        {"A": ["orders"]},
        "orders at c -> orders at b [acb] -> orders at c [bc]",
        "'orders' @ 'bc'",
    ),
    "a copy within the cluster where the way begins, and within the other": (
        [
            *(mirror("aa", allow=["ord.*"], rename="in"), mirror("ab", allow=["i.*"])),
            *(mirror("bb", allow=["i.*"], rename="out"), mirror("ba", allow=["out"])),
        ],
        {"A": ["orders"]},
        "in at a -> in at b [ab] -> out at b [bb] -> out at a [ba]",
        "'out' @ 'ba'",
    ),
    "many topics are one line, with the first patterns": (
        [mirror("ab"), mirror("ba")],
        {"A": ["e", "d", "c", "b", "a"]},
        "a at a -> a at b [ab] -> a at a [ba], and so would 4 more topics",
        "'a', 'b', 'c' and 2 more @ 'ba'",
    ),
}


GO_ON = {
    "prefixes that both deny": (
        [mirror("ab", **PREFIX_A, **DENIES_B), mirror("ba", **PREFIX_B, **DENIES_A)],
        {"A": ["orders", "b.orders"], "B": ["orders", "a.orders"]},
    ),
    "different topics in both directions": (
        [mirror("ab", allow=["orders"]), mirror("ba", allow=["payments"])],
        {"A": ["orders", "payments"], "B": ["orders", "payments"]},
    ),
    "a hub": ([mirror("ab"), mirror("bc"), mirror("bd")], {"A": ["orders"]}),
    "a diamond": ([mirror(name) for name in ("ab", "ac", "bd", "cd")], {"A": ["orders"]}),
    "within one cluster, which decides by itself": (
        [mirror("aa", rename="{topic}.copy"), mirror("aba", rename="{topic}.again")],
        {"A": ["orders"]},
    ),
    "a name no mirror may copy to": (
        [mirror("ab", rename="__{topic}"), mirror("ba")],
        {"A": ["o"]},
    ),
}


@pytest.mark.parametrize("title", COME_BACK)
def test_a_return_is_one_line_with_its_path_and_remedy(title: str) -> None:
    mirrors, topics, way, denied = COME_BACK[title]
    way = re.sub(r"\[(\w+)\]", r"(mirror \1)", way)
    remedy = denied.replace(" @ ", " to topics.deny of mirror ")
    assert lines(mirrors, topics) == [f"records would come back: {way}; add {remedy}"]


@pytest.mark.parametrize("title", GO_ON)
def test_what_does_not_come_back_is_not_refused(title: str) -> None:
    assert lines(*GO_ON[title]) == []

"""Which topics are copied, and their names, as tables."""

import re
from typing import Any

import pytest

from relay_pipelines.plan import topic_selection
from relay_pipelines.plan.topic_selection import RenameRule, refusals, select, targets


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
def test_deny_wins_whole_names_match_and_internal_topics_stay(allow, deny, topic, included, why):
    assert select([topic], allow, deny) == [topic_selection.TopicDecision(topic, included, why)]


def test_every_topic_is_decided_once_in_order():
    """The first pattern that matches is named, whether it spells a name out or not."""
    assert [decision.topic for decision in select(["b", "a", "b"], [".*"], [])] == ["a", "b"]
    patterns = ["b.*", "a", r"c\.d", "a.*", "c.d", "b"]
    topics = ["a", "ab", "b", "bb", "c.d", "cxd", "e"]
    first = {t: next((one for one in patterns if re.fullmatch(one, t)), None) for t in topics}
    why = {each.topic: each.why for each in select(topics, patterns, [])}
    assert why == {
        topic: "no allow pattern matches" if one is None else f"allowed by {one!r}"
        for topic, one in first.items()
    }
    unseen = ["x", r"x\.y", "x.*"]
    assert topic_selection.matches_nothing(topics, [*patterns, *unseen]) == unseen


@pytest.mark.parametrize(
    ("rename", "a", "bc"),
    [
        ("{topic}", ("a", None), ("b.c", None)),
        ("copy.{topic}", ("copy.a", None), ("copy.b.c", None)),
        ({"a": "x"}, ("x", None), ("b.c", None)),
        ({"a": "b.c", "b.c": "a"}, ("b.c", None), ("a", None)),
        ({"gone": "a"}, ("a", None), ("b.c", None)),
        ([RenameRule(r"(\w)\.(\w)", r"\2.\1"), RenameRule(r".*", "x")], ("x", None), ("c.b", None)),
        ([RenameRule(r"b", r"x")], ("a", None), ("b.c", None)),
        ({"a": "x:3"}, ("x", 3), ("b.c", None)),
        ({"a": "x:3", "b.c": "x:3"}, ("x", 3), ("x", 3)),
        ({"a": "x:3", "b.c": "x:0"}, ("x", 3), ("x", 0)),
        ("all:0", ("all", 0), ("all", 0)),
        ("{topic}:1", ("a", 1), ("b.c", 1)),
        ([RenameRule(r"(\w)\.(\w)", r"\1:7")], ("a", None), ("b", 7)),
    ],
)
def test_topics_are_renamed_and_pinned(rename, a, bc):
    """Several topics may share a partition on purpose."""
    assert targets(["b.c", "a"], rename) == {"a": a, "b.c": bc}


REFUSED: dict[str, Any] = {
    "a name that another keeps": (["a", "b"], {"a": "b"}),
    "a name twice": (["a", "b"], {"a": "c", "b": "c"}),
    "pinned to what another keeps": (["a", "b"], {"a": "b:0"}),
    "internal by template": (["a"], "__{topic}"),
    "internal by map": (["a"], {"a": "__relay_checkpoints"}),
    "too long for a broker": (["a" * 245], "copy.{topic}"),
}


@pytest.mark.parametrize("title", REFUSED)
def test_bad_destinations_are_refused(wordings, title):
    topics, rename = REFUSED[title]
    found = refusals(targets(topics, rename) | {"fine": topic_selection.Target("fine")}, {}, ())
    (line,) = {str(error) for error in found.values()}
    assert found.keys() == {*topics}
    wordings.check(f"destination: {title}", line)


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
        *((name, True) for name in ("a", "A.b_c-1", "a" * 249)),
        *((name, False) for name in ("a" * 250, "", ".", "..", "a b")),
    ],
)
def test_names_are_legal_as_brokers_see_it(name, legal):
    assert topic_selection.is_topic_name(name) is legal

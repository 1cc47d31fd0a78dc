"""Copies that would come back by way of several mirrors, as the lines that name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from relay_pipelines.plan.ways import MirrorNames, errors, returns, starts

NAMES = {"A": "a", "B": "b", "C": "c", "D": "d"}


def mirror(name: str, **topics: Any) -> MirrorNames:
    """Return the mirror `ab` from A to B; `acb` reads A and C, which hold the same records."""
    *sources, destination = name.upper()
    everything = {"allow": [".*"], "deny": [], "rename": "{topic}"} | topics
    return MirrorNames(name, frozenset(sources), destination, **everything)


def lines(mirrors: Sequence[MirrorNames], topics: Mapping[str, Sequence[str]]) -> list[str]:
    found = returns(mirrors, starts(mirrors, topics))
    return list(map(str, errors(found, NAMES.__getitem__)))


PREFIX_A, PREFIX_B = {"rename": "a.{topic}"}, {"rename": "b.{topic}"}
DENIES_A, DENIES_B = {"deny": [r"a\..*"]}, {"deny": [r"b\..*"]}
COME_BACK = {
    "two mirrors without prefixes, whichever side has the topic": (
        [mirror("ab"), mirror("ba")],
        {"A": ["orders"], "B": ["orders"]},
        (
            "records would come back: orders at a -> orders at b (mirror ab) -> orders at a"
            " (mirror ba); add 'orders' to topics.deny of mirror 'ba'"
        ),
    ),
    "one of two mirrors does not deny the prefix of the other": (
        [mirror("ab", **PREFIX_A, **DENIES_B), mirror("ba", **PREFIX_B)],
        {"A": ["orders", "payments"], "B": ["orders"]},
        (
            "records would come back: orders at a -> a.orders at b (mirror ab) -> b.a.orders at a"
            r" (mirror ba), and so would 1 more topic; add 'a\..*' to topics.deny of mirror 'ba'"
        ),
    ),
    "a ring of three": (
        [mirror("ab"), mirror("bc"), mirror("ca", allow=["o.*"])],
        {"A": ["orders", "payments"]},
        (
            "records would come back: orders at a -> orders at b (mirror ab) -> orders at c"
            " (mirror bc) -> orders at a (mirror ca); add 'orders' to topics.deny of mirror 'ca'"
        ),
    ),
    "a way that leads into a ring is not part of it": (
        [mirror("da"), mirror("ab"), mirror("ba")],
        {"D": ["orders"]},
        (
            "records would come back: orders at a -> orders at b (mirror ab) -> orders at a"
            " (mirror ba); add 'orders' to topics.deny of mirror 'ba'"
        ),
    ),
    "only one of two ways to a topic comes back": (
        [
            *(mirror(name, allow=["order."]) for name in ("ea", "ab", "ac", "bd", "cd")),
            mirror("db", rename="d.{topic}"),
        ],
        {"E": ["orders"]},
        (
            "records would come back: orders at b -> orders at d (mirror bd) -> d.orders at b"
            " (mirror db); add 'orders' to topics.deny of mirror 'db'"
        ),
    ),
    "a name that allow spells out, before the topic exists": (
        [mirror("ab", allow=[r"orders\.eu"]), mirror("ba")],
        {},
        (
            "records would come back: orders.eu at a -> orders.eu at b (mirror ab) -> orders.eu at"
            " a (mirror ba); add 'orders.eu' to topics.deny of mirror 'ba'"
        ),
    ),
    "a quarantine": (
        [
            mirror("ab", **PREFIX_A, quarantine=lambda _, copy: f"{copy}.quarantine"),
            mirror("ba", allow=[r".*\.quarantine"]),
        ],
        {"A": ["orders"]},
        (
            "records would come back: orders at a -> a.orders.quarantine at b (mirror ab) ->"
            r" a.orders.quarantine at a (mirror ba); add 'a\..*' to topics.deny of mirror 'ba'"
        ),
    ),
    "to another node of the source": (
        [mirror("acb"), mirror("bc")],
        {"A": ["orders"]},
        (
            "records would come back: orders at c -> orders at b (mirror acb) -> orders at c"
            " (mirror bc); add 'orders' to topics.deny of mirror 'bc'"
        ),
    ),
    "a copy within the cluster where the way begins, and within the other": (
        [
            mirror("aa", allow=["ord.*"], rename="in"),
            mirror("ab", allow=["i.*"]),
            mirror("bb", allow=["i.*"], rename="out"),
            mirror("ba", allow=["out"]),
        ],
        {"A": ["orders"]},
        (
            "records would come back: in at a -> in at b (mirror ab) -> out at b (mirror bb) -> out"
            " at a (mirror ba); add 'out' to topics.deny of mirror 'ba'"
        ),
    ),
    "many topics are one line, with the first patterns": (
        [mirror("ab"), mirror("ba")],
        {"A": ["e", "d", "c", "b", "a"]},
        (
            "records would come back: a at a -> a at b (mirror ab) -> a at a (mirror ba), and so"
            " would 4 more topics; add 'a', 'b', 'c' and 2 more to topics.deny of mirror 'ba'"
        ),
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
    "a diamond": (
        [mirror("ab"), mirror("ac"), mirror("bd"), mirror("cd")],
        {"A": ["orders"]},
    ),
    "within one cluster, which decides by itself": (
        [mirror("aa", rename="{topic}.copy"), mirror("aba", rename="{topic}.again")],
        {"A": ["orders"]},
    ),
    "a name that no mirror may copy to": (
        [mirror("ab", rename="__{topic}"), mirror("ba")],
        {"A": ["orders"]},
    ),
}


@pytest.mark.parametrize("title", COME_BACK)
def test_a_return_is_one_line_with_its_path_and_remedy(title: str) -> None:
    mirrors, topics, expected = COME_BACK[title]
    assert lines(mirrors, topics) == [expected]


@pytest.mark.parametrize("title", GO_ON)
def test_what_does_not_come_back_is_not_refused(title: str) -> None:
    assert lines(*GO_ON[title]) == []

"""Which upstream is read, as tables."""

from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.errors import SourceError
from relay_pipelines.model import Cluster, Fingerprint, TopicPartition
from relay_pipelines.plan import upstream_choice
from relay_pipelines.plan.blockers import Blocker, Facts, judge
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.upstream_choice import choose_upstream, judge_upstreams
from relay_pipelines.plan.upstreams import Log, UpstreamSelection, UpstreamState
from tests.support.tables import titled

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def answered(name: str, ends: dict[TopicPartition, int], **more: Any) -> UpstreamState:
    logs = {tp: Log(0, end) for tp, end in ends.items()}
    return UpstreamState(Cluster(name, ()), **{"logs": logs} | more)


def view(name: str, a: int, b: int = 0, **more: Any) -> UpstreamState:
    return answered(name, {A: a, B: b}, **more)


def down(name: str) -> UpstreamState:
    return UpstreamState(Cluster(name, ()), error=SourceError(f"{name} cannot be reached"))


def kept(name: str, low_a: int, low_b: int = 0) -> UpstreamState:
    """Return an upstream whose retention has deleted the start of the log."""
    return answered(name, {}, logs={A: Log(low_a, 10), B: Log(low_b, 10)})


FINE = (True, True, 0)
BOTH_FINE = [FINE] * 2
SECOND = [(False, False, 0), (True, True, 0)]  # the first cannot be read
NEITHER = [(False, False, 0)] * 2


def late_by(offsets: int) -> tuple[bool, bool, int]:
    return (True, False, offsets)


def behind(offsets: int) -> tuple[bool, bool, int]:
    return (True, True, offsets)


BOTH_SHORT = [late_by(1), late_by(0)]
LEAVES: dict[str, Any] = {"quarantined": "diverged"}
X6, X10, Y5 = kept("x", 6), view("x", 10), view("y", 5)
EMPTY = [answered("x", {}), answered("y", {})]
UNPROVED_X, LACKING_X = (
    answered("x", {}, logs={A: Log(0, 99, is_proved=False)}),
    answered("x", {B: 3}),
)
JUDGED = [  # title, the upstreams, what was copied, the threshold, what is expected of each
    ("all level", [view("x", 10), view("y", 10)], {}, 0, BOTH_FINE),
    ("behind, within the threshold", [view("x", 10), view("y", 7)], {}, 3, [FINE, behind(3)]),
    ("beyond it: charged to the late one", [X10, view("y", 6)], {}, 3, [FINE, late_by(4)]),
    ("no threshold: late is healthy", [X10, view("y", 0)], {}, None, [FINE, behind(10)]),
    ("counted per topic-partition", [view("x", 10, 0), view("y", 0, 10)], {}, 5, [late_by(10)] * 2),
    ("a dead upstream keeps no weight", [down("x"), view("y", 3)], {}, 0, SECOND),
    (
        "a quarantined upstream keeps no weight",
        [view("x", 99, **LEAVES), view("y", 3)],
        {},
        0,
        SECOND,
    ),
    ("came back empty", [view("x", 0), view("y", 10)], {A: 5}, None, SECOND),
    ("retention passed it here alone", [X6, kept("y", 5)], {A: 5}, 0, SECOND),
    ("... everywhere: that is for the guards", [X6, kept("y", 6)], {A: 5}, 0, BOTH_FINE),
    ("... here further: the rest is not given up", [kept("x", 8), kept("y", 6)], {A: 5}, 0, SECOND),
    ("... while another one does not answer", [X6, down("y")], {A: 5}, 0, NEITHER),
    ("each lacks something", [X6, kept("y", 0, 6)], {A: 5, B: 5}, 0, NEITHER),
    ("ends before the copy everywhere", [view("x", 3), view("y", 4)], {A: 5}, None, BOTH_SHORT),
    ("ends where the copy is: eligible", [view("x", 5), Y5], {A: 5}, 0, BOTH_FINE),
    ("lacks a copied topic-partition", [LACKING_X, Y5], {A: 5}, None, SECOND),
    ("nothing proves its log: the other has it", [UNPROVED_X, Y5], {A: 5}, 0, SECOND),
    ("nothing proves any: for the guards", [UNPROVED_X, down("y")], {A: 5}, 0, SECOND[::-1]),
    ("nothing anywhere: an empty source is healthy", EMPTY, {}, 0, BOTH_FINE),
]


@titled("views, copied, threshold, expected", JUDGED)
def test_judged(views, copied, threshold, expected):
    """The expected values are eligible, healthy and behind, per upstream."""
    assert [
        (judged.eligible, judged.healthy, judged.behind)
        for judged in judge_upstreams(views, copied, threshold)
    ] == expected


def well(name: str) -> UpstreamState:
    return UpstreamState(Cluster(name, ()))


def late(name: str, behind: int) -> UpstreamState:
    return UpstreamState(Cluster(name, ()), behind=behind, unhealthy="late")


def dead(name: str) -> UpstreamState:
    return UpstreamState(Cluster(name, ()), unreadable=f"{name} is down")


NEVER, BACK = upstream_choice.Failback.NEVER, upstream_choice.Failback.WHEN_HEALTHY
TWO = [well("x"), well("y")]
CHOSEN = [
    ("sticky: an earlier healthy upstream does not pull", TWO, "y", NEVER, 0, "y"),
    ("failback: it does", TWO, "y", BACK, 0, "x"),
    ("failback only to a healthy one", [late("x", 9), well("y")], "y", BACK, 0, "y"),
    ("round robin from the one that failed", [well("x"), dead("y"), well("z")], "y", NEVER, 0, "z"),
    ("round robin wraps", [well("x"), well("y"), dead("z")], "z", NEVER, 0, "x"),
    ("a late one is left for a healthy one", [late("x", 9), well("y")], "x", NEVER, 0, "y"),
    ("all late: the least late", [late("x", 9), late("y", 4)], "x", NEVER, 0, "y"),
    ("late is better than none", [late("x", 9), dead("y")], "y", NEVER, 0, "x"),
    ("nobody", [dead("x"), dead("y")], "x", NEVER, 0, None),
    ("a first choice without a current upstream", TWO, None, NEVER, 0, "x"),
    ("... of the second attempt", TWO, None, NEVER, 1, "y"),
    ("... of the third", TWO, None, NEVER, 2, "x"),
    ("a second attempt leaves the upstream that was read last", TWO, "y", NEVER, 1, "x"),
    ("... also the first of the configuration", TWO, "x", NEVER, 1, "y"),
    ("... and a third one comes back to it", TWO, "y", NEVER, 2, "y"),
    ("a current upstream that is not configured any more", TWO, "gone", NEVER, 0, "x"),
    ("an only one", [well("x")], None, NEVER, 1, "x"),
    ("an only one that is down", [dead("x")], "x", NEVER, 0, None),
]


@titled("judged, current, failback, attempt, expected", CHOSEN)
def test_chosen(judged, current, failback, attempt, expected):
    """The upstream that is read next."""
    assert choose_upstream(judged, current, failback, attempt).name == expected


NO_A, NO_B = [kept("x", 6), kept("y", 0, 6)], [kept("x", 6, 6), kept("y", 6, 0), kept("z", 0, 6)]
NOTHING = [kept("x", 6, 6), answered("y", {A: 0, B: 0}), down("z")]
LACKING = [  # title, the upstreams, the one read, the one to read, and that if nobody waits
    ("the one that lacks the fewest", NO_B, "x", "y", "y"),
    ("the current one, if others lack as many", NO_A, "x", "x", "x"),
    ("one that does not answer is awaited for a moment", [*NO_A, down("z")], "x", None, "x"),
    ("... and on, by those that have nothing at all", NOTHING, "z", None, None),
    ("one that is held takes no other with it", [view("x", 1, 10), down("z")], "z", None, "x"),
    ("one in quarantine is not asked", [*NO_A, view("z", 10, 10, **LEAVES)], "y", "y", "y"),
]


@titled("views, current, awaiting, expected", LACKING)
def test_no_upstream_has_everything(views, current, awaiting, expected):
    """The upstream with the most of it is read, also if others stay silent."""
    judged = judge_upstreams(views, {A: 5, B: 5}, None)
    assert choose_upstream(judged, current, NEVER, waits=True).name == awaiting
    assert choose_upstream(judged, current, NEVER).name == expected


def test_nobody_is_told_with_every_upstreams_own_reason():
    """Who gets no upstream is told why, upstream by upstream."""
    choice = choose_upstream(judge_upstreams([down("x"), view("y", 1)], {A: 5}, None), "x", NEVER)
    assert choice.name is None
    assert choice.why == (
        "x: x cannot be reached; y: t-0 ends at 1 on this upstream, and was copied up to 5:"
        " the upstream lost records, or never had them"
    )


def test_the_fields_in_which_two_records_differ() -> None:
    """The timestamp counts, unless brokers have set it."""
    record = Fingerprint(3, 5, "a", "a", "a")
    both, later = replace(record, key="b", headers="b"), replace(record, timestamp_ms=6)
    assert record.differing(record, timed=True) == []
    assert record.differing(both, timed=True) == ["key", "headers"]
    assert record.differing(replace(later, value="b"), timed=True) == ["value", "timestamp"]
    assert record.differing(later, timed=False) == []


HAS_ALL, SILENT = answered("b", {A: 200}), down("c")
WITH_IT_ALONE = "with only that upstream in source.upstreams"
START_IT = "start that upstream, grant what it refuses, or remove it from source.upstreams"
ELSEWHERE = [
    ("before the first copy, another upstream has older ones", None, [HAS_ALL], WITH_IT_ALONE),
    ("also while a third one is silent", None, [SILENT, HAS_ALL], WITH_IT_ALONE),
    ("only the silent one may have them", None, [SILENT], START_IT),
    ("what retention took, another upstream has", 50, [HAS_ALL], WITH_IT_ALONE),
    ("that too, while a third one is silent", 50, [SILENT, HAS_ALL], WITH_IT_ALONE),
    ("that only the silent one may have", 50, [SILENT], START_IT),
]


@titled("copied, others, remedy", ELSEWHERE)
def test_what_another_upstream_has(
    copied: int | None, others: list[UpstreamState], remedy: str
) -> None:
    """What to do follows from the upstream that has the records, and not from one beside it."""
    selection = UpstreamSelection((well("a"), *others), "a", "")
    position = selection.with_others(Position(A, 100, 200, copied))
    ((blocker, error),) = judge([position], Facts())[A].items()
    assert (blocker, type(error)) == (Blocker.ELSEWHERE, SourceError)
    assert remedy in error.remedy


@pytest.mark.parametrize("recreated", [False, True])
def test_an_upstream_that_is_behind_is_called_nothing_else(*, recreated: bool) -> None:
    """Whether its log is another one is unknown while it ends before the last record copied."""
    selection = UpstreamSelection((well("a"), SILENT), "a", "")
    position = selection.with_others(Position(A, 0, 100, 150, recreated=recreated))
    ((_, error),) = judge([position], Facts())[A].items()
    assert error.what.startswith(
        "the upstream that is read has it only up to offset 100, but upstream c does not answer: "
    )

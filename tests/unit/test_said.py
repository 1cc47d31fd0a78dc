"""What the planner reports of topics, when it reports it again, and what it remembers for that."""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance

from relay_pipelines.checks import lag_target
from relay_pipelines.checks.other_deployments import Foreign
from relay_pipelines.errors import ConfigError, SourceError
from relay_pipelines.formats import HEALTH_CURSOR, PLANNER_CURSOR
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import dated
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.plan.blockers import Blocker, Facts
from relay_pipelines.plan.positions import Position
from relay_pipelines.sensors import lane_plan
from relay_pipelines.sensors.lane_plan import LaneTick
from relay_pipelines.sensors.said import Cursor, MirrorCursor, Said, recalled
from relay_pipelines.settings import WindowSettings
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot, Selected
from tests.support.run_plans import snapshot_of


def lane(*topics: str) -> Lane:
    return Lane("m", "main", WindowSettings(), tuple(topics))


def snapshot(**ends: int) -> ClusterSnapshot:
    """Topics of two topic-partitions, the second of which has one offset."""
    positions = [
        Position(TopicPartition(topic, partition), 0, end)
        for topic, first in ends.items()
        for partition, end in ((0, first), (1, 1))
    ]
    return snapshot_of("m", "a", {topic: topic for topic in ends}, positions)


class Ticks:
    """Ticks of a planner at moments of our own, whose events are reported."""

    def __init__(self, instance: DagsterInstance) -> None:
        self.instance = instance
        self.cursor = Cursor()
        self.began = time.time()  # Dagster stamps the events

    def tick(
        self, topics: Lane, found: ClusterSnapshot, seconds: float = 0, deny: str = ""
    ) -> Mapping[type, list[Any]]:
        """Return the materialisations of source topics, and the evaluations of lag targets."""
        context: Any = SimpleNamespace(instance=self.instance)
        patterns = SimpleNamespace(allow=[".*"], deny=[deny] if deny else [])
        kafka: Any = SimpleNamespace(mirror=lambda _: SimpleNamespace(topics=patterns))
        lag: Any = SimpleNamespace(look=SimpleNamespace(late=()))
        assets, now = frozenset(topics.topics), self.began + seconds
        known = (kafka, found, (), assets, self.cursor, now)
        one = LaneTick(context, topics, [topics], [], *known)
        events = defaultdict(list)
        for event in one._topics(lag):
            self.instance.report_runless_asset_event(event)
            events[type(event)].append(event)
        return events

    def grown(
        self, topics: Lane, found: ClusterSnapshot, seconds: float = 0
    ) -> dict[str, dict[str, Any]]:
        """Return what a tick reports of source topics."""
        return {
            event.asset_key.path[-1]: {key: value.value for key, value in event.metadata.items()}
            for event in self.tick(topics, found, seconds)[dg.AssetMaterialization]
        }

    def targets(self, *given: Any, **more: Any) -> dict[str, bool]:
        """Return of which topics a tick reports the lag target, and whether they meet it."""
        found = self.tick(*given, **more)[dg.AssetCheckEvaluation]
        return {event.asset_key.path[-1]: event.passed for event in found}


@pytest.fixture
def ticks() -> Iterator[Ticks]:
    with DagsterInstance.ephemeral() as instance:
        yield Ticks(instance)


def test_a_topic_is_reported_at_once_and_then_every_five_minutes_if_it_grows(ticks):
    """With its rate; created again, it has none; one without an asset is not reported."""
    topics = lane("still", "t")
    first = ticks.grown(topics, snapshot(t=10, still=5))
    assert first == {
        "source.still": {"end offset (sum)": 6, "topic-partitions": 2, "upstream": "a"},
        "source.t": {"end offset (sum)": 11, "topic-partitions": 2, "upstream": "a"},
    }
    assert not ticks.grown(topics, snapshot(t=1_000, still=5), 290)
    second = ticks.grown(topics, snapshot(t=4_010, still=5), 400)
    assert list(second) == ["source.t"]
    assert second["source.t"]["end offset (sum)"] == 4_011
    assert second["source.t"]["rate (offsets/s)"] == pytest.approx(10, abs=0.2)
    again = ticks.grown(topics, snapshot(t=5, still=5, new=1), 800)
    assert again["source.t"] == {"end offset (sum)": 6, "topic-partitions": 2, "upstream": "a"}
    assert "source.new" not in again


def test_many_topics_take_turns(ticks):
    """A tick reports a few, all ticks each of them: nothing deletes these events."""
    ten = [f"ten{number}" for number in range(10)]
    ticks.grown(lane(*ten), snapshot(**dict.fromkeys(ten, 1)))
    grown = snapshot(**dict.fromkeys(ten, 9))
    assert not ticks.grown(lane(*ten), grown, 590)
    assert len(ticks.grown(lane(*ten), grown, 660)) == len(ten)
    names = [f"t{number:03d}" for number in range(3 * lane_plan.TOPICS_PER_TICK)]
    many, found = lane(*names), snapshot(**dict.fromkeys(names, 1))
    reported: list[str] = []
    for _ in range(len(names) // lane_plan.TOPICS_PER_TICK):
        events = ticks.grown(many, found)
        assert len(events) == lane_plan.TOPICS_PER_TICK
        reported += events
    assert sorted(reported) == [f"source.{name}" for name in names]
    assert not ticks.grown(many, found)


def test_the_lag_targets_of_many_topics_come_with_several_ticks(ticks):
    """Dagster stores all events of a tick, one by one, before it starts the run it requests."""
    names = [f"t{number:03d}" for number in range(120)]

    def said(names: list[str], second: int, late: str = "") -> list[str]:
        gone = {TopicPartition(late, 0): SourceError("gone")} if late else {}
        found = replace(snapshot(**dict.fromkeys(names, 1)), facts=Facts(unknown=gone))
        return list(ticks.targets(lane(*names), found, second))

    for second, (topics, late, expected) in enumerate(
        (
            (names, "t099", ["t099", *names[:49]]),
            (names, "t099", names[49:99]),
            (names, "", ["t099", *names[100:]]),
            (names, "", []),
            ([*names, "u"], "", ["u"]),
            ([*names, "u"], "", []),
            ([*names, "u"], "", []),
        )
    ):
        assert said(topics, second, late) == expected
    # what is red and should not be, as after a wiped cursor, and nothing else
    event = lag_target.evaluation(lane(), "t001", "late")
    for cursor, second in ((ticks.cursor, 999), (Cursor(), 1_000)):
        ticks.instance.report_runless_asset_event(dated(event, ticks.began + second - 0.5))
        ticks.cursor = cursor
        assert said([*names, "u"], second) == ["t001"]


def test_a_topic_that_comes_and_goes_keeps_no_other_one_from_its_turn(ticks):
    """A turn goes on where the last one has ended, whatever topics there are."""
    names = [f"t{number:03d}" for number in range(120)]
    reported: set[str] = set()
    for second in range(4):
        there = snapshot(**dict.fromkeys(names[second % 2 :], 1))
        reported.update(ticks.targets(lane(*names), there, second))
    assert reported == {*names}


def test_what_fails_is_reported_before_what_is_met_again(ticks):
    """More topics than a tick reports are late, and no more when another one is."""
    names = [*(f"t{number:02d}" for number in range(60)), "u"]
    copied = snapshot(**dict.fromkeys(names, 1))

    def said(second: int, *late: str) -> list[str]:
        gone = {TopicPartition(topic, 0): SourceError("gone") for topic in late}
        found = replace(copied, facts=Facts(unknown=gone))
        return list(ticks.targets(lane(*names), found, second))

    assert said(0, *names[:60]) == names[:50]
    assert said(1, *names[:60]) == names[50:60]
    assert said(2, "u") == ["u", *names[:49]]


def test_the_lag_target_of_a_topic_that_is_gone_is_met_and_said_once(ticks):
    """Whether the source has deleted it, or relay.yaml mirrors it no longer; until it is back."""
    topics, both = lane("a", "b"), snapshot(a=1, b=1)
    left = replace(snapshot(b=1), selected=Selected(deleted={"a": "a"}))
    assert ticks.targets(topics, both) == {"a": True, "b": True}
    for found, deny in ((left, ""), (snapshot(b=1), "a")):
        assert ticks.targets(topics, found, 1, deny=deny) == {"a": True}
        assert ticks.cursor.is_deleted("a") == (not deny)
        for second in (2, 3_000):
            assert ticks.targets(topics, found, second, deny=deny) == {}
        ticks.began += 6_000
        assert ticks.targets(topics, both) == {"a": True}
    assert ticks.targets(topics, snapshot(b=1), 1, deny="a") == {"a": True}
    assert ticks.targets(lane("b"), snapshot(b=1), 2, deny="a") == {}
    assert ticks.cursor.topics == Said(), "it has no asset any more"


def test_a_check_that_failed_to_run_by_hand_is_reported_again(ticks):
    """Dagster has an evaluation that was planned, and says neither that it passed nor why not."""
    key = naming.topic_check("m", "a", naming.LAG_TARGET)

    @dg.asset_check(asset=key.asset_key, name=key.name)
    def broken() -> dg.AssetCheckResult:
        raise ValueError

    by_hand = dg.define_asset_job("by_hand", selection=dg.AssetSelection.checks(key))
    definitions = dg.Definitions(asset_checks=[broken], jobs=[by_hand])
    assert ticks.targets(lane("a"), snapshot(a=1)) == {"a": True}
    definitions.resolve_job_def("by_hand").execute_in_process(
        instance=ticks.instance, raise_on_error=False
    )
    assert ticks.targets(lane("a"), snapshot(a=1), 100) == {"a": True}
    assert ticks.targets(lane("a"), snapshot(a=1), 200) == {}


def test_what_is_due():
    """What is another one than before, or was said a while ago; what is empty is not stored."""
    said = Said()
    for key, mark, now, repeat, expected in (
        ("a", "", 0.0, math.inf, False),
        ("a", "late", 1.0, math.inf, True),
        ("a", "late", 9.0, math.inf, False),
        ("b", "late", 9.0, 5.0, True),
        ("b", "late", 13.0, 5.0, False),
        ("b", "late", 14.0, 5.0, True),
        ("b", "late", 15.0, 0.0, True),
        ("a", "held", 16.0, math.inf, True),
        ("a", "", 17.0, math.inf, True),
        ("a", "", 18.0, math.inf, False),
    ):
        assert said.due(key, mark, now, repeat) == expected
    assert said == Said({"b": ("late", 15.0)})
    assert said.at == 15.0


def test_keys_and_cursors():
    """The graph shows only the last part of a key; a cursor is read as it was stored."""
    assert naming.source_asset("m", "a.b").path[-1] != naming.mirrored_asset("m", "a.b").path[-1]
    assert naming.source_asset("m", "a.b") == dg.AssetKey(["source", "m", "source.a.b"])
    said, foreign = Said({"lag": ("True []", 3.0)}), {"r": Foreign(3.0, "where")}
    cursor = MirrorCursor({"main": Cursor(said, Said(), 3.0, foreign=foreign)}, "nothing to do")
    assert recalled(PLANNER_CURSOR, MirrorCursor, PLANNER_CURSOR.text(cursor), 3.0) == cursor
    assert recalled(HEALTH_CURSOR, Said, HEALTH_CURSOR.text(said), 3.0) == said


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "null", '{"version":103}', '{"version":1}', '{"lanes":{}}'),
        '{"version":100,"lanes":{"main":{"lag_at":"x"}},"line":""}',
        '{"version":100,"marks":{"a":"x"}}',
    ],
)
def test_a_cursor_that_cannot_be_read_is_an_empty_one(text):
    """It is only what was said already: a tick that fails would stop the mirror."""
    assert recalled(PLANNER_CURSOR, MirrorCursor, text, math.inf) == MirrorCursor()
    assert recalled(HEALTH_CURSOR, Said, text, math.inf) == Said()


def test_a_cursor_of_a_time_to_come_is_an_empty_one():
    """A clock was ahead, and is right again: what is due would not be reported until then."""
    for at, is_kept in ((100.0, True), (101.0, False)):
        planner = MirrorCursor({"main": Cursor(known_at=100.0), "own": Cursor(known_at=at)})
        upstreams = Said({"a": ("True", 100.0), "b": ("True", at)})
        found = recalled(PLANNER_CURSOR, MirrorCursor, PLANNER_CURSOR.text(planner), 100.0)
        assert found == (planner if is_kept else MirrorCursor())
        kept = recalled(HEALTH_CURSOR, Said, HEALTH_CURSOR.text(upstreams), 100.0)
        assert kept == (upstreams if is_kept else Said())


def test_what_is_refused_misses_the_target_and_has_no_loss_to_accept():
    """One list says what is not copied; nobody accepts a loss of what is not copied at all."""
    refusal = ConfigError("its records would come back")
    first = TopicPartition("a", 0)
    lost = Position(first, low_watermark=3, end_offset=5, next_offset=1)
    found = snapshot_of("m", "a", {"a": "a"}, [lost])
    assert list(found.held_for(Blocker.LOST)) == [first]
    found = replace(found, facts=Facts(refused={"a": refusal}))
    assert (found.held_for(Blocker.LOST), found.held) == ({}, {first: refusal})
    assert list(found.blockers[first]) == [Blocker.REFUSED, Blocker.LOST]
    for late in ((), (first,)):
        missed = lag_target.missed(lane("a"), found, late, 0)
        assert str(missed["a"]) == str(refusal)

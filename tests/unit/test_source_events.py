"""What the planner reports of source topics: rarely, and never of many at once."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance

from relay_pipelines.checks import lag_target
from relay_pipelines.checks.other_deployments import Foreign
from relay_pipelines.errors import ConfigError, SourceError
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane, Share
from relay_pipelines.plan.blockers import Blocker, Facts
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.sensors import health, source_events
from relay_pipelines.sensors.lane_plan import LaneTick
from relay_pipelines.sensors.source_events import Cursor, MirrorCursor, dated
from relay_pipelines.settings import WindowSettings
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
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
    """Ticks of a planner at moments of our own, which report what they find."""

    def __init__(self, instance: DagsterInstance) -> None:
        self.instance = instance
        self.cursor = Cursor()
        self.began = time.time()  # Dagster stamps the events

    def tick(self, topics: Lane, found: ClusterSnapshot, seconds: float = 0) -> dict[str, Any]:
        events, self.cursor = source_events.find(
            self.instance, topics, found, self.cursor, self.began + seconds
        )
        for event in events:
            self.instance.report_runless_asset_event(event)
        return {
            event.asset_key.path[-1]: {key: value.value for key, value in event.metadata.items()}
            for event in events
        }


@pytest.fixture
def ticks() -> Iterator[Ticks]:
    with DagsterInstance.ephemeral() as instance:
        yield Ticks(instance)


def test_a_topic_is_reported_at_once_and_then_every_five_minutes_if_it_grows(ticks):
    """With its rate; created again, it has none; one without an asset is not reported."""
    topics = lane("still", "t")
    first = ticks.tick(topics, snapshot(t=10, still=5))
    assert first == {
        "source.still": {"end offset (sum)": 6, "topic-partitions": 2, "upstream": "a"},
        "source.t": {"end offset (sum)": 11, "topic-partitions": 2, "upstream": "a"},
    }
    assert not ticks.tick(topics, snapshot(t=1_000, still=5), 290)
    second = ticks.tick(topics, snapshot(t=4_010, still=5), 400)
    assert list(second) == ["source.t"]
    assert second["source.t"]["end offset (sum)"] == 4_011
    assert second["source.t"]["rate (offsets/s)"] == pytest.approx(10, abs=0.2)
    again = ticks.tick(topics, snapshot(t=5, still=5, new=1), 800)
    assert again["source.t"] == {"end offset (sum)": 6, "topic-partitions": 2, "upstream": "a"}
    assert "source.new" not in again


def test_many_topics_take_turns(ticks):
    """A tick reports a few, all ticks each of them: nothing deletes these events."""
    ten = [f"ten{number}" for number in range(10)]
    ticks.tick(lane(*ten), snapshot(**dict.fromkeys(ten, 1)))
    grown = snapshot(**dict.fromkeys(ten, 9))
    assert not ticks.tick(lane(*ten), grown, 590)
    assert len(ticks.tick(lane(*ten), grown, 660)) == len(ten)
    names = [f"t{number:03d}" for number in range(3 * source_events.PER_TICK)]
    many, found = lane(*names), snapshot(**dict.fromkeys(names, 1))
    reported: list[str] = []
    for _ in range(len(names) // source_events.PER_TICK):
        events = ticks.tick(many, found)
        assert len(events) == source_events.PER_TICK
        reported += events
    assert sorted(reported) == [f"source.{name}" for name in names]
    assert not ticks.tick(many, found)


def test_the_lag_targets_of_many_topics_come_with_several_ticks(ticks):
    """Dagster stores all events of a tick, one by one, before it starts the run it requests."""
    names = [f"t{number:03d}" for number in range(120)]

    def tick(cursor: Cursor, names: list[str], late: str = "") -> tuple[list[str], Cursor]:
        gone = {TopicPartition(late, 0): SourceError("gone")} if late else {}
        found = replace(snapshot(**dict.fromkeys(names, 1)), facts=Facts(unknown=gone))
        context: Any = SimpleNamespace(instance=ticks.instance)
        kafka: Any = SimpleNamespace(clock=SystemClock())
        lag: Any = SimpleNamespace(look=SimpleNamespace(late=()))
        of_lane = Share(lane(*names))
        one = LaneTick(context, of_lane, kafka, found, (), frozenset(names), cursor)
        said, cursor = one._late_topics(cursor, lag)
        for event in lag_target.evaluations(of_lane.lane, said):
            ticks.instance.report_runless_asset_event(dated(event, ticks.began + len(said)))
        return list(said), cursor

    cursor = Cursor()
    for topics, late, expected in (
        (names, "t099", ["t099", *names[:49]]),
        (names, "t099", names[49:99]),
        (names, "", ["t099", *names[100:]]),
        (names, "", []),
        ([*names, "u"], "", ["u"]),
    ):
        said, cursor = tick(cursor, topics, late)
        assert said == expected
    # as after a wiped cursor: what is red and should not be is reported, and nothing else
    red = dict.fromkeys(["t001"], "late")
    for event in lag_target.evaluations(lane(), red):
        ticks.instance.report_runless_asset_event(dated(event, ticks.began + 999))
    assert tick(Cursor(), [*names, "u"])[0] == ["t001"]


def test_keys_and_cursors():
    """The graph shows only the last part of a key; a cursor is read as it was stored."""
    assert naming.source_asset("m", "a.b").path[-1] != naming.mirrored_asset("m", "a.b").path[-1]
    assert naming.source_asset("m", "a.b") == dg.AssetKey(["source", "m", "source.a.b"])
    foreign = {"r": Foreign(3.0, "where")}
    written = Cursor(lag_passed=True, missing=["a deleted"], foreign=foreign, held={"a": "w"})
    cursor = MirrorCursor({"main": written}, ["b"], "nothing to do")
    assert MirrorCursor.load(cursor.dump(), 0.0) == cursor


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "null", '{"version":103}', '{"version":1}', '{"lanes":{}}'),
        '{"version":100,"lanes":{"main":{"lag_at":"x"}},"denied":[],"line":""}',
    ],
)
def test_a_cursor_that_cannot_be_read_is_an_empty_one(text):
    """It is only what was said already: a tick that fails would stop the mirror."""
    assert MirrorCursor.load(text, math.inf) == MirrorCursor()
    assert health._Cursor.load(text, math.inf) == health._Cursor()


def test_a_cursor_of_a_time_to_come_is_an_empty_one():
    """A clock was ahead, and is right again: what is due would not be reported until then."""
    for at, is_kept in ((100.0, True), (101.0, False)):
        planner = MirrorCursor({"main": Cursor(known_at=100.0), "own": Cursor(known_at=at)})
        upstreams = health._Cursor({"a": True}, {}, at)
        assert MirrorCursor.load(planner.dump(), 100.0) == (planner if is_kept else MirrorCursor())
        kept = upstreams if is_kept else health._Cursor()
        assert health._Cursor.load(upstreams.dump(), 100.0) == kept


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

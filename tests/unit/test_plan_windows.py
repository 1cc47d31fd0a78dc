"""From positions and a backlog to windows, as tables."""

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from relay_pipelines.errors import DataLossError, SourceError, UnsupportedError
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.plan.blockers import Facts, judge
from relay_pipelines.plan.frozen_window import FrozenWindow, WindowLimits, cut
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import literal_names, named_without_match
from relay_pipelines.run.run_plan import RunPlan, plan_frozen
from tests.support.run_plans import plan_of, snapshot_of
from tests.support.tables import titled


def at(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


def position(
    partition: int, low: int, end: int, next_offset: int | None = None, topic: str = "t"
) -> Position:
    return Position(at(partition, topic), low, end, next_offset)


def planned(positions: Sequence[Position]) -> RunPlan:
    return plan_of("m", "n", {}, positions)


CASES = [  # title, (low, end, next offset) per partition, {partition: (start, end)}
    ("a first run takes all", [(0, 9, None)], {0: (0, 9)}),
    ("all is from the low watermark on, not from 0", [(5, 9, None)], {0: (5, 9)}),
    ("an empty topic-partition costs no task", [(0, 0, None)], {}),
    ("from where it was copied to, or starts", [(0, 9, 4)], {0: (4, 9)}),
    ("0 is an offset", [(0, 9, 0)], {0: (0, 9)}),
    ("a checkpoint on the low watermark lost nothing", [(4, 9, 4)], {0: (4, 9)}),
    ("only what is new is planned", [(0, 9, 9), (0, 9, 8), (0, 0, None)], {1: (8, 9)}),
]


@titled("held, expected", CASES)
def test_windows(held, expected):
    ranges = [OffsetRange(at(partition), *bounds) for partition, bounds in expected.items()]
    plan = planned([position(partition, *values) for partition, values in enumerate(held)])
    assert plan.planned == ranges
    assert not plan.held


def test_one_window_per_topic_sorted():
    """In any order of positions; a guard stops no other one; lag is never less than nothing."""
    wanted = [position(1, 0, 1, topic="b"), position(0, 0, 1, topic="a")]
    plan = planned([*wanted, position(0, 0, 1, topic="b")])
    assert {topic: len(ranges) for topic, ranges in plan.by_topic.items()} == {"a": 1, "b": 2}
    assert [each.topic_partition.partition for each in plan.by_topic["b"]] == [0, 1]
    plan = planned([position(0, 0, 5, 9), position(1, 0, 5, 2), position(2, 7, 9, 3)])
    assert plan.planned == [OffsetRange(TopicPartition("t", 1), 2, 5)]
    assert [str(error.topic_partition) for error in plan.held] == ["t-0", "t-2"]
    held = [(0, 9, None), (5, 9, None), (0, 9, 4), (0, 9, 9), (0, 5, 9)]
    assert [position(0, *values).lag for values in held] == [9, 4, 5, 0, 0]


T3 = TopicPartition("t", 3)
GUARDS = {
    "retention took records": Position(T3, 10, 20, 9),
    "retention took all there was": Position(T3, 20, 20, 9),
    "truncated or recreated": Position(T3, 0, 8, 9),
    "recreated, and grown past the checkpoint since": Position(T3, 0, 20, 9, recreated=True),
    "truncated below the checkpoint, and written again": Position(T3, 0, 20, 9, truncated_at=6),
    "the copies are gone": Position(T3, 0, 20, 9, destination_lost="topic 'c' is gone"),
    "its checkpoint is gone": Position(T3, 0, 20, None, ledger_end=9),
    "its checkpoint is not the last one": Position(T3, 0, 20, 5, ledger_end=9),
}


@pytest.mark.parametrize("title", GUARDS)
def test_going_on_would_lose_records(wordings, title):
    """What the ledger says was copied is not copied again because the checkpoint is gone."""
    held = GUARDS[title]
    ((loss,),) = (each.values() for each in judge([held], Facts("m")).values())
    wordings.check(f"guard: {title}", str(loss))
    assert (loss.topic_partition, loss.exit_code) == (T3, 3)
    if held.ledger_end is None:
        assert loss.offset == 9
        assert str(loss).endswith(" set on_data_loss: continue")
    assert type(loss) is not DataLossError, "it has a name of its own"
    assert not planned([held]).planned


UNLIMITED = 2**63


def ranges_of(*bounds: tuple[int, int]) -> list[OffsetRange]:
    return [OffsetRange(at(partition), *each) for partition, each in enumerate(bounds)]


FEW, HUNDRED, SIZES = [(0, 9), (5, 8)], [(0, 100), (0, 100)], {0: 10.0, 1: 1.0}
CUTS = [  # title, (start, end) per partition, bytes per offset by partition, limits, ends
    ("all of it fits", FEW, {}, (12, UNLIMITED), [9, 8]),
    ("what is small is whole", [(0, 99), (0, 2), (0, 99)], {}, (102, UNLIMITED), [50, 2, 50]),
    ("equal shares, though some is left", [(0, 9), (0, 9)], {}, (9, UNLIMITED), [4, 4]),
    ("bytes limit as well", HUNDRED, SIZES, (UNLIMITED, 110), [10, 10]),
    ("an unknown size counts for nothing", HUNDRED, {0: 10.0}, (UNLIMITED, 50), [5, 5]),
    ("one of each, or no end", [(0, 9), (0, 9), (4, 4)], {}, (1, UNLIMITED), [1, 1, 4]),
    ("one record is larger than the limit", [(7, 9)], {0: 1e12}, (UNLIMITED, 1), [8]),
]


@titled("waiting, sizes, limits, ends", CUTS)
def test_cut(waiting, sizes, limits, ends):
    """A window is the start of every range, as much of it as the limits allow."""
    by_partition = {at(partition): size for partition, size in sizes.items()}
    found = cut(ranges_of(*waiting), by_partition, WindowLimits(*limits))
    assert found == ranges_of(*zip([start for start, _ in waiting], ends, strict=True))


UNCOPIED = [
    ("never copied, from earliest", {}, (3, 9)),
    ("from the checkpoint", {"next_offset": 5}, (5, 9)),
    ("retention took records: they are still to be copied", {"next_offset": 1}, (1, 9)),
    ("made again, with fewer records", {"next_offset": 108, "recreated": True}, (3, 9)),
    ("other records after a truncation", {"next_offset": 8, "truncated_at": 6}, (6, 9)),
    ("the checkpoint is gone, and the ledger knows more", {"ledger_end": 7}, (7, 9)),
]


@titled("more, expected", UNCOPIED)
def test_uncopied(more, expected):
    """What a data-loss guard holds back is not copied either: no lag of 0 hides it."""
    held = Position(at(0), 3, 9, **{"next_offset": None} | more)
    assert held.uncopied == OffsetRange(at(0), *expected)
    # a checkpoint above the end gives an empty range, not a negative one
    assert not Position(at(0), 0, 5, 9).uncopied


IN_WINDOW = (
    *(OffsetRange(at(0, "a.b"), 3, 9), OffsetRange(at(1, "a.b"), 0, 0)),
    *(OffsetRange(at(0, "idle"), 5, 5), OffsetRange(at(0, "z"), 2**40, 2**40 + 1)),
)
KEY = "2026-11-22T04:10:20Z-000"
FROZEN = FrozenWindow(KEY, IN_WINDOW, "kafka-a", 1_700_000_000_000, 12_345, {at(0, "z"): 2})


class TestFrozenWindow:
    """The plan that is stored before anything is copied."""

    def test_is_read_as_it_was_written(self, wordings):
        """A run reads what the planner froze; a change of the format needs a new version number."""
        assert FrozenWindow.from_json(FROZEN.key, FROZEN.to_json()) == FROZEN
        assert FROZEN.to_json() == (
            '{"version":100,"upstream":"kafka-a","planned_at_ms":1700000000000,"size_bytes":12345,'
            '"topics":'
            '{"a.b":[[0,3,9,0],[1,0,0,0]],"idle":[[0,5,5,0]],'
            '"z":[[0,1099511627776,1099511627777,2]]}}'
        )
        # a newer version is refused: its offsets may mean something else
        text = json.dumps(json.loads(FROZEN.to_json()) | {"version": 103})
        with pytest.raises(UnsupportedError) as caught:
            FrozenWindow.from_json(KEY, text)
        version = importlib.metadata.version("relay_pipelines")
        wordings.check("window: of a newer one", str(caught.value).replace(version, "VERSION"))

    def test_its_topics_and_records(self):
        """Idle topics count, so that Dagster's grid of topics and windows has no gaps."""
        assert FROZEN.topics == ["a.b", "idle", "z"]
        assert FROZEN.records == 7

    @pytest.mark.parametrize(
        ("later", "taken"),
        [
            pytest.param({at(0, "z"): (2**40 + 1, 2**40 + 9)}, True, id="goes on"),
            pytest.param({at(0, "new"): (3, 4)}, True, id="another topic"),
            pytest.param({at(0, "z"): (2**40 + 2, 2**40 + 9)}, False, id="a gap"),
            pytest.param({at(0, "a.b"): (2, 9)}, False, id="from before"),
            pytest.param({at(0, "new"): (0, 94)}, False, id="too many records"),
        ],
    )
    def test_takes_a_later_round(self, later, taken):
        """Only what joins it, so that windows have each offset once."""
        ranges = tuple(OffsetRange(tp, *bounds) for tp, bounds in later.items())
        window = FrozenWindow("later", ranges, "kafka-c", 2**41, 5, dict(FROZEN.generations))
        assert FROZEN.takes(window, WindowLimits(100, 20_000)) == taken
        assert not FROZEN.takes(window, WindowLimits(100, 12_349)), "too many bytes"
        other_log = replace(window, generations=dict.fromkeys(later, 7))
        unlimited = WindowLimits(UNLIMITED, UNLIMITED)
        assert not FROZEN.takes(other_log, unlimited) or at(0, "new") in later

    def test_is_extended_by_a_later_round(self):
        """It keeps its key and its time; what a killed run has left out is new."""
        copied = FROZEN.copied({at(0, "a.b"): 5, at(0, "idle"): 2**41})
        assert copied
        assert copied.ranges == (OffsetRange(at(0, "a.b"), 3, 5), FROZEN.ranges[3])
        assert FROZEN.copied({each.topic_partition: 0 for each in FROZEN.ranges}) is None
        round_ = (OffsetRange(at(0, "new"), 3, 4), OffsetRange(at(0, "z"), 2**40 + 1, 2**40 + 9))
        window = FROZEN.extended(FrozenWindow("later", round_, "kafka-c", 2**41, 5))
        ranges = *FROZEN.ranges[:3], round_[0], OffsetRange(at(0, "z"), 2**40, 2**40 + 9)
        assert window == replace(FROZEN, ranges=ranges, upstream="kafka-c", size_bytes=12_350)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        *(("orders", ["orders"]), (r"orders\.events", ["orders.events"])),
        (r"a\.b\.c-d_e", ["a.b.c-d_e"]),
        # the dot stands for any character
        *((each, []) for each in ("orders.events", r"orders.a\.b", "orders.*", "orders|payments")),
        *((each, []) for each in ("orders?", r"orders\\.events", r"\d", "(orders)", "", r"\.")),
        *((each, []) for each in (r"\.\.", "x" * 250)),
    ],
)
def test_a_pattern_of_one_name_needs_no_lookup(pattern, names):
    """Only such a pattern gets an asset early: other names might not exist."""
    assert literal_names([pattern]) == names
    # their order, that in which topics were first seen, determines their lanes
    assert literal_names(["z", ".*", r"a\.b"]) == ["z", "a.b"]


def test_names_that_match_no_topic():
    """The dot of a name may be written as it is; what matches a topic is a pattern."""
    patterns = ["orders", "orders.eu", r"orders\.us", "paid.*", "refunds.x"]
    assert named_without_match(patterns, ["orders", "refunds-x"]) == ["orders.eu", "orders.us"]


@pytest.mark.parametrize("topics", ["a", "axz"])
def test_a_window_names_what_is_held_of_it_alone(topics: str) -> None:
    """Whether it has lost records or no leader: what others hold back, others say."""
    known = [position(0, 0, 9, 0, topic="a"), position(0, 7, 9, 3, topic="z")]
    leaderless = {at(0, "x"): SourceError("it has no leader", topic_partition=at(0, "x"))}
    snapshot = replace(
        snapshot_of("m", "n", {each: each for each in "axz"}, known), facts=Facts("m", leaderless)
    )
    ranges = [OffsetRange(at(0, topic), 3, 9) for topic in topics]
    plan = plan_frozen(snapshot, FrozenWindow("k", tuple(ranges)))
    assert list(plan.by_topic) == ["a"]
    assert [str(each.topic_partition) for each in plan.held] == (
        [] if topics == "a" else ["x-0", "z-0"]
    )

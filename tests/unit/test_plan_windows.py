"""From positions and a backlog to windows, as tables."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace

import pytest

from relay_pipelines.errors import DataLossError, UnsupportedError
from relay_pipelines.model import OffsetRange, TopicPartition, Window
from relay_pipelines.plan.frozen_window import FrozenWindow, WindowLimits, cut
from relay_pipelines.plan.positions import Position, data_loss, lag_records, plan_windows, uncopied
from relay_pipelines.plan.topic_selection import literal_names, named_without_match
from tests.support.tables import titled


def position(
    partition: int, low: int, end: int, next_offset: int | None = None, topic: str = "t"
) -> Position:
    return Position(TopicPartition(topic, partition), low, end, next_offset)


CASES = [
    # title, (low, end, next offset) per partition, {partition: (start, end)}
    ("a first run takes all", [(0, 9, None)], {0: (0, 9)}),
    ("all is from the low watermark on, not from 0", [(5, 9, None)], {0: (5, 9)}),
    ("an empty topic-partition costs no task", [(0, 0, None)], {}),
    ("nor does one that retention emptied", [(7, 7, None)], {}),
    ("from where it was copied to, or starts", [(0, 9, 4)], {0: (4, 9)}),
    ("nothing new, nothing planned", [(0, 9, 9)], {}),
    ("0 is an offset", [(0, 9, 0)], {0: (0, 9)}),
    ("a checkpoint on the low watermark lost nothing", [(4, 9, 4)], {0: (4, 9)}),
    ("all records expired after they were copied", [(9, 9, 9)], {}),
    ("only what is new is planned", [(0, 9, 9), (0, 9, 8), (0, 0, None)], {1: (8, 9)}),
]


@titled("held, planned", CASES)
def test_windows(held, planned):
    positions = [position(partition, *values) for partition, values in enumerate(held)]
    ranges = tuple(
        OffsetRange(TopicPartition("t", partition), *bounds)
        for partition, bounds in planned.items()
    )
    plan = plan_windows(positions)
    assert plan.windows == ((Window("t", ranges),) if ranges else ())
    assert plan.data_losses == ()


def test_one_window_per_topic_sorted():
    """In any order of positions; a guard stops no other one; lag is never less than nothing."""
    wanted = [position(1, 0, 1, topic="b"), position(0, 0, 1, topic="a")]
    plan = plan_windows([*wanted, position(0, 0, 1, topic="b")])
    found = [
        (window.topic, [each.topic_partition.partition for each in window.ranges])
        for window in plan.windows
    ]
    assert found == [("a", [0]), ("b", [0, 1])]
    plan = plan_windows([position(0, 0, 5, 9), position(1, 0, 5, 2), position(2, 7, 9, 3)])
    assert plan.windows == (Window("t", (OffsetRange(TopicPartition("t", 1), 2, 5),)),)
    assert [str(error.topic_partition) for error in plan.data_losses] == ["t-0", "t-2"]
    held = [(0, 9, None), (5, 9, None), (0, 9, 4), (0, 9, 9), (0, 5, 9)]
    lags = lag_records([position(number, *values) for number, values in enumerate(held)])
    assert list(lags.values()) == [9, 4, 5, 0, 0]


T3 = TopicPartition("t", 3)
RETENTION = (
    "retention took the offsets {0} before they were copied; run more often or keep records"
    " longer; to accept the loss and resume from offset {1}, without {0}, {2},"
)
GUARDS = {
    "retention took records": (
        Position(T3, 10, 20, 9),
        RETENTION.format("[9, 10)", 10, "1 offset"),
    ),
    "retention took all there was": (
        Position(T3, 20, 20, 9),
        RETENTION.format("[9, 20)", 20, "11 offsets"),
    ),
    "truncated or recreated": (
        Position(T3, 0, 8, 9),
        (
            "the next offset to copy is above the source's end offset 8: the topic was truncated or"
            " recreated; restore the topic, or mirror it under a new name into a new destination"
            " topic; to accept the loss and resume from offset 8, which takes all that it has, [0,"
            " 8), 8 offsets, for copied,"
        ),
    ),
    "recreated, and grown past the checkpoint since": (
        Position(T3, 0, 20, 9, recreated=True),
        (
            "the topic was deleted and created again since it was copied, or a disk was put back to"
            " an earlier time: its log is another one; mirror it under a new name into a new"
            " destination topic; to accept the loss and resume from offset 0, which copies all that"
            " the log has now, [0, 20), 20 offsets,"
        ),
    ),
    "truncated below the checkpoint, and written again": (
        Position(T3, 0, 20, 9, truncated_at=6),
        (
            "the log was truncated at offset 6, below the checkpoint, and other records were"
            " written from there; find out whether a leader was elected uncleanly or a disk"
            " restored, and which records are right; to accept the loss and resume from offset 6,"
            " which copies [6, 20), 14 offsets, after the copies of the former records,"
        ),
    ),
    "the copies are gone": (
        Position(T3, 0, 20, 9, destination_lost="topic 'c' is gone", mirror="m"),
        (
            "topic 'c' is gone; to copy again what the source still has: `relay reset --mirror m"
            " --topic t --to-earliest --execute`; to accept the loss and resume from offset 9,"
            " without [0, 9), 9 offsets that the source still has,"
        ),
    ),
}


@pytest.mark.parametrize(("held", "line"), GUARDS.values(), ids=GUARDS)
def test_going_on_would_lose_records(held, line):
    loss = data_loss(held)
    assert loss is not None
    assert str(loss) == f"t-3 at offset 9: {line} set on_data_loss: continue"
    assert (loss.topic_partition, loss.offset, loss.exit_code) == (held.topic_partition, 9, 3)
    assert type(loss) is not DataLossError, "it has a name of its own"


def test_a_lost_checkpoint_is_held_back():
    """What the ledger says was copied is not copied again because the checkpoint is gone."""
    held = Position(T3, 0, 20, None, ledger_end=9, mirror="m")
    assert str(data_loss(held)) == (
        "t-3: its checkpoint is gone, and according to the ledger it was copied up to offset 9;"
        " make it again from the ledger: `relay restore --mirror m --execute`"
    )
    assert not plan_windows([held]).windows
    older = Position(T3, 0, 20, 5, ledger_end=9, mirror="m")
    assert "t-3 at offset 5: its checkpoint is not the last one" in str(data_loss(older))
    assert not plan_windows([older]).windows


UNLIMITED = 2**63


def at(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


def ranges_of(*bounds: tuple[int, int]) -> list[OffsetRange]:
    return [OffsetRange(at(partition), *each) for partition, each in enumerate(bounds)]


CUTS = [
    # title, (start, end) per partition, bytes per offset by partition, limits, ends
    ("all of it fits", [(0, 9), (5, 8)], {}, (12, UNLIMITED), [9, 8]),
    ("one record too many: the large one waits", [(0, 9), (5, 8)], {}, (11, UNLIMITED), [8, 8]),
    (
        "what is small is taken whole, so nothing starves",
        *([(0, 1000), (0, 2), (0, 1000)], {}, (102, UNLIMITED), [50, 2, 50]),
    ),
    (
        "equal shares, even if some of the limit is left",
        *([(0, 9), (0, 9)], {}, (9, UNLIMITED), [4, 4]),
    ),
    ("bytes limit as well", [(0, 100), (0, 100)], {0: 10.0, 1: 1.0}, (UNLIMITED, 110), [10, 10]),
    ("one byte too many", [(0, 100), (0, 100)], {0: 10.0, 1: 1.0}, (UNLIMITED, 109), [9, 9]),
    ("an unknown size counts for nothing", [(0, 100)] * 2, {0: 10.0}, (UNLIMITED, 50), [5, 5]),
    (
        "a limit below one record would never end a window: one of each",
        *([(0, 9), (0, 9), (4, 4)], {}, (1, UNLIMITED), [1, 1, 4]),
    ),
    ("one record is larger than the limit", [(7, 9)], {0: 1e12}, (UNLIMITED, 1), [8]),
    ("nothing waits", [(4, 4)], {}, (1, 1), [4]),
    ("no topic-partitions", [], {}, (1, 1), []),
]


@titled("waiting, sizes, limits, ends", CUTS)
def test_cut(waiting, sizes, limits, ends):
    """A window is the start of every range, as much of it as the limits allow."""
    sizes_by_partition = {at(partition): size for partition, size in sizes.items()}
    expected = ranges_of(*((start, end) for (start, _), end in zip(waiting, ends, strict=True)))
    assert cut(ranges_of(*waiting), sizes_by_partition, WindowLimits(*limits)) == expected


UNCOPIED = [
    ("never copied, from earliest", (3, 9, None), (3, 9)),
    ("from the checkpoint", (3, 9, 5), (5, 9)),
    ("retention took records: they are still to be copied", (3, 9, 1), (1, 9)),
    ("made again, with fewer records than were copied", (0, 5, 108, True), (0, 5)),
    ("other records were written after a truncation", (3, 9, 8, False, 6), (6, 9)),
    ("the checkpoint is gone, and the ledger knows more", (3, 9, None, False, None, 7), (7, 9)),
]


@titled("held, expected", UNCOPIED)
def test_uncopied(held, expected):
    """What a data-loss guard holds back is not copied either: no lag of 0 hides it."""
    names = ("low_watermark", "end_offset", "next_offset", "recreated", "truncated_at")
    found = Position(at(0), **dict(zip((*names, "ledger_end"), held, strict=False)))
    assert uncopied([found]) == {at(0): OffsetRange(at(0), *expected)}
    # a checkpoint above the end gives an empty range, not a negative one
    (left,) = uncopied([Position(at(0), 0, 5, 9)]).values()
    assert not left


FROZEN = FrozenWindow(
    "2026-11-22T04:10:20Z-000",
    (
        OffsetRange(at(0, "a.b"), 3, 9),
        OffsetRange(at(1, "a.b"), 0, 0),
        OffsetRange(at(0, "idle"), 5, 5),
        OffsetRange(at(0, "z"), 2**40, 2**40 + 1),
    ),
    "node1",
    1_700_000_000_000,
    12_345,
    {at(0, "z"): 2},
)


class TestFrozenWindow:
    """The plan that is stored before anything is copied."""

    def test_is_read_as_it_was_written(self):
        """A run reads what the planner froze; a change of the format needs a new version number."""
        assert FrozenWindow.from_json(FROZEN.key, FROZEN.to_json()) == FROZEN
        assert FROZEN.to_json() == (
            '{"version":1,"node":"node1","planned_at_ms":1700000000000,"size_bytes":12345,"topics":'
            '{"a.b":[[0,3,9,0],[1,0,0,0]],"idle":[[0,5,5,0]],'
            '"z":[[0,1099511627776,1099511627777,2]]}}'
        )
        # a newer version is refused: its offsets may mean something else
        text = json.dumps(json.loads(FROZEN.to_json()) | {"version": 2})
        with pytest.raises(UnsupportedError) as caught:
            FrozenWindow.from_json("2026-11-22T04:10:20Z-000", text)
        assert str(caught.value) == (
            "the plan of window 2026-11-22T04:10:20Z-000 was written by a newer relay_pipelines"
            f" than this one ({importlib.metadata.version('relay_pipelines')}); go on with the"
            " version that planned it, or with a window of this one"
        )

    def test_has_a_window_for_each_requested_topic(self):
        """Idle topics have one, too, so that Dagster's grid of topics and windows has no gaps."""
        assert FROZEN.topics == ["a.b", "idle", "z"]
        assert FROZEN.records == 7
        assert FROZEN.windows({"a.b", "idle", "unknown"}) == [
            Window("a.b", FROZEN.ranges[:2]),
            Window("idle", FROZEN.ranges[2:3]),
        ]

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
        window = FrozenWindow("later", ranges, "node2", 2**41, 5, dict(FROZEN.generations))
        assert FROZEN.takes(window, WindowLimits(100, 20_000)) == taken
        assert not FROZEN.takes(window, WindowLimits(100, 12_349)), "too many bytes"
        of_another_log = replace(window, generations=dict.fromkeys(later, 7))
        assert not FROZEN.takes(of_another_log, WindowLimits(UNLIMITED, UNLIMITED)) or (
            at(0, "new") in later
        )

    def test_is_extended_by_a_later_round(self):
        """It keeps its key and its time; what a killed run has left out is new."""
        copied = FROZEN.copied({at(0, "a.b"): 5, at(0, "idle"): 2**41})
        assert copied
        assert copied.ranges == (OffsetRange(at(0, "a.b"), 3, 5), FROZEN.ranges[3])
        assert FROZEN.copied({each.topic_partition: 0 for each in FROZEN.ranges}) is None
        round_ = (OffsetRange(at(0, "new"), 3, 4), OffsetRange(at(0, "z"), 2**40 + 1, 2**40 + 9))
        window = FROZEN.extended(FrozenWindow("later", round_, "node2", 2**41, 5))
        assert (window.key, window.planned_at_ms, window.node, window.size_bytes) == (
            *(FROZEN.key, FROZEN.planned_at_ms),
            *("node2", 12_350),
        )
        assert window.ranges == (
            *FROZEN.ranges[:3],
            *(round_[0], OffsetRange(at(0, "z"), 2**40, 2**40 + 9)),
        )
        assert window.generations == FROZEN.generations


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

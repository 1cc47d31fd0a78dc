"""From a backlog to frozen windows, as tables."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace

import pytest

from relay_pipelines.errors import UnsupportedError
from relay_pipelines.model import OffsetRange, TopicPartition, Window
from relay_pipelines.plan.frozen_window import FrozenWindow, WindowLimits, cut
from relay_pipelines.plan.positions import Position, uncopied
from relay_pipelines.plan.topic_selection import literal_names, named_without_match

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
        [(0, 1000), (0, 2), (0, 1000)],
        {},
        (102, UNLIMITED),
        [50, 2, 50],
    ),
    (
        "equal shares, even if some of the limit is left",
        [(0, 9), (0, 9)],
        {},
        (9, UNLIMITED),
        [4, 4],
    ),
    ("bytes limit as well", [(0, 100), (0, 100)], {0: 10.0, 1: 1.0}, (UNLIMITED, 110), [10, 10]),
    ("one byte too many", [(0, 100), (0, 100)], {0: 10.0, 1: 1.0}, (UNLIMITED, 109), [9, 9]),
    (
        "a size that is not known counts for nothing",
        [(0, 100), (0, 100)],
        {0: 10.0},
        (UNLIMITED, 50),
        [5, 5],
    ),
    (
        "a limit below one record would never end a window: one of each",
        [(0, 9), (0, 9), (4, 4)],
        {},
        (1, UNLIMITED),
        [1, 1, 4],
    ),
    ("one record is larger than the limit", [(7, 9)], {0: 1e12}, (UNLIMITED, 1), [8]),
    ("nothing waits", [(4, 4)], {}, (1, 1), [4]),
    ("no topic-partitions", [], {}, (1, 1), []),
]


@pytest.mark.parametrize(
    ("waiting", "sizes", "limits", "ends"),
    [case[1:] for case in CUTS],
    ids=[case[0] for case in CUTS],
)
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


@pytest.mark.parametrize(
    ("held", "expected"), [case[1:] for case in UNCOPIED], ids=[case[0] for case in UNCOPIED]
)
def test_uncopied(held, expected):
    """What a data-loss guard holds back is not copied either: no lag of 0 hides it."""
    names = ("low_watermark", "end_offset", "next_offset", "recreated", "truncated_at")
    found = Position(at(0), **dict(zip((*names, "ledger_end"), held, strict=False)))
    assert uncopied([found]) == {at(0): OffsetRange(at(0), *expected)}


def test_nothing_is_uncopied_above_a_truncated_source():
    """A checkpoint above the end gives an empty range, not a negative one."""
    (found,) = uncopied([Position(at(0), 0, 5, 9)]).values()
    assert not found


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
        """A run reads exactly what the planner froze."""
        assert FrozenWindow.from_json(FROZEN.key, FROZEN.to_json()) == FROZEN

    def test_the_format_does_not_change(self):
        """Windows are stored in it: a change needs a new version number."""
        assert FROZEN.to_json() == (
            '{"version":1,"node":"node1","planned_at_ms":1700000000000,"size_bytes":12345,"topics":'
            '{"a.b":[[0,3,9,0],[1,0,0,0]],"idle":[[0,5,5,0]],'
            '"z":[[0,1099511627776,1099511627777,2]]}}'
        )

    def test_a_newer_version_is_refused(self):
        """Its offsets may mean something else."""
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
        assert FROZEN.windows({"a.b", "idle", "unknown"}) == [
            Window("a.b", FROZEN.ranges[:2]),
            Window("idle", FROZEN.ranges[2:3]),
        ]

    @pytest.mark.parametrize(
        ("later", "taken"),
        [
            ({at(0, "z"): (2**40 + 1, 2**40 + 9)}, True),
            ({at(0, "new"): (3, 4)}, True),
            ({at(0, "z"): (2**40 + 2, 2**40 + 9)}, False),
            ({at(0, "a.b"): (2, 9)}, False),
            ({at(0, "new"): (0, 94)}, False),
        ],
        ids=["goes on", "another topic", "a gap", "from before", "too many records"],
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

    def test_has_a_part_that_is_copied(self):
        """What a killed run has left out is new, so that the next one has it in its own round."""
        copied = FROZEN.copied({at(0, "a.b"): 5, at(0, "idle"): 2**41})
        assert copied
        assert copied.ranges == (OffsetRange(at(0, "a.b"), 3, 5), FROZEN.ranges[3])
        assert FROZEN.copied({each.topic_partition: 0 for each in FROZEN.ranges}) is None

    def test_is_extended_by_a_later_round(self):
        """It keeps its key and its time, and ends where the round does."""
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

    def test_has_topics_and_records(self):
        assert FROZEN.topics == ["a.b", "idle", "z"]
        assert FROZEN.records == 7


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("orders", ["orders"]),
        (r"orders\.events", ["orders.events"]),
        (r"a\.b\.c-d_e", ["a.b.c-d_e"]),
        ("orders.events", []),  # the dot stands for any character
        (r"orders.a\.b", []),
        ("orders.*", []),
        ("orders|payments", []),
        ("orders?", []),
        (r"orders\\.events", []),
        (r"\d", []),
        ("(orders)", []),
        ("", []),
        (r"\.", []),
        (r"\.\.", []),
        ("x" * 250, []),
    ],
)
def test_a_pattern_of_one_name_needs_no_lookup(pattern, names):
    """Only such a pattern gets an asset early: other names might not exist."""
    assert literal_names([pattern]) == names


def test_names_that_match_no_topic():
    """The dot of a name may be written as it is; what matches a topic is a pattern."""
    patterns = ["orders", "orders.eu", r"orders\.us", "paid.*", "refunds.x"]
    assert named_without_match(patterns, ["orders", "refunds-x"]) == ["orders.eu", "orders.us"]


def test_literal_names_keep_their_order():
    """The order in which topics were first seen determines their lanes."""
    assert literal_names(["z", ".*", r"a\.b"]) == ["z", "a.b"]

"""From positions to the windows of a run, as tables."""

from __future__ import annotations

import pytest

from relay_pipelines.errors import DataLossError
from relay_pipelines.model import OffsetRange, TopicPartition, Window
from relay_pipelines.plan.positions import Position, data_loss, lag_records, plan_windows


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


@pytest.mark.parametrize(
    ("held", "planned"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
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
    """Brokers return positions in any order; the windows are always the same."""
    plan = plan_windows(
        [position(1, 0, 1, topic="b"), position(0, 0, 1, topic="a"), position(0, 0, 1, topic="b")]
    )
    assert [
        (window.topic, [each.topic_partition.partition for each in window.ranges])
        for window in plan.windows
    ] == [
        ("a", [0]),
        ("b", [0, 1]),
    ]


GUARDS = [
    (
        "retention took records",
        position(3, 10, 20, 9),
        (
            "t-3 at offset 9: retention took the offsets [9, 10) before they were copied;"
            " run more often or keep records longer;"
            " to accept the loss and resume from offset 10, without [9, 10), 1 offset,"
            " set on_data_loss: continue"
        ),
    ),
    (
        "retention took all there was",
        position(3, 20, 20, 9),
        (
            "t-3 at offset 9: retention took the offsets [9, 20) before they were copied;"
            " run more often or keep records longer;"
            " to accept the loss and resume from offset 20, without [9, 20), 11 offsets,"
            " set on_data_loss: continue"
        ),
    ),
    (
        "truncated or recreated",
        position(3, 0, 8, 9),
        (
            "t-3 at offset 9: the next offset to copy is above the source's end offset 8:"
            " the topic was truncated or recreated;"
            " restore the topic, or mirror it under a new name into a new destination topic;"
            " to accept the loss and resume from offset 8,"
            " which takes all that it has, [0, 8), 8 offsets, for copied,"
            " set on_data_loss: continue"
        ),
    ),
    (
        "recreated, and grown past the checkpoint since",
        Position(TopicPartition("t", 3), 0, 20, 9, recreated=True),
        (
            "t-3 at offset 9: the topic was deleted and created again since it was copied, or a"
            " disk was put back to an earlier time: its log is another one;"
            " mirror it under a new name into a new destination topic;"
            " to accept the loss and resume from offset 0,"
            " which copies all that the log has now, [0, 20), 20 offsets,"
            " set on_data_loss: continue"
        ),
    ),
    (
        "truncated below the checkpoint, and written again",
        Position(TopicPartition("t", 3), 0, 20, 9, truncated_at=6),
        (
            "t-3 at offset 9: the log was truncated at offset 6, below the checkpoint,"
            " and other records were written from there;"
            " find out whether a leader was elected uncleanly or a disk restored,"
            " and which records are right;"
            " to accept the loss and resume from offset 6,"
            " which copies [6, 20), 14 offsets, after the copies of the former records,"
            " set on_data_loss: continue"
        ),
    ),
    (
        "the copies are gone",
        Position(
            TopicPartition("t", 3), 0, 20, 9, destination_lost="topic 'c' is gone", mirror="m"
        ),
        (
            "t-3 at offset 9: topic 'c' is gone; to copy again what the source still has:"
            " `relay reset --mirror m --topic t --to-earliest --execute`;"
            " to accept the loss and resume from offset 9,"
            " without [0, 9), 9 offsets that the source still has,"
            " set on_data_loss: continue"
        ),
    ),
]


@pytest.mark.parametrize(
    ("held", "line"), [case[1:] for case in GUARDS], ids=[case[0] for case in GUARDS]
)
def test_going_on_would_lose_records(held, line):
    loss = data_loss(held)
    assert loss is not None
    assert str(loss) == line
    assert (loss.topic_partition, loss.offset, loss.exit_code) == (held.topic_partition, 9, 3)
    assert type(loss) is not DataLossError, "it has a name of its own"


def test_a_lost_checkpoint_is_held_back():
    """What the ledger says was copied is not copied again because the checkpoint is gone."""
    held = Position(TopicPartition("t", 3), 0, 20, None, ledger_end=9, mirror="m")
    assert str(data_loss(held)) == (
        "t-3: its checkpoint is gone, and according to the ledger it was copied up to offset 9;"
        " make it again from the ledger: `relay restore --mirror m --execute`"
    )
    assert not plan_windows([held]).windows
    older = Position(TopicPartition("t", 3), 0, 20, 5, ledger_end=9, mirror="m")
    assert "t-3 at offset 5: its checkpoint is not the last one" in str(data_loss(older))
    assert not plan_windows([older]).windows


def test_a_guard_holds_back_its_topic_partition_alone():
    """One truncated topic-partition is reported and does not stop the others."""
    plan = plan_windows([position(0, 0, 5, 9), position(1, 0, 5, 2), position(2, 7, 9, 3)])
    assert plan.windows == (Window("t", (OffsetRange(TopicPartition("t", 1), 2, 5),)),)
    assert [str(error.topic_partition) for error in plan.data_losses] == ["t-0", "t-2"]


def test_lag():
    """What was not copied, and never less than nothing."""
    held = [(0, 9, None), (5, 9, None), (0, 9, 4), (0, 9, 9), (0, 5, 9)]
    assert list(
        lag_records(
            [position(partition, *values) for partition, values in enumerate(held)]
        ).values()
    ) == [9, 4, 5, 0, 0]

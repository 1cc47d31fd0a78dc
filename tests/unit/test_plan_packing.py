"""How ranges are packed into tasks, for small windows and for backlogs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay_pipelines.model import CopyOptions, CopyRange, OffsetRange, RecordPolicy, TopicPartition
from relay_pipelines.plan.task_packing import pack


def copy_range(topic: str, records: int, start: int = 0) -> CopyRange:
    source = OffsetRange(TopicPartition(topic, 0), start, start + records)
    return CopyRange(source, source.topic_partition)


def sizes(tasks: list[list[CopyRange]]) -> list[list[int]]:
    return [[len(each.source) for each in task] for task in tasks]


M = 1_000_000


@pytest.mark.parametrize(
    ("records", "slots", "tasks"),
    [
        ([], 4, []),
        ([0], 4, [[0]]),
        ([10], 4, [[10]]),
        ([1] * 5, 4, [[1] * 5]),
        ([3 * M, 5 * M, 4 * M], 2, [[5 * M], [4 * M], [3 * M]]),
        ([5 * M, 1, 2, 3], 4, [[5 * M], [3, 2, 1]]),
        ([M, M, M, M], 2, [[M, M], [M, M]]),
        ([M, 600_000, 400_000], 2, [[600_000, 400_000], [M]]),
    ],
    ids=[
        "nothing to do needs no task",
        "a first checkpoint needs one",
        "one range is one task",
        "five idle topics are not worth two tasks",
        "big ranges stand alone and queue, the longest first",
        "small ones do not wait behind a big one",
        "no more tasks than slots for what is small",
        "the work is spread evenly",
    ],
)
def test_tasks(records, slots, tasks):
    ranges = [copy_range(f"t{index}", count) for index, count in enumerate(records)]
    assert sizes(pack(ranges, slots)) == tasks


@pytest.mark.parametrize("slots", [1, 2, 4, 16])
def test_twenty_small_topics_take_no_more_tasks_than_slots(slots):
    """One task each would open connections and a Python worker twenty times for little work."""
    ranges = [copy_range(f"t{index}", 50_000) for index in range(20)]
    assert 1 <= len(pack(ranges, slots)) <= slots


MIB = 1 << 20


@pytest.mark.parametrize(
    ("partitions", "mebibytes", "known", "unknown"),
    [
        (36, 0, 4, 4),
        (36, 13, 11, 11),
        (100, 500, 16, 100),
        (1_000, 10, 16, 50),
        (10_000, 1, 16, 230),
        (50, 1_000, 50, 50),
    ],
    ids=[
        "a micro-batch is a few tasks anywhere",
        "half a gigabyte starts executors",
        "a task each on a cold cluster that may have a hundred cores",
        "ten gigabytes in waves of a second",
        "small topic-partitions share tasks",
        "big ranges stand alone anywhere",
    ],
)
def test_tasks_on_a_cluster(partitions, mebibytes, known, unknown):
    """With 16 slots, and where nobody knows how many executors the tasks that wait will start."""
    ranges = of_topic("t", partitions, 1)
    estimates = {each.source.topic_partition: mebibytes * MIB for each in ranges}
    assert len(pack(ranges, 16, estimates)) == known
    assert len(pack(ranges, None, estimates)) == unknown


def of_topic(topic: str, partitions: int, records: int, parallelism: int = 0) -> list[CopyRange]:
    record_policy = (
        RecordPolicy(options=CopyOptions(parallelism=parallelism))
        if parallelism
        else RecordPolicy()
    )
    ranges = [
        OffsetRange(TopicPartition(topic, partition), 0, records) for partition in range(partitions)
    ]
    return [
        CopyRange(offsets, offsets.topic_partition, record_policy=record_policy)
        for offsets in ranges
    ]


@pytest.mark.parametrize(("most", "tasks"), [(0, 6), (1, 1), (2, 2), (9, 4)])
def test_a_limit_on_all_tasks(most, tasks):
    """It applies to ranges that would get a task of their own, too."""
    groups = pack(of_topic("big", 6, 5 * M), slots=4, most=most)
    assert len(groups) == tasks
    assert sum(map(len, groups)) == 6


def test_a_limit_on_a_topic():
    """At most two tasks copy it at the same time, while others copy other topics."""
    groups = pack(
        [*of_topic("bound", 6, 5 * M, parallelism=2), *of_topic("free", 3, 5 * M)], slots=8
    )
    topics = [{each.source.topic_partition.topic for each in group} for group in groups]
    assert topics.count({"bound"}) == 2
    assert topics.count({"free"}) == 3
    assert sum(map(len, groups)) == 9


def test_ranges_pinned_to_one_topic_partition_stay_in_one_task():
    ranges = [
        replace(planned, destination=TopicPartition("all", 0))
        for planned in of_topic("t", 4, 5 * M)
    ]
    assert len(pack(ranges, slots=8)) == 1


def test_ranges_of_a_topic_partition_stay_in_one_task_in_order():
    """Two tasks on one topic-partition would fence each other."""
    later, earlier = copy_range("t", 3 * M, start=3 * M), copy_range("t", 3 * M)
    assert pack([later, copy_range("other", 3 * M), earlier], 8)[0] == [earlier, later]


def test_a_byte_estimate_wins_over_the_count():
    """A thousand large records are a big range; many compacted offsets may be a small one."""
    ranges = [copy_range("few", 1_000), copy_range("compacted", 10 * M), copy_range("idle", 1)]
    estimates = {TopicPartition("few", 0): 1 << 30, TopicPartition("compacted", 0): 1_000}
    assert sizes(pack(ranges, 4, estimates)) == [[1_000], [10 * M, 1]]


def test_zero_slots_are_refused():
    with pytest.raises(ValueError, match="slots must be at least 1, not 0"):
        pack([], 0)

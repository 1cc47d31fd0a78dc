"""How ranges are packed into tasks, and under which transactional id each is copied."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.model import CopyOptions, CopyRange, OffsetRange, RecordPolicy, TopicPartition
from relay_pipelines.plan.owners import SLOTS, own_id, present_owner, shared_id, with_owners
from relay_pipelines.plan.task_packing import pack
from tests.support.tables import titled


def copy_range(
    topic: str, records: int = 10, start: int = 0, partition: int = 0, to: str = "", **more: Any
) -> CopyRange:
    at = TopicPartition(topic, partition)
    source = OffsetRange(at, start, start + records)
    return CopyRange(source, TopicPartition(to, 0) if to else at, **more)


def sizes(tasks: list[list[CopyRange]]) -> list[list[int]]:
    return [[len(each.source) for each in task] for task in tasks]


M = 1_000_000
PACKED = [
    ("a first checkpoint needs one", [0], 4, [[0]]),
    ("five idle topics are not worth two tasks", [1] * 5, 4, [[1] * 5]),
    (
        "big ranges stand alone and queue, the longest first",
        *([3 * M, 5 * M, 4 * M], 2, [[5 * M], [4 * M], [3 * M]]),
    ),
    ("small ones do not wait behind a big one", [5 * M, 1, 2, 3], 4, [[5 * M], [3, 2, 1]]),
    ("no more tasks than slots for what is small", [M, M, M, M], 2, [[M, M], [M, M]]),
    ("the work is spread evenly", [M, 600_000, 400_000], 2, [[600_000, 400_000], [M]]),
]


@titled("records, slots, tasks", PACKED)
def test_tasks(records, slots, tasks):
    ranges = [copy_range(f"t{index}", count) for index, count in enumerate(records)]
    assert sizes(pack(ranges, slots)) == tasks


MIB = 1 << 20
ON_A_CLUSTER = [
    ("a micro-batch is a few tasks anywhere", 36, 0, 4, 4),
    ("half a gigabyte starts executors", 36, 13, 11, 11),
    ("a task each on a cold cluster that may have a hundred cores", 100, 500, 16, 100),
    ("ten gigabytes in waves of a second", 1_000, 10, 16, 50),
    ("small topic-partitions share tasks", 10_000, 1, 16, 230),
    ("big ranges stand alone anywhere", 50, 1_000, 50, 50),
]


@titled("partitions, mebibytes, known, unknown", ON_A_CLUSTER)
def test_tasks_on_a_cluster(partitions, mebibytes, known, unknown):
    """With 16 slots, and where nobody knows how many executors the tasks that wait will start."""
    ranges = of_topic("t", partitions, 1)
    estimates = {each.source.topic_partition: mebibytes * MIB for each in ranges}
    assert len(pack(ranges, 16, estimates)) == known
    assert len(pack(ranges, None, estimates)) == unknown


def of_topic(topic: str, partitions: int, records: int, parallelism: int = 0) -> list[CopyRange]:
    limited = RecordPolicy(options=CopyOptions(parallelism=parallelism))
    policy = limited if parallelism else RecordPolicy()
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    return [CopyRange(OffsetRange(at, 0, records), at, record_policy=policy) for at in places]


@pytest.mark.parametrize(("most", "tasks"), [(0, 6), (1, 1), (2, 2), (9, 4)])
def test_a_limit_on_all_tasks(most, tasks):
    """It applies to ranges that would get a task of their own, too."""
    groups = pack(of_topic("big", 6, 5 * M), slots=4, most=most)
    assert len(groups) == tasks
    assert sum(map(len, groups)) == 6


def test_limits_order_and_estimates():
    """At most two tasks copy a topic; ranges that would fence each other stay; bytes win."""
    bound, free = of_topic("bound", 6, 5 * M, parallelism=2), of_topic("free", 3, 5 * M)
    at = TopicPartition("all", 0)
    groups = pack([*bound, *free], slots=8)
    topics = [{each.source.topic_partition.topic for each in group} for group in groups]
    assert (topics.count({"bound"}), topics.count({"free"}), sum(map(len, groups))) == (2, 3, 9)
    pinned = [replace(each, destination=at) for each in of_topic("t", 4, 5 * M)]
    assert len(pack(pinned, slots=8)) == 1
    later, earlier = copy_range("t", 3 * M, start=3 * M), copy_range("t", 3 * M)
    assert pack([later, copy_range("other", 3 * M), earlier], 8)[0] == [earlier, later]
    ranges = [copy_range("few", 1_000), copy_range("compacted", 10 * M), copy_range("idle", 1)]
    estimates = {TopicPartition("few", 0): 1 << 30, TopicPartition("compacted", 0): 1_000}
    assert sizes(pack(ranges, 4, estimates)) == [[1_000], [10 * M, 1]]
    with pytest.raises(ValueError, match="slots must be at least 1, not 0"):
        pack([], 0)


SMALL = 8 << 20


def owners(*ranges: CopyRange, **sizes: int) -> list[str]:
    known = {TopicPartition(topic, 0): size for topic, size in sizes.items()}
    found = with_owners("m", "lane", ranges, known, {"pinned"})
    return [copy_range.owner for copy_range in found]


def test_small_ranges_share_ids() -> None:
    """The partitions of a topic spread over the ids of the scope, eight by eight."""
    found = Counter(owners(*(copy_range("t", partition=n) for n in range(8 * SLOTS))))
    assert set(found.values()) == {8}
    assert len(set(owners(*(copy_range("t", partition=partition) for partition in range(8))))) == 1
    assert all(owner.startswith("relay.m.lane/") for owner in found)


@pytest.mark.parametrize(
    "other",
    [
        copy_range("big"),
        copy_range("rows", record_policy=RecordPolicy(where="offset > 1")),
        copy_range("throttled", record_policy=RecordPolicy(options=CopyOptions())),
        copy_range("pinned", to="all"),
    ],
    ids=lambda copy_range: copy_range.source.topic_partition.topic,
)
def test_ranges_with_ids_of_their_own(other: CopyRange) -> None:
    """One that is large, or copied in another way; a pinned one, though alone in this run."""
    ranges = [copy_range("a"), copy_range("b"), other]
    topics = [copy_range.source.topic_partition.topic for copy_range in ranges]
    found = dict(zip(topics, owners(*ranges, big=SMALL + 1), strict=True))
    topic = other.source.topic_partition.topic
    assert found[topic] == f"relay.m.{topic}.0"
    assert found["a"].startswith("relay.m.lane/")
    # a single small range needs no claim: it keeps the id of its topic-partition
    assert owners(copy_range("a")) == ["relay.m.a.0"]


def test_present_owner() -> None:
    """A recorded one counts, else a checkpoint's own id, or the claims'; ids never collide."""
    recorded, at = {TopicPartition("recorded", 0): "another"}, TopicPartition("copied", 0)
    assert present_owner("m", next(iter(recorded)), recorded, is_copied=True) == "another"
    assert present_owner("m", at, recorded, is_copied=True) == "relay.m.copied.0"
    assert present_owner("m", at, recorded, is_copied=False) == "relay.m./claims"
    at = TopicPartition("lane", 3)
    assert len({own_id("m", at), shared_id("m", "", at), shared_id("m", "lane", at)}) == 3

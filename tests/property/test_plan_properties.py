"""What holds for every plan, whatever the clusters report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.model import CopyRange, OffsetRange, TopicPartition
from relay_pipelines.plan.positions import Position, data_loss, lag_records, plan_windows
from relay_pipelines.plan.task_packing import BIG_SECONDS, TASK_SECONDS, copy_seconds, pack
from relay_pipelines.plan.topic_selection import destinations, select

topic_partitions = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 20))
offsets = st.integers(0, 2**40)


@st.composite
def position_lists(draw: st.DrawFn) -> list[Position]:
    """Positions of distinct topic-partitions; checkpoints may be anywhere."""
    positions = []
    for topic_partition in draw(st.lists(topic_partitions, unique=True, max_size=12)):
        low, end = sorted((draw(offsets), draw(offsets)))
        near = st.sampled_from([low, end, max(0, low - 1), end + 1])
        positions.append(Position(topic_partition, low, end, draw(st.none() | offsets | near)))
    return positions


@st.composite
def range_lists(draw: st.DrawFn) -> list[CopyRange]:
    """Ranges from empty to huge, several of one topic-partition among them."""
    ranges = []
    for topic_partition in draw(st.lists(topic_partitions, max_size=40)):
        start = draw(st.integers(0, 1000))
        length = draw(st.integers(0, 100) | st.integers(0, 10_000_000))
        offset_range = OffsetRange(topic_partition, start, start + length)
        ranges.append(CopyRange(offset_range, topic_partition))
    return ranges


@given(position_lists())
def test_every_offset_up_to_the_end_is_planned_or_accounted_for(positions):
    """Each topic-partition is complete through its end after the plan, or a guard says why not.

    No range is empty, and the lag is what the plan would copy: status tells no other story.
    """
    plan = plan_windows(positions)
    planned = {each.topic_partition: each for window in plan.windows for each in window.ranges}
    lost = {loss.topic_partition for loss in plan.data_losses}
    assert sum(len(window.ranges) for window in plan.windows) == len(planned)
    lags = lag_records(positions)
    assert set(lags) == {each.topic_partition for each in positions}
    assert all(lags[at] == len(each) > 0 for at, each in planned.items())
    for position in positions:
        topic_partition = position.topic_partition
        assert (topic_partition in lost) == (data_loss(position) is not None)
        if topic_partition in planned:
            assert topic_partition not in lost
            planned_range = planned[topic_partition]
            assert position.low_watermark <= planned_range.start <= planned_range.end
            assert planned_range.end == position.end_offset
            assert position.next_offset in (None, planned_range.start)
        elif topic_partition not in lost:
            assert position.begin == position.end_offset


@given(position_lists())
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(positions):
    """A second run at the same offsets must copy nothing."""
    plan = plan_windows(positions)
    ends = {each.topic_partition: each.end for window in plan.windows for each in window.ranges}
    after = [
        replace(each, next_offset=ends.get(each.topic_partition, each.next_offset))
        for each in positions
    ]
    assert plan_windows(after).windows == ()


@given(range_lists(), st.integers(1, 16))
def test_every_range_is_in_exactly_one_task(ranges, slots):
    """With all of its topic-partition, in order: order within one rests on this."""
    tasks = pack(ranges, slots)
    assert Counter(each for task in tasks for each in task) == Counter(ranges)
    assert all(tasks)
    places = [{each.source.topic_partition for each in task} for task in tasks]
    seen = [topic_partition for of_task in places for topic_partition in of_task]
    assert len(seen) == len(set(seen))
    for task in tasks:
        for topic_partition in {each.source.topic_partition for each in task}:
            own = [each.source for each in task if each.source.topic_partition == topic_partition]
            assert own == sorted(own)


@given(range_lists(), st.integers(1, 16))
def test_tasks_are_few_and_none_is_much_longer_than_its_share(ranges, slots):
    """Graham's bound: an even share of the small ranges plus one; big ranges stay alone."""
    units: Counter[TopicPartition] = Counter()
    for each in ranges:
        units[each.source.topic_partition] += copy_seconds(each.source)  # type: ignore[assignment]
    small = [seconds for seconds in units.values() if seconds < BIG_SECONDS]
    shared = [
        task for task in pack(ranges, slots) if units[task[0].source.topic_partition] < BIG_SECONDS
    ]
    assert len(shared) <= min(slots, len(small))
    assert len(shared) <= sum(small) / TASK_SECONDS + 1
    for task in shared:
        seconds = sum(copy_seconds(each.source) for each in task)
        assert seconds <= sum(small) / len(shared) + max(small) + 1e-6


@given(range_lists(), st.integers(1, 16), st.randoms(use_true_random=False))
def test_packing_does_not_depend_on_the_order_of_its_input(ranges, slots, random):
    """Brokers answer in any order; a retried run should look like the first."""
    shuffled = list(ranges)
    random.shuffle(shuffled)
    assert pack(shuffled, slots) == pack(ranges, slots)


@given(
    st.lists(st.text("ab._-", min_size=1, max_size=5)),
    st.lists(st.sampled_from(["a.*", "b+", ".*"])),
    st.sampled_from(["b.*", "__.*"]),
)
def test_a_denied_or_internal_topic_is_never_included(topics, allow, deny):
    decisions = select(topics, allow, [deny])
    assert [each.topic for each in decisions] == sorted(set(topics))
    included = [each.topic for each in decisions if each.included]
    assert not any(topic.startswith("__") for topic in included)
    assert deny != "b.*" or not any(topic.startswith("b") for topic in included)


@given(
    st.sets(st.text("ab", min_size=1, max_size=5)),
    st.sampled_from(["{topic}", "x.{topic}", "{topic}-{topic}"]),
)
def test_a_template_never_puts_two_topics_into_one(topics, template):
    renamed = destinations(topics, template)
    assert set(renamed) == topics
    assert len(set(renamed.values())) == len(topics)

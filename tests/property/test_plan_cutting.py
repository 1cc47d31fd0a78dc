"""What holds however a backlog is cut into windows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import StrEnum, auto

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.plan.frozen_window import FrozenWindow, WindowLimits, cut
from relay_pipelines.plan.topic_selection import is_topic_name, literal_names

topic_partitions = st.builds(TopicPartition, st.sampled_from(["a", "a.b", "c"]), st.integers(0, 20))
offsets = st.integers(0, 2**40)


@st.composite
def waiting_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    """Ranges of distinct topic-partitions, small enough to be cut record by record, in order."""
    found = draw(st.lists(topic_partitions, unique=True, max_size=8))
    begins = {at: draw(offsets) for at in found}
    return [
        OffsetRange(at, begins[at], begins[at] + draw(st.integers(0, 60))) for at in sorted(found)
    ]


sizes = st.dictionaries(topic_partitions, st.floats(0, 1000))
limits = st.builds(WindowLimits, st.integers(1, 200), st.integers(1, 20_000))


@given(waiting_ranges(), sizes, limits)
def test_every_offset_is_in_exactly_one_window(waiting, sizes, limits):
    """Consecutive windows join without gap or overlap, and they come to an end."""
    left = waiting
    reached = [offset_range.start for offset_range in waiting]
    while any(map(len, left)):
        window = cut(left, sizes, limits)
        assert [each.topic_partition for each in window] == [at.topic_partition for at in waiting]
        assert [offset_range.start for offset_range in window] == reached
        assert all(len(taken) > 0 for taken, had in zip(window, left, strict=True) if len(had))
        reached = [offset_range.end for offset_range in window]
        left = [replace(had, start=taken.end) for had, taken in zip(left, window, strict=True)]
    assert reached == [offset_range.end for offset_range in waiting]


@given(waiting_ranges(), sizes, limits)
def test_no_window_exceeds_its_limits_or_is_smaller_than_it_must_be(waiting, sizes, limits):
    """One more offset per unfinished topic-partition breaks a limit: a run costs its start.

    Only where no range has more than one offset it exceeds them: less than that is no window.
    """
    window = cut(waiting, sizes, limits)
    records = sum(map(len, window))
    per_record = [sizes.get(each.topic_partition, 0.0) for each in window]
    size = sum(len(each) * one for each, one in zip(window, per_record, strict=True))
    least = all(len(offset_range) <= 1 for offset_range in window)
    assert least or (records <= limits.max_records and size <= limits.max_bytes)
    share = max(map(len, window), default=0) + 1
    larger = [min(len(offset_range), share) for offset_range in waiting]
    size = sum(count * one for count, one in zip(larger, per_record, strict=True))
    assert window == waiting or sum(larger) > limits.max_records or size > limits.max_bytes


class Death(StrEnum):
    """Where a run is killed in a round."""

    BEFORE_COPY = auto()
    IN_COPY = auto()
    AFTER_COPY = auto()
    AFTER_REPORT = auto()


rounds = st.tuples(
    st.dictionaries(st.integers(0, 3), st.integers(1, 9), max_size=4),
    st.booleans(),
    st.none() | st.sampled_from(Death),
)


@given(st.lists(rounds, max_size=12), limits)
def test_rounds_that_are_killed_leave_each_offset_in_one_window(written, limits):
    """What a run has stored before it copies is enough for the next one to go on."""
    ends, copied = Counter[int](), Counter[int]()
    stored: FrozenWindow | None = None
    windows: dict[str, FrozenWindow] = {}
    for number, (new, is_due, death) in enumerate([*written, ({0: 1}, True, None)]):
        ends.update(new)
        ranges = [OffsetRange(TopicPartition("t", at), copied[at], ends[at]) for at in sorted(ends)]
        news = tuple(each for each in ranges if len(each))
        found = FrozenWindow(str(number), news, planned_at_ms=number)
        if stored:
            stored = stored.copied({TopicPartition("t", at): copied[at] for at in ends})
        if stored and not stored.takes(found, limits):
            windows[stored.key], stored = stored, None
        stored = stored.extended(found) if stored else found
        if death is Death.BEFORE_COPY:
            continue
        for each in news:
            part = len(each) // 2 if death is Death.IN_COPY else len(each)
            copied[each.topic_partition.partition] += part
        if death in {Death.IN_COPY, Death.AFTER_COPY} or not is_due:
            continue
        windows[stored.key] = stored  # again, if the run before was killed when it had reported it
        if death is not Death.AFTER_REPORT:
            stored = None
    for at, end in ends.items():
        ranges = [each for window in windows.values() for each in window.ranges]
        of_all = sorted(each for each in ranges if each.topic_partition.partition == at)
        assert [each.start for each in of_all] == [0, *(each.end for each in of_all[:-1])]
        assert of_all[-1].end == end


@given(waiting_ranges(), st.text("node-1_é", max_size=5), offsets, offsets, st.integers(0, 3))
def test_a_frozen_window_comes_back_as_it_was_written(ranges, node, at_ms, size, generation):
    """JSON round trip."""
    generations = {each.topic_partition: generation for each in ranges if generation}
    frozen = FrozenWindow("m-main-00000001", tuple(ranges), node, at_ms, size, generations)
    back = FrozenWindow.from_json(frozen.key, frozen.to_json())
    assert back == frozen
    windows = back.windows(back.topics)
    assert [each for window in windows for each in window.ranges] == ranges
    assert [window.topic for window in windows] == back.topics


@given(st.lists(st.text(r"ab.\-_*|", max_size=5)))
def test_a_literal_name_is_what_its_pattern_matches(patterns):
    """Every name returned is a topic name that a pattern matches when its dots are literal."""
    for name in literal_names(patterns):
        assert is_topic_name(name)
        assert name.replace(".", r"\.") in patterns

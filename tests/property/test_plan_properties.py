"""What holds for every plan: of windows, of tasks, of ACLs, and for ranges that are looked up."""

import itertools
from collections import Counter
from dataclasses import replace
from enum import StrEnum, auto

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.ledger.chunk_copies import RangeIndex
from relay_pipelines.model import Acl, CopyRange, OffsetRange, Operation, Permission, TopicPartition
from relay_pipelines.plan.acl_decisions import State, plan_acls
from relay_pipelines.plan.blockers import Facts, judge
from relay_pipelines.plan.frozen_window import FrozenWindow, WindowLimits, cut
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.task_packing import BIG_SECONDS, TASK_SECONDS, copy_seconds, pack
from tests.support.run_plans import snapshot_of

topic_partitions = st.builds(TopicPartition, st.sampled_from(["a", "a.b", "c"]), st.integers(0, 20))
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
    """Or a guard says why not; the lag is what is planned; a second plan has nothing to copy."""
    snapshot = snapshot_of("m", "n", {}, positions)
    planned = {each.topic_partition: each for each in snapshot.news}
    lost = {loss.topic_partition for loss in snapshot.held.values()}
    assert len(snapshot.news) == len(planned)
    lags = {each.topic_partition: each.lag for each in positions}
    assert set(lags) == {each.topic_partition for each in positions}
    assert all(lags[at] == len(each) > 0 for at, each in planned.items())
    for position in positions:
        topic_partition = position.topic_partition
        assert (topic_partition in lost) == bool(judge([position], Facts()))
        if topic_partition in planned:
            assert topic_partition not in lost
            planned_range = planned[topic_partition]
            assert position.low_watermark <= planned_range.start <= planned_range.end
            assert planned_range.end == position.end_offset
            assert position.next_offset in (None, planned_range.start)
        elif topic_partition not in lost:
            assert position.begin == position.end_offset
    ends = {at: each.end for at, each in planned.items()}
    after = [replace(p, next_offset=ends.get(p.topic_partition, p.next_offset)) for p in positions]
    assert not replace(snapshot, positions=after).news


@given(range_lists(), st.integers(1, 16))
def test_every_range_is_in_exactly_one_task(ranges, slots):
    """With all of its topic-partition, in order; brokers may have answered in any order."""
    tasks = pack(ranges, slots)
    assert pack(ranges[::-1], slots) == tasks
    assert Counter(each for task in tasks for each in task) == Counter(ranges)
    assert all(tasks)
    places = [{each.source.topic_partition for each in task} for task in tasks]
    seen = [topic_partition for of_task in places for topic_partition in of_task]
    assert len(seen) == len(set(seen))
    for at in seen:
        own = [each.source for task in tasks for each in task if each.source.topic_partition == at]
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


@st.composite
def waiting_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    """Ranges of distinct topic-partitions, small enough to be cut record by record, in order."""
    found = draw(st.lists(topic_partitions, unique=True, max_size=8))
    low = {at: draw(offsets) for at in found}
    return [OffsetRange(at, low[at], low[at] + draw(st.integers(0, 60))) for at in sorted(found)]


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
    """One more offset of each would break a limit; only a window of single offsets exceeds one."""
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


news = st.dictionaries(st.integers(0, 3), st.integers(1, 9), max_size=4)
rounds = st.tuples(news, st.booleans(), st.none() | st.sampled_from(Death))


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


TOPICS = {"a.one": "c.one", "a.two": "shared", "b": "shared", "a.new": "c.new"}
COPIED_TO = {"c.one", "shared"}
THERE = {*TOPICS.values(), "c.one.other"}
PRINCIPALS, HOSTS = ("User:ann", "User:bob", "User:eve"), ("10.0.0.1", "10.0.0.2")
READERS = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
IMPLIES_DESCRIBE = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


def lists(names: list[str]) -> st.SearchStrategy[list[Acl]]:
    operations = [Operation.ALL, *READERS, Operation.WRITE, Operation.ALTER_CONFIGS]
    acl = st.builds(
        Acl,
        resource=st.sampled_from(names),
        permission=st.sampled_from(Permission),
        principal=st.sampled_from([*PRINCIPALS[:2], "User:*"]),
        host=st.sampled_from([HOSTS[0], "*"]),
        operation=st.sampled_from(operations),
        prefixed=st.booleans(),
    )
    return st.lists(acl, max_size=8)


def authorizes(acls: list[Acl], who: str, host: str, operation: Operation, topic: str) -> bool:
    """The answer of Kafka's StandardAuthorizer without allow.everyone.if.no.acl.found."""
    matching = [
        acl
        for acl in acls
        if (topic.startswith(acl.resource) if acl.prefixed else acl.resource in {topic, "*"})
        and acl.principal in {who, "User:*"}
        and acl.host in {host, "*"}
    ]
    denied = {acl.operation for acl in matching if acl.permission is Permission.DENY}
    if denied & {operation, Operation.ALL}:
        return False
    allowed = {acl.operation for acl in matching if acl.permission is Permission.ALLOW}
    implied = operation is Operation.DESCRIBE and allowed & IMPLIES_DESCRIBE
    implied_configs = operation is Operation.DESCRIBE_CONFIGS and Operation.ALTER_CONFIGS in allowed
    return bool(allowed & {operation, Operation.ALL} or implied or implied_configs)


def missing(source: list[Acl], before: list[Acl]) -> list[Acl]:
    found = plan_acls(source, before, TOPICS, COPIED_TO)
    return [decision.acl for decision in found if decision.state is State.MISSING]


@given(lists(["a.one", "a.", "b", "*", "other"]), lists(["c.one", "c.", "shared", "*"]))
def test_nothing_widens(source: list[Acl], before: list[Acl]) -> None:
    """Nobody gains a right that they lacked before and do not have on every source of the topic."""
    created = missing(source, before)
    assert {acl.resource for acl in created} <= COPIED_TO
    assert not any(acl.prefixed for acl in created)
    assert {acl.operation for acl in created} <= set(READERS)
    after = before + created
    operations = [operation for operation in Operation if operation is not Operation.ALL]
    for who in itertools.product(PRINCIPALS, HOSTS, operations, sorted(THERE)):
        if authorizes(after, *who) and not authorizes(before, *who):
            of = [topic for topic, to in TOPICS.items() if to == who[3]]
            assert all(authorizes(source, *who[:3], topic) for topic in of), who


@given(lists(["a.one", "a.", "*"]))
def test_readers_of_the_source_may_read_the_copy(source: list[Acl]) -> None:
    """Readers get what they need unless the destination denies it; a second plan adds nothing."""
    created = missing(source, [])
    for who in itertools.product(PRINCIPALS, HOSTS):
        readable = authorizes(source, *who, Operation.READ, "a.one")
        assert authorizes(created, *who, Operation.READ, "c.one") == readable
    assert missing(source, created) == []


AT = TopicPartition("orders", 0)
OFFSETS = st.integers(0, 30)
RANGES = st.lists(
    st.builds(lambda start, size: OffsetRange(AT, start, start + size), OFFSETS, st.integers(0, 9))
).map(sorted)


@given(RANGES, OFFSETS, OFFSETS)
def test_ranges_are_found(ranges: list[OffsetRange], start: int, end: int) -> None:
    """The last one comes first; some are empty, or lie within others."""
    index = RangeIndex(ranges)
    there = [n for n, each in enumerate(ranges) if each.start < end and each.end > start]
    assert [*index.overlapping(start, end)] == there[::-1]
    there = [n for n, each in enumerate(ranges) if each.start <= start < each.end]
    assert [*index.containing(start)] == there[::-1]

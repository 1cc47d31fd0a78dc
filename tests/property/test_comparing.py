"""Whatever another tool has done, a comparison's numbers are those of both multisets."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_pipelines.audit import comparison, undecoded_sides
from relay_pipelines.audit.comparison import Side
from relay_pipelines.audit.spark_job import json_of
from relay_pipelines.compare import by_key, in_order, tasks
from relay_pipelines.compare.alignment import KEY, changed_fields
from relay_pipelines.compare.by_key import ByKey, GroupsResult, merged
from relay_pipelines.compare.in_order import InOrder, digest
from relay_pipelines.compare.pairs import (
    BEYOND_THE_END,
    CHANGED,
    CLEANED_MEANWHILE,
    EXTRA,
    MISSING,
    Log,
    Pair,
    PairResult,
)
from relay_pipelines.compare.request import Align
from relay_pipelines.compare.tasks import settled
from relay_pipelines.errors import RetriableError
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import TIMESTAMP_TYPE_BIT
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import Record
from tests.support.comparing import compared
from tests.support.fake_cluster import served
from tests.support.fetched_spans import batch, span
from tests.support.filled import Clock, filled

AT = TopicPartition("t", 0)
Content = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]

FEW = st.tuples(
    st.integers(1, 3),
    st.sampled_from([None, b"a", b"b"]),
    st.sampled_from([None, b"", b"x", b"y"]),
    st.sampled_from([(), (("h", b"1"),), (("h", None),)]),
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["delete", "repeat", "insert", "change", "retime", "move"]),
        st.integers(0, 99),
        FEW,
    ),
    max_size=5,
)


def edited(records: Sequence[Content], edits: Sequence[tuple[str, int, Content]]) -> list[Content]:
    """Do to records what tools do that copy at least once, or by a script."""
    made = list(records)
    for edit, number, other in edits:
        at, to = number % (len(made) + 1), number * 7 % (len(made) + 1)
        if edit == "delete":
            del made[at : at + 1 + number % 3]
        elif edit == "repeat":
            made[to:to] = made[at : at + 1 + number % 5]
        elif edit == "insert":
            made.insert(at, other)
        elif edit == "change" and at < len(made):
            made[at] = (*made[at][:2], *other[2:])
        elif edit == "retime":
            some = made[at : at + 2 + number % 20]
            made[at : at + len(some)] = [(each[0] + 5, *each[1:]) for each in some]
        elif edit == "move":
            some = made[at : at + 1 + number % 4]
            del made[at : at + 1 + number % 4]
            made[to:to] = some
    return made


def log(
    records: Sequence[Content], size: int, stamped: int = 1 << 9
) -> tuple[Iterator[list[FetchedSpan]], int]:
    """Batches of so many records, with an offset between them that holds none.

    Args:
        stamped: from this record on, a broker has set the times of batches.
    """
    spans: list[FetchedSpan] = []
    end = 0
    for start in range(0, len(records), size):
        some = records[start : start + size]
        made = [Record(n, *each[:3], list(each[3])) for n, each in enumerate(some)]
        attributes = TIMESTAMP_TYPE_BIT if start >= stamped else 0
        spans.append(span(batch(made, end, attributes=attributes)))
        end += len(some) + 1
    return fetched(spans, 1 + size % 3), end


def fetched(spans: Sequence[FetchedSpan], size: int) -> Iterator[list[FetchedSpan]]:
    """Yield so many at once, in a buffer that is used again for the next ones."""
    for start in range(0, len(spans), size):
        runs = [each.run for each in spans[start : start + size] if each.run is not None]
        buffers = [bytearray(run.data) for run in runs]
        yield [
            span(run._replace(data=memoryview(buffer)))
            for run, buffer in zip(runs, buffers, strict=True)
        ]
        for buffer in buffers:
            buffer[:] = bytes(len(buffer))


def pair(source: int, destination: int, align: Align) -> Pair:
    logs = (Log(OffsetRange(AT, 0, end), 0, end) for end in (source, destination))
    here, there = logs
    return Pair("t", (here,), (there,), align, 1)


def assert_exact(
    found: PairResult, source: Sequence[Content], destination: Sequence[Content]
) -> None:
    """No difference is invented, and none is passed over."""
    here, there, numbers = Counter(source), Counter(destination), found.numbers
    alone = numbers["missing"] + numbers["changed"] + found.not_compared.total()
    assert alone == (here - there).total()
    added = numbers["extra"] + numbers["duplicated"] + numbers["changed"]
    assert added == (there - here).total()
    both = found.same + numbers["out of order"]
    assert both == (here & there).total()


SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


# with fewer, it does not notice when parts of the code are left out
@settings(max_examples=10 * settings().max_examples)
@given(
    st.lists(FEW, max_size=40),
    EDITS,
    SIZES,
    st.sampled_from([2, 1 << 19]),
    st.integers(1, 9),
    st.sampled_from([9, 20, 1 << 9]),
)
def test_in_order(
    source: list[Content],
    edits: list[tuple[str, int, Content]],
    sizes: tuple[int, int],
    most: int,
    steady: int,
    stamped: int,
) -> None:
    """However few digests may wait, what is the same passes, and nothing else does."""
    destination = edited(source, edits)
    (here, end), (there, other_end) = (
        log(source, sizes[0]),
        log(destination, sizes[1], stamped),
    )
    stamped = -(-stamped // sizes[1]) * sizes[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_order, "_WINDOWS", (4, 8))
        patch.setattr(in_order, "_MOST_WAITING", most)
        patch.setattr(comparison, "_STEADY", steady)
        patch.setattr(undecoded_sides, "_LEAST_RECORDS", 4)
        patch.setattr(undecoded_sides, "_MOST_RECORDS", 8)
        one = pair(end, other_end, Align.ORDER)
        comparing = InOrder(one, Side(here), Side(there), lambda *_: None)
        comparing.compare()

        def seen(_: Log, digests: Collection[bytes]) -> dict[bytes, tuple[int, int]]:
            known = {digest(content, comparing.fields): (0, 0) for content in source}
            return {each: known[each] for each in digests if each in known}

        found = comparing.judge(seen)
    timeless = [each[KEY:] for each in source] == [each[KEY:] for each in destination]
    is_same = timeless and source[:stamped] == destination[:stamped]
    assert (not found.numbers and not found.not_compared) == is_same
    if not found.bounded and len(destination) <= stamped:
        assert_exact(found, source, destination)


@given(st.lists(FEW, max_size=40), EDITS, st.sampled_from([Align.KEY, Align.SET]))
def test_by_key(source: list[Content], edits: list[tuple[str, int, Content]], align: Align) -> None:
    """The order of records of other keys, and of those without one, does not count."""
    destination = edited(source, edits)
    rows = [
        by_key._group(content, by_key=align is Align.KEY)
        + by_key._PLACE.pack(side, 0, offset)
        + by_key._packed(content, 0)
        for side, records in enumerate((source, destination))
        for offset, content in enumerate(records)
    ]
    one = pair(len(source), len(destination), align)
    found = merged([ByKey(one).compare(sorted(rows))])
    assert_exact(found, source, destination)
    if align is Align.SET:
        assert not found.numbers["out of order"]
    ordered = [
        [[each for each in records if each[1] == key] for key in (b"a", b"b")]
        for records in (source, destination)
    ]
    is_ordered = align is Align.SET or ordered[0] == ordered[1]
    same = Counter(source) == Counter(destination) and is_ordered
    assert (not found.numbers and not found.not_compared) == same


def through_json(part: GroupsResult) -> GroupsResult:
    """What the driver gets of a part from a task."""
    codec = json_of(GroupsResult)
    return codec.validate_json(codec.dump_json(part))


def test_more_records_of_a_key_than_are_compared() -> None:
    """Which of them are extra, nobody knows: the destination may end with them."""
    rows = [
        by_key._group((0, key, b"", ()), by_key=True)
        + by_key._PLACE.pack(side, 0, offset)
        + by_key._packed((0, key, b"", ()), 0)
        for side, keys in enumerate(("aab", "aaaa"))
        for offset, key in enumerate(letter.encode() for letter in keys)
    ]
    with patch.object(by_key, "_MOST_ROWS", 3):
        parts = [ByKey(pair(3, 4, Align.KEY)).compare(sorted(rows))]
    found = merged(list(map(through_json, parts)))
    assert (found.numbers, found.bounded) == ({EXTRA: 2, MISSING: 1}, True)


@pytest.mark.parametrize(
    ("source", "copies", "hidden", "missing", "beyond"),
    [
        ("abcdefghij", ["abcde"], 0, 0, 5),
        ("abcdefghij", ["aXbcde"], 0, 0, 5),
        ("abcdefghij", ["abcdeX"], 0, 5, 0),
        ("abcdefghij", ["X"], 0, 10, 0),
        ("abcdefghij", ["abX", "cde"], 0, 0, 5),
        ("abcdefghij", ["abcX", "deX"], 0, 5, 0),
        ("abcdefghij", ["abcdeX"], 1, 0, 5),
        ("abAB", ["aX", "b"], 0, 1, 1),
    ],
)
def test_a_partition_that_ends_with_records_of_its_own(
    source: str, copies: list[str], hidden: int, missing: int, beyond: int
) -> None:
    """It is not just behind, unless the source hides as many; others may be."""
    rows = [
        by_key._group(content, by_key=True)
        + by_key._PLACE.pack(side, partition, offset)
        + by_key._packed(content, 0)
        for side, partitions in enumerate(([source], copies))
        for partition, keys in enumerate(partitions)
        for offset, key in enumerate(keys)
        for content in [(source.find(key), key.lower().encode(), b"", ())]
    ]
    one = pair(10, 10, Align.KEY)
    one = replace(one, sources=(replace(one.sources[0], hidden_after_end=hidden),))
    # as two tasks may have them
    parts = [ByKey(one).compare(sorted(row for row in rows if row[0] % 2 == n)) for n in (0, 1)]
    found = merged(list(map(through_json, parts)))
    assert found.numbers[MISSING] == missing
    assert found.numbers[EXTRA] == "".join(copies).count("X") - hidden
    assert found.not_compared[BEYOND_THE_END] == beyond


def test_times_of_a_key_that_brokers_have_set_in_part() -> None:
    """Those that they have not set count."""
    source: list[Content] = [(n, b"k", b"%d" % n, ()) for n in range(3)]
    copies = [source[0], (9, *source[1][1:]), (9, *source[2][1:])]
    rows = [
        by_key._group(content, by_key=True)
        + by_key._PLACE.pack(side, 0, offset)
        + by_key._packed(content, by_key._APPEND_TIME if side and offset == 2 else 0)
        for side, records in enumerate((source, copies))
        for offset, content in enumerate(records)
    ]
    found = merged([ByKey(pair(3, 3, Align.KEY)).compare(sorted(rows))])
    assert (found.same, found.changed) == (2, {"timestamp": 1})


def test_the_name_of_a_header_that_is_no_text() -> None:
    """A file, or a screen, can hold what stands for it."""
    (_, added) = changed_fields((1, None, None, ()), (1, None, None, (("\udcff", b""),)), range(4))
    assert added.encode() == b"\\udcff"


def test_differences_that_a_cleaner_makes_again_and_again() -> None:
    """Those that stay are differences; of the others, nobody knows."""
    numbers = itertools.count(1)

    def compare() -> PairResult:
        found = PairResult(replace(pair(9, 9, Align.KEY), compacts=(False, True)))
        found.note(MISSING, (AT, 1), None, next(numbers))
        found.note(CHANGED, (AT, 2), (AT, 2))
        return found

    found = settled(compare)
    assert (found.numbers, found.not_compared) == ({CHANGED: 1}, {CLEANED_MEANWHILE: 4})


def cleaned(records: Sequence[Content], count: int) -> list[Content]:
    """Return what a cleaner leaves of records, of which it has seen so many."""
    newest = {each[1]: number for number, each in enumerate(records[:count])}
    left = [each for number, each in enumerate(records[:count]) if newest[each[1]] == number]
    return [*left, *records[count:]]


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=30),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.integers(0, 29),
)
def test_cleaners(keys: list[bytes], seen: tuple[int, int], lost: int) -> None:
    """What they have removed is explained; a record that was lost before that is one difference."""
    source: list[Content] = [(n, key, b"%d" % n, ()) for n, key in enumerate([*keys, b"last"])]
    for copies in (source, [each for each in source if each[0] != lost % len(keys)]):
        here, there = (cleaned(*each) for each in zip((source, copies), seen, strict=True))
        one = replace(pair(len(here), len(there), Align.KEY), compacts=(True, True))
        rows = [
            by_key._group(content, by_key=True)
            + by_key._PLACE.pack(side, 0, offset)
            + by_key._packed(content, 0)
            for side, records in enumerate((here, there))
            for offset, content in enumerate(records)
        ]
        found = merged([ByKey(one).compare(sorted(rows))])
        apart = (Counter(here) - Counter(there)).total() + (Counter(there) - Counter(here)).total()
        missing = found.numbers["missing"]
        assert found.numbers.total() == missing <= (copies is not source)
        assert found.superseded + missing == apart
        newest = source[lost % len(keys)] in cleaned(source, len(source))
        assert copies is source or missing or not newest


@pytest.mark.parametrize("side", [0, 1])
def test_a_topic_that_nobody_leads_stops_no_other(side: int) -> None:
    """It was not compared, which is no pass; with it alone, there is nothing to compare."""
    both = filled("abc", 5), filled("abc", 5)
    fakes = Cluster("source", ("source:1",)), Cluster("destination", ("destination:1",))
    both[1].cluster_id = "another"
    both[side].leaderless.add("b")
    with served(source=both[0], destination=both[1]):
        found = compared(fakes, "[abc]", clock=Clock())
        assert [(each.pair.topic, each.same) for each in found.results] == [("a", 5), ("c", 5)]
        assert [finding.where for finding in found.unpaired] == ["b"]
        assert "it has no leader" in str(found.unpaired[0])
        assert found.exit_code == 1
        with pytest.raises(RetriableError, match="it has no leader"):
            compared(fakes, "b", clock=Clock())
        both[side].leaderless.clear()
        lose = partial(both[side].leaderless.add, "b")
        with patch.object(tasks, "SystemClock", Clock):
            found = compared(fakes, "[abc]", clock=Clock(), meanwhile=lose)
    assert [each.pair.topic for each in found.results if each.error] == ["b"]
    assert [each.same for each in found.results] == [5, 0, 5]
    assert found.exit_code == 1

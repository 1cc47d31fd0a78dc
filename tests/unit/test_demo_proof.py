"""The demo's proof can fail: it counts every kind of difference between two sides."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from relay_pipelines.demo.proof import Comparison, Content, Record, compare, compare_all
from relay_pipelines.demo.reporter import comparison_table
from relay_pipelines.demo.shop import PARTITIONS, TRACE_ID, Event, Shop
from relay_pipelines.model import TopicPartition

AT = TopicPartition("orders.events", 0)
CLEAN = {"lost": 0, "duplicates": 0, "foreign": 0, "changed": 0}


def content(*records: tuple[bytes, bytes]) -> Content:
    return [Record(offset, *record) for offset, record in enumerate(records)]


A, B, C, D = ((name, b"content of " + name) for name in (b"a", b"b", b"c", b"d"))
CHANGED_B = (b"b", b"another content")


def differences(comparison: Comparison) -> dict[str, int]:
    return {name: getattr(comparison, name) for name in CLEAN}


@pytest.mark.parametrize(
    ("destination", "found"),
    [
        pytest.param([A, C], {"lost": 1}, id="a lost record"),
        pytest.param([A, B, B, C], {"duplicates": 1}, id="a doubled record"),
        pytest.param([A, B, C, A, B, C], {"duplicates": 3}, id="everything twice"),
        pytest.param([A, CHANGED_B, C], {"changed": 1}, id="a changed record"),
        pytest.param(
            [A, B, B], {"lost": 1, "duplicates": 1}, id="a loss and a duplicate do not cancel out"
        ),
        pytest.param([A, B, C, D], {"foreign": 1}, id="a record from elsewhere"),
        pytest.param([], {"lost": 3}, id="nothing arrived"),
        pytest.param([A, C, B], {}, id="another order shows only in the digests"),
    ],
)
def test_what_differs_is_counted(destination, found):
    comparison = compare(AT, content(A, B, C), content(*destination))
    assert differences(comparison) == CLEAN | found
    assert not comparison.same_order
    assert not comparison.equal


def test_equal_sides_are_equal_whatever_their_offsets():
    """Offsets may differ: the destination has no gaps where the source has some."""
    source = [Record(0, *A), Record(7, *B), Record(9, *C)]
    comparison = compare(AT, source, content(A, B, C))
    assert comparison.equal
    assert differences(comparison) == CLEAN


def test_a_topic_partition_that_is_missing_on_one_side_is_compared():
    assert [comparison.lost for comparison in compare_all({AT: content(A, B)}, {})] == [2]
    assert [comparison.foreign for comparison in compare_all({}, {AT: content(A, B)})] == [2]


def test_nodes_are_identical_only_with_equal_offsets():
    assert content(A, B) == content(A, B)
    assert content(A, B) != [Record(0, *A), Record(2, *B)]


def test_the_table_names_the_difference_and_fits_into_80_columns():
    out = io.StringIO()
    sides = {AT: content(A, B)}, {AT: content(A, A)}
    Console(file=out, width=80).print(comparison_table(compare_all(*sides)))
    line = next(line for line in out.getvalue().splitlines() if line.startswith(str(AT)))
    assert line.split() == ["orders.events-0", "2", "2", "1", "1", "0", "DIFFER"]
    assert max(map(len, out.getvalue().splitlines())) <= 80


def shop(count: int = 5_000) -> list[Event]:
    return list(Shop(events=count).history(count, until_ms=1_800_000_000_000))


def test_the_shop_is_deterministic_and_every_event_has_its_own_trace_id():
    events = shop()
    assert events == shop()
    assert len({dict(event.headers)[TRACE_ID] for event in events}) == len(events)


def test_the_shop_shows_what_a_mirror_must_keep():
    """Null keys, tombstones, every topic-partition; keys always where the topic is compacted."""
    events = shop()
    assert {(event.topic, event.partition) for event in events} == {
        (topic, partition) for topic, count in PARTITIONS.items() for partition in range(count)
    }
    assert any(event.key is None for event in events)
    assert any(event.value is None for event in events)
    assert all(event.key for event in events if event.topic == "orders.status")
    sizes = [len(event.value) for event in events if event.topic == "orders.events"]
    assert 200 < min(sizes) < 450
    assert 700 < max(sizes) < 1000

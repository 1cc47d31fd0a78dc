"""The demo's proof can fail: whatever differs between two sides is counted as what it is."""

from __future__ import annotations

import copy
import io

import pytest
from rich.console import Console

from relay_pipelines.demo.events import PARTITIONS, TRACE_ID, Event, Shop
from relay_pipelines.demo.proof import Content, Verdict, compare, compare_all, identical
from relay_pipelines.demo.telling import table
from relay_pipelines.model import TopicPartition

AT = TopicPartition("orders.events", 0)
CLEAN = {"lost": 0, "duplicates": 0, "foreign": 0, "changed": 0}


def content(*records: tuple[bytes, bytes]) -> Content:
    made = Content()
    for offset, (identity, digest) in enumerate(records):
        made.add(offset, identity, digest)
    return made


A, B, C, D = ((name, b"content of " + name) for name in (b"a", b"b", b"c", b"d"))
CHANGED_B = (b"b", b"another content")


def differences(verdict: Verdict) -> dict[str, int]:
    return {name: getattr(verdict, name) for name in CLEAN}


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
        pytest.param([A, C, B], {}, id="another order shows in the digests alone"),
    ],
)
def test_what_differs_is_counted(destination, found):
    verdict = compare(AT, content(A, B, C), content(*destination))
    assert differences(verdict) == CLEAN | found
    assert not verdict.digests_equal
    assert not verdict.equal


def test_equal_sides_are_equal_whatever_their_offsets():
    """The destination numbers records anew where the source has gaps."""
    source = content(A, B, C)
    source.offsets = [0, 7, 9]
    verdict = compare(AT, source, content(A, B, C))
    assert verdict.equal
    assert differences(verdict) == CLEAN


def test_a_topic_partition_that_one_side_lacks_is_compared_all_the_same():
    assert [one.lost for one in compare_all({AT: content(A, B)}, {})] == [2]
    assert [one.foreign for one in compare_all({}, {AT: content(A, B)})] == [2]


def test_nodes_are_identical_only_with_equal_offsets():
    node = content(A, B)
    other = copy.deepcopy(node)
    assert identical({AT: node}, {AT: other})
    other.offsets[1] += 1
    assert not identical({AT: node}, {AT: other})
    assert not identical({AT: node}, {})


def test_the_table_names_the_difference_and_fits_into_80_columns():
    out = io.StringIO()
    sides = {AT: content(A, B)}, {AT: content(A, A)}
    Console(file=out, width=80).print(table(compare_all(*sides)))
    line = next(line for line in out.getvalue().splitlines() if line.startswith(str(AT)))
    assert line.split() == ["orders.events-0", "2", "2", "1", "1", "0", "DIFFER"]
    assert max(map(len, out.getvalue().splitlines())) <= 80


def shop(count: int = 5_000) -> list[Event]:
    return list(Shop(orders=400).history(count, until_ms=1_800_000_000_000))


def test_the_shop_is_deterministic_and_every_event_can_be_told_from_all_others():
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

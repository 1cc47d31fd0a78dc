"""Of a compacted topic, all records of a key agree as far as both sides have them."""

from __future__ import annotations

from typing import Any

import pytest

from relay_pipelines.audit.comparison import Comparison
from relay_pipelines.audit.key_comparison import (
    AT_SOURCE,
    ON_BOTH_SIDES,
    Compaction,
    compare_keys,
    decoded,
)
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import TIMESTAMP_TYPE_BIT
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import Record
from tests.support.fetched_spans import batch, span

AT = TopicPartition("orders", 0)
Pair = tuple[str | None, str | None]
Log = list[list[FetchedSpan]]


def kept(*pairs: Pair, at: int = 0, attributes: int = 0) -> Log:
    """A log of these keys and values, in one batch that begins at an offset."""
    records = [
        Record(
            n,
            1_700_000_000_000,
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            [],
        )
        for n, (key, value) in enumerate(pairs)
    ]
    return [[span(batch(records, at, attributes=attributes))]] if records else []


def compared(
    source: Log, destination: Log, start: int = 0, end: int = 100, **rules: Any
) -> Comparison:
    """Compare logs of which a range was copied to the same offsets."""
    copied = OffsetRange(AT, start, end)
    rules = {"records": 2} | rules
    return compare_keys(decoded(source), decoded(destination), Compaction(copied, copied, **rules))


def differs(source: Log, destination: Log, **rules: Any) -> str:
    """What differs; empty if nothing does."""
    found = compared(source, destination, **rules).difference
    return "" if found is None else found.what


ONE, TWO = "the records of 1 key differ", "the records of 2 keys differ"
KEYLESS = "the records without a key differ"


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        ([("a", "1"), ("b", "2")], [("a", "1"), ("b", "2")], ""),
        ([("a", "0"), ("a", "1")], [("a", "1")], ""),
        ([("a", "1")], [("a", "0"), ("a", "1")], ""),
        ([("a", "1"), ("a", None)], [], ""),
        ([], [("a", "1"), ("a", None)], ""),
        ([("a", "1"), ("a", None)], [("a", None)], ""),
        ([("a", "1")], [("a", "2")], ONE),
        ([("a", "1")], [("a", None)], ONE),
        ([("a", None)], [("a", "1")], ONE),
        ([("a", "1"), ("b", "1")], [("a", "1")], ONE),
        ([("a", "1")], [("a", "1"), ("b", "1")], ONE),
        ([("a", "1"), ("a", "2")], [("a", "2"), ("a", "1")], ONE),
        ([("a", "1"), ("a", None)], [("a", "1")], ONE),
        ([("a", "0"), ("a", "1")], [("a", "x"), ("a", "1")], ONE),
        ([("a", "0"), ("a", "1"), ("a", "2")], [("a", "0"), ("a", "2")], ONE),
        ([("a", "1"), ("b", "1")], [("a", "2"), ("b", "2")], TWO),
        ([("a", "")], [("a", None)], ONE),
        ([(None, "1"), (None, "2")], [(None, "1"), (None, "2")], ""),
        ([(None, "1"), (None, "2")], [(None, "1"), (None, "3")], KEYLESS),
        ([(None, "1"), (None, "2")], [(None, "2")], KEYLESS),
        ([(None, "1"), (None, None)], [], KEYLESS),
        ([(None, "2")], [(None, "1"), (None, "2")], ""),
    ],
    ids=[
        "the same",
        "cleaned at the destination",
        "cleaned at the source",
        "tombstone cleaned at the destination",
        "tombstone cleaned at the source",
        "before a tombstone",
        "another value",
        "deleted at the destination",
        "deleted at the source",
        "missing",
        "added",
        "another order",
        "the tombstone alone is missing",
        "an older record is another",
        "a gap between two records",
        "two keys",
        "empty is no tombstone",
        "no keys",
        "another value without a key",
        "one without a key is missing",
        "a null value without a key is no tombstone",
        "without a key cleaned at the source",
    ],
)
def test_the_records_of_each_key(
    source: list[Pair], destination: list[Pair], expected: str
) -> None:
    assert differs(kept(*source), kept(*destination)) == expected


def test_nothing_is_missing_where_the_topic_is_not_compacted() -> None:
    """Only compaction removes a record for a later one of its key."""
    both, last = kept(("a", "0"), ("a", "1")), kept(("a", "1"))
    assert differs(both, last, at_destination=False) == ONE
    assert differs(last, both, at_source=False) == ONE
    assert differs(both, last, at_source=False) == differs(last, both, at_destination=False) == ""


def test_what_became_of_the_records() -> None:
    """Each that was committed is compared, explained by a later one, or not verified."""
    source = kept(("a", "0"), ("a", "1"), ("b", "2"))
    destination = kept(("a", "1"), ("b", "0"), ("b", "1"), ("b", "2"))
    found = compared(source, destination, records=7)
    assert (found.difference, found.records, found.superseded) == (None, 3, 1)
    assert found.not_verified == {AT_SOURCE: 2, ON_BOTH_SIDES: 2}


def test_a_key_that_comes_again_after_the_range() -> None:
    """Its last record in the range may be gone on the side that has a later one."""
    later = kept(("a", "9"), at=50)
    source, without = kept(("a", "1"), ("b", "1")), kept(("b", "1"))
    assert differs([*without, *later], source, end=50) == ""
    assert differs(source, [*without, *later], end=50) == ""
    assert differs([*source, *later], without, end=50) == ONE
    assert differs(without, [*source, *later], end=50) == ONE
    assert differs([*without, *later], source) == ONE


def test_a_key_from_before_the_range() -> None:
    """It was not copied, as far as the ledger goes."""
    source = [*kept(("a", "1")), *kept(("b", "1"), at=10)]
    destination = [*kept(("c", "1")), *kept(("b", "1"), at=10)]
    assert differs(source, destination, start=10) == ""
    assert differs(source, destination) == TWO


def test_timestamps_count_unless_the_destination_sets_them() -> None:
    later = [Record(0, 1_800_000_000_000, b"a", b"1", [])]
    source = kept(("a", "1"))
    assert differs(source, [[span(batch(later))]]) == ONE
    found = compared(source, [[span(batch(later, attributes=TIMESTAMP_TYPE_BIT))]], records=1)
    assert (found.difference, found.records, found.untimed) == (None, 1, 1)


def test_it_shows_the_first_record_that_differs() -> None:
    source = kept(("a", "1"), ("b", "1"), ("c", "1"))
    found = compared(source, kept(("a", "1"), ("b", "2"))).difference
    assert found is not None
    assert found.source is not None
    assert found.destination is not None
    assert (found.source.key, found.source.offset, found.destination.offset) == ("b", 1, 1)
    assert found.source.value.startswith("digest ")
    assert found.source.value != found.destination.value

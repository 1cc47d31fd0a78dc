"""Of a compacted topic, the latest record of each key must agree."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import TIMESTAMP_TYPE_BIT
from relay_pipelines.protocol.python_codec import Record
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.verify.latest_records import compare_latest, decoded
from tests.unit.test_comparison import batch, span

AT = TopicPartition("orders", 0)


def kept(
    *pairs: tuple[str, str | None], at: int = 0, attributes: int = 0
) -> list[list[FetchedSpan]]:
    """A log of these keys and values, in one batch that begins at an offset."""
    records = [
        Record(n, 1_700_000_000_000, key.encode(), None if value is None else value.encode(), [])
        for n, (key, value) in enumerate(pairs)
    ]
    return [[span(batch(records, at, attributes=attributes))]] if records else []


def differs(
    source: Sequence[Sequence[FetchedSpan]],
    destination: Sequence[Sequence[FetchedSpan]],
    start: int = 0,
    end: int = 100,
) -> str:
    """What differs; empty if nothing does."""
    found = compare_latest(
        decoded(source), decoded(destination), OffsetRange(AT, start, end)
    ).difference
    return "" if found is None else found.what


ONE, TWO = "the latest record of 1 key differs", "the latest records of 2 keys differ"


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
        ([("a", "1"), ("b", "1")], [("a", "2"), ("b", "2")], TWO),
        ([("a", "")], [("a", None)], ONE),
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
        "two keys",
        "empty is no tombstone",
    ],
)
def test_latest_records(
    source: list[tuple[str, str | None]], destination: list[tuple[str, str | None]], expected: str
) -> None:
    assert differs(kept(*source), kept(*destination)) == expected


def test_a_key_that_comes_again_after_the_copied_range() -> None:
    """Its older record may be gone on either side."""
    source = [*kept(("b", "1")), *kept(("a", "9"), at=50)]
    assert differs(source, kept(("a", "1"), ("b", "1")), end=50) == ""
    assert differs(source, kept(("b", "1")), end=50) == ""
    assert differs(source, kept(("a", "1"), ("b", "1"))) == ONE


def test_a_key_from_before_the_copied_range() -> None:
    """It was not copied, as far as the ledger goes."""
    source = [*kept(("a", "1")), *kept(("b", "1"), at=10)]
    assert differs(source, kept(("b", "1")), start=10) == ""
    assert differs(source, kept(("b", "1"))) == ONE


def test_timestamps_count_unless_the_destination_sets_them() -> None:
    later = [Record(0, 1_800_000_000_000, b"a", b"1", [])]
    source = kept(("a", "1"))
    assert differs(source, [[span(batch(later))]]) == ONE
    assert differs(source, [[span(batch(later, attributes=TIMESTAMP_TYPE_BIT))]]) == ""


def test_it_shows_the_first_key_that_differs() -> None:
    source = kept(("a", "1"), ("b", "1"), ("c", "1"))
    found = compare_latest(
        decoded(source), decoded(kept(("a", "1"), ("b", "2"))), OffsetRange(AT, 0, 9)
    ).difference
    assert found is not None
    assert found.source is not None
    assert found.destination is not None
    assert (found.source.key, found.source.offset, found.destination.offset) == ("b", 1, 1)
    assert found.source.value.startswith("digest ")
    assert found.source.value != found.destination.value

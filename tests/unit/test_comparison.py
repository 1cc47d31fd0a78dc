"""Both sides of a chunk: as bytes, record by record, or, where compacted, key by key."""

from collections.abc import Sequence
from typing import Any

import pytest

from relay_pipelines.audit import comparison
from relay_pipelines.audit.comparison import (
    ComparedChunk,
    Comparison,
    Difference,
    Side,
    excerpts,
)
from relay_pipelines.audit.key_comparison import (
    AT_SOURCE,
    ON_BOTH_SIDES,
    compare_keys,
    decoded,
)
from relay_pipelines.audit.retention import CleanupPolicies
from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.batch import CRC_END, TIMESTAMP_TYPE_BIT, split
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import Record
from tests.support.fetched_spans import batch, span

Batches = Sequence[Sequence[Record]]


def numbered(count: int) -> list[Record]:
    return [
        Record(n, 1_700_000_000_000 + n, f"k{n}".encode(), b"value %d" % n, [("n", b"%d" % n)])
        for n in range(count)
    ]


def side(*batches: Sequence[Record], codec: int = 0, attributes: int = 0) -> Side:
    """Batches one after another, each in a fetch of its own."""
    fetches: list[list[FetchedSpan]] = []
    offset = 0
    for records in batches:
        fetches += [[], [span(batch(records, offset, codec=codec, attributes=attributes))]]
        offset += len(records)
    return Side(fetches)


def compare(source: Side, destination: Side, left_out: int = 0) -> Comparison:
    """Compare two sides of a chunk of which a filter has left so many records out."""
    offsets = OffsetRange(AT, 0, 10)
    chunk = ComparedChunk(offsets, offsets, 10 - left_out, 0, left_out)
    return comparison.compare(source, destination, chunk)


def differing(source: Side, destination: Side) -> Difference:
    """Return the first difference of two sides that differ."""
    found = compare(source, destination).difference
    assert found is not None
    return found


RECORDS = numbered(10)


@pytest.mark.parametrize(
    ("source", "destination", "undecoded"),
    [
        ([RECORDS[:4], RECORDS[4:]], [RECORDS[:4], RECORDS[4:]], 10),
        ([RECORDS[:4], RECORDS[4:]], [RECORDS], 0),
        ([RECORDS[:4], RECORDS[4:]], [RECORDS[:4], RECORDS[4:6], RECORDS[6:]], 4),
        ([RECORDS[:4], RECORDS[4:6], RECORDS[6:]], [RECORDS[:4], RECORDS[4:]], 4),
    ],
    ids=["verbatim", "merged", "then cut", "then merged"],
)
def test_the_same_records(source: Batches, destination: Batches, undecoded: int) -> None:
    """Only batches that are the same on both sides are compared without decoding."""
    found = compare(side(*source), side(*destination))
    assert (found.records, found.undecoded, found.difference) == (10, undecoded, None)


def test_batches_that_are_compressed_or_none() -> None:
    """Only those that one side has recompressed are decoded."""
    assert compare(side(), side()).difference is None
    found = compare(side(RECORDS, codec=1), side(RECORDS))
    assert (found.records, found.undecoded, found.difference) == (10, 0, None)
    assert compare(side(RECORDS, codec=1), side(RECORDS, codec=1)).undecoded == 10


def test_a_range_that_cuts_batches() -> None:
    """Only the records within the range are compared."""
    whole = batch(RECORDS)
    cut = Side([[FetchedSpan(3, 7, whole, None)]])
    found = compare(cut, side(RECORDS[3:7]))
    assert (found.records, found.difference) == (4, None)
    found_more = differing(Side([[FetchedSpan(0, 7, whole, None)]]), side(RECORDS))
    assert found_more.what == "3 records are at the destination, but not in the source"


def change(**changes: Any) -> list[Record]:
    return [*RECORDS[:5], RECORDS[5]._replace(**changes), *RECORDS[6:]]


ADDED = "1 record is at the destination, but not in the source"
TWO = "2 records are at the destination, but not in the source"
BOTH = "2 records are missing at the destination, and 1 record is there, but not in the source"
REORDERED = "the same records are in another order"
CUT = "the copies end here: {} records are missing"
FIVE = RECORDS[5]._replace
TAMPERED = {
    "dropped": (RECORDS[:5] + RECORDS[6:], "1 record is missing at the destination", 5, 5),
    "two dropped": (RECORDS[:5] + RECORDS[7:], "2 records are missing at the destination", 5, 5),
    "inserted": ([*RECORDS[:5], RECORDS[0]._replace(value=b"new"), *RECORDS[5:]], ADDED, 5, 5),
    "doubled": ([*RECORDS[:5], *RECORDS[4:]], ADDED, 5, 5),
    "in the place of the last ones": ([*RECORDS[:5], *RECORDS[:2], *RECORDS[5:8]], TWO, 5, 5),
    "changed and dropped": ([*RECORDS[:5], FIVE(key=None), *RECORDS[7:]], BOTH, 5, 5),
    "appended": ([*RECORDS, RECORDS[0]], ADDED, None, 10),
    "reordered": ([*RECORDS[:5], RECORDS[6], RECORDS[5], *RECORDS[7:]], REORDERED, 5, 5),
    "truncated": (RECORDS[:5], CUT.format(5), 5, None),
    "emptied": ([], CUT.format(10), 0, None),
    **{
        f"another {field}: {value!r}": (change(**{field: value}), "1 record differs", 5, 5)
        for field, value in (
            *(("value", b"value X"), ("value", None), ("value", b""), ("key", None)),
            *(("timestamp", 1_700_000_000_006), ("headers", [("n", b"6")])),
            *(("headers", [("m", b"5")]), ("headers", [])),
        )
    },
    "all": ([record._replace(value=b"") for record in RECORDS], "10 records differ", 0, 0),
}


@pytest.mark.parametrize("size", [10, 3], ids=["one batch", "small batches"])
@pytest.mark.parametrize(
    ("copies", "what", "at_source", "at_destination"), TAMPERED.values(), ids=TAMPERED
)
def test_the_first_difference(
    copies: list[Record], what: str, at_source: int | None, at_destination: int | None, size: int
) -> None:
    """It names the first record that differs on each side, and what happened to the rest."""
    source = side(*(RECORDS[at : at + size] for at in range(0, 10, size)))
    found = differing(source, side(*(copies[at : at + size] for at in range(0, len(copies), size))))
    assert found.what == what
    assert (found.source and found.source.offset) == at_source
    assert (found.destination and found.destination.offset) == at_destination


def test_changes_that_headers_hide() -> None:
    """A forged CRC, and timestamps that count from the first one in the header."""
    other = change(value=b"valuE 5")
    assert differing(side(RECORDS), side(other))
    corrupt = batch(other)
    damaged = bytearray(corrupt.data)
    damaged[CRC_END - 4 : CRC_END] = batch(RECORDS).first.crc.to_bytes(4, "big")
    (run,) = split(memoryview(bytes(damaged)))
    with pytest.raises(CorruptBatchError):
        compare(side(RECORDS), Side([[span(run)]]))
    later = [record._replace(timestamp=record.timestamp + 1) for record in RECORDS]
    found = differing(side(RECORDS), side(later))
    first_ms = found.source and found.source.timestamp_ms
    assert (found.what, first_ms) == ("10 records differ", 1_700_000_000_000)


@pytest.mark.parametrize("sizes", [(10, 10), (10, 4)], ids=["verbatim", "decoded"])
def test_timestamps_that_the_destination_sets_are_not_compared(sizes: tuple[int, int]) -> None:
    """Everything else is."""
    later = [record._replace(timestamp=record.timestamp + 9) for record in RECORDS]

    def at_destination(records: list[Record]) -> Side:
        parts = [records[at : at + sizes[1]] for at in range(0, 10, sizes[1])]
        return side(*parts, attributes=TIMESTAMP_TYPE_BIT)

    found = compare(side(RECORDS), at_destination(later))
    assert (found.undecoded, found.difference) == (10 if sizes[1] == 10 else 0, None)
    later[7] = later[7]._replace(value=b"other")
    made = differing(side(RECORDS), at_destination(later))
    assert (made.what, made.source and made.source.offset) == ("1 record differs", 7)


def test_append_time_at_the_source_becomes_create_time() -> None:
    """Every copy has the time of its batch at the source."""
    source = side(RECORDS, attributes=TIMESTAMP_TYPE_BIT)
    last = RECORDS[-1].timestamp
    assert compare(source, side([each._replace(timestamp=last) for each in RECORDS])).records == 10
    source = side(RECORDS, attributes=TIMESTAMP_TYPE_BIT)
    assert differing(source, side(RECORDS))


def test_records_of_another_producer_between_the_copies() -> None:
    """They are of another source if that wrote there; otherwise they were added."""
    ours, theirs = [batch(RECORDS[:5], 0, producer=1)], batch(RECORDS[:2], 5, producer=2)
    ours += [batch(RECORDS[5:], 7, producer=1)]
    fetches = [[span(ours[0])], [span(theirs)], [span(ours[1])]]
    assert compare(side(RECORDS), Side(fetches, 1)).records == 10
    assert differing(side(RECORDS), Side(fetches)).what == TWO


FILTERED = {
    "the kept records match": ([RECORDS[1:4], RECORDS[5:9]], 3, ""),
    "all are left out": ([], 10, ""),
    "one more is missing": (
        [RECORDS[1:4], RECORDS[6:9]],
        *(3, "more records are missing at the destination than the ledger says that were left out"),
    ),
    "a changed record": (
        [change(value=b"other")[1:]],
        *(1, "the destination holds a record that the source does not have here"),
    ),
    "fewer were left out": (
        [RECORDS],
        *(2, "the source has 2 records fewer than the ledger says that were left out"),
    ),
}


@pytest.mark.parametrize(("destination", "left_out", "what"), FILTERED.values(), ids=FILTERED)
def test_of_what_a_filter_left_out_only_the_number_is_known(
    destination: Batches, left_out: int, what: str
) -> None:
    """A changed record is shown as it is there; nothing tells which it was at the source."""
    found = compare(side(RECORDS), side(*destination), left_out)
    assert (found.difference.what if found.difference else "") == what
    if found.difference is None:
        assert found.records == 10 - left_out
    elif "holds" in what:
        assert found.difference.destination is not None
        shown = found.difference.destination
        assert (shown.value, shown.offset) == ("other", 4)


class TestExcerpts:
    """Values as text."""

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            pytest.param(b"one", b"two", ("one", "two"), id="text"),
            pytest.param(b"one", None, ("one", "null"), id="null"),
            pytest.param(b"", None, ("", "null"), id="empty"),
            pytest.param("größe".encode(), b"x", ("größe", "x"), id="UTF-8"),
            pytest.param(b"\x00\xff", b"ab", ("00 ff", "61 62"), id="binary"),
            pytest.param(b"a\nb", b"ab", ("61 0a 62", "61 62"), id="control characters"),
        ],
    )
    def test_short_values(
        self, one: bytes | None, other: bytes | None, expected: tuple[str, str]
    ) -> None:
        assert excerpts(one, other) == expected

    def test_long_values_are_cut_around_the_difference(self) -> None:
        one = b"a" * 1000 + b"X" + b"b" * 1000
        other = b"a" * 1000 + b"Y" + b"b" * 1000
        assert excerpts(one, other) == tuple(
            f"…{'a' * 24}{byte}{'b' * 39}… (2,001 bytes, from 976)" for byte in "XY"
        )

    @pytest.mark.parametrize("before", range(4))
    def test_characters_are_not_cut(self, before: int) -> None:
        """Text stays text, wherever in a character it is cut."""
        one, other = (f"{'a' * before}{'€' * 20}{end}{'€' * 20}".encode() for end in "XY")
        first, second = excerpts(one, other)
        assert first.startswith("…€")
        assert "€X€" in first
        assert "€Y€" in second
        assert "€… (" in first

    def test_what_is_cut_of_two_ends(self) -> None:
        """Only what is cut may be left out of bytes that are not UTF-8 at the end."""
        assert excerpts(b"abc\xe2", b"abc") == ("61 62 63 e2", "61 62 63")
        assert excerpts(b"a" * 100, b"a" * 90) == (
            "…" + "a" * 34 + " (100 bytes, from 66)",
            "…" + "a" * 24 + " (90 bytes, from 66)",
        )


AT = TopicPartition("orders", 0)
Pair = tuple[str | None, str | None]
Log = list[list[FetchedSpan]]


def kept(*pairs: Pair, at: int = 0, attributes: int = 0) -> Log:
    """A log of these keys and values, in one batch that begins at an offset."""
    records = []
    for n, pair in enumerate(pairs):
        key, value = (None if text is None else text.encode() for text in pair)
        records.append(Record(n, 1_700_000_000_000, key, value, []))
    return [[span(batch(records, at, attributes=attributes))]] if records else []


SIDES = ("at_source", "at_destination")


def compared(
    source: Log, destination: Log, start: int = 0, end: int = 100, **rules: Any
) -> Comparison:
    """Compare logs of which a range was copied to the same offsets."""
    copied = OffsetRange(AT, start, end)
    at_source, there = (rules.pop(side, True) for side in SIDES)
    policies = CleanupPolicies({"cleanup.policy": "compact" if there else "delete"})
    fields = {"records": 2, "size_bytes": 0, "compacted_at_source": at_source} | rules
    chunk = ComparedChunk(copied, copied, policies=policies, **fields)
    return compare_keys(decoded(source), decoded(destination), chunk)


def differs(source: Log, destination: Log, **rules: Any) -> str:
    found = compared(source, destination, **rules).difference
    return "" if found is None else found.what


ONE_KEY, TWO_KEYS = "the records of 1 key differ", "the records of 2 keys differ"
KEYLESS = "the records without a key differ"
OF_EACH_KEY = {
    "the same": ([("a", "1"), ("b", "2")], [("a", "1"), ("b", "2")], ""),
    "cleaned at the destination": ([("a", "0"), ("a", "1")], [("a", "1")], ""),
    "cleaned at the source": ([("a", "1")], [("a", "0"), ("a", "1")], ""),
    "tombstone cleaned at the destination": ([("a", "1"), ("a", None)], [], ""),
    "tombstone cleaned at the source": ([], [("a", "1"), ("a", None)], ""),
    "before a tombstone": ([("a", "1"), ("a", None)], [("a", None)], ""),
    "another value": ([("a", "1")], [("a", "2")], ONE_KEY),
    "deleted at the destination": ([("a", "1")], [("a", None)], ONE_KEY),
    "deleted at the source": ([("a", None)], [("a", "1")], ONE_KEY),
    "missing": ([("a", "1"), ("b", "1")], [("a", "1")], ONE_KEY),
    "added": ([("a", "1")], [("a", "1"), ("b", "1")], ONE_KEY),
    "another order": ([("a", "1"), ("a", "2")], [("a", "2"), ("a", "1")], ONE_KEY),
    "the tombstone alone is missing": ([("a", "1"), ("a", None)], [("a", "1")], ONE_KEY),
    "an older record is another": ([("a", "0"), ("a", "1")], [("a", "x"), ("a", "1")], ONE_KEY),
    "a gap between two records": ([("a", n) for n in "012"], [("a", "0"), ("a", "2")], ONE_KEY),
    "two keys": ([("a", "1"), ("b", "1")], [("a", "2"), ("b", "2")], TWO_KEYS),
    "empty is no tombstone": ([("a", "")], [("a", None)], ONE_KEY),
    "no keys": ([(None, "1"), (None, "2")], [(None, "1"), (None, "2")], ""),
    "another value without a key": ([(None, n) for n in "12"], [(None, n) for n in "13"], KEYLESS),
    "one without a key is missing": ([(None, "1"), (None, "2")], [(None, "2")], KEYLESS),
    "a null value without a key is no tombstone": ([(None, "1"), (None, None)], [], KEYLESS),
    "without a key cleaned at the source": ([(None, "2")], [(None, "1"), (None, "2")], ""),
}


@pytest.mark.parametrize(
    ("source", "destination", "expected"), OF_EACH_KEY.values(), ids=OF_EACH_KEY
)
def test_the_records_of_each_key(
    source: list[Pair], destination: list[Pair], expected: str
) -> None:
    assert differs(kept(*source), kept(*destination)) == expected


def test_nothing_is_missing_where_the_topic_is_not_compacted() -> None:
    """Only compaction removes a record for a later one of its key."""
    both, last = kept(("a", "0"), ("a", "1")), kept(("a", "1"))
    assert differs(both, last, at_destination=False) == ONE_KEY
    assert differs(last, both, at_source=False) == ONE_KEY
    assert differs(both, last, at_source=False) == differs(last, both, at_destination=False) == ""


def test_what_became_of_the_records() -> None:
    """Each is compared, explained or not verified; the first difference is shown."""
    source = kept(("a", "0"), ("a", "1"), ("b", "2"))
    destination = kept(("a", "1"), ("b", "0"), ("b", "1"), ("b", "2"))
    found = compared(source, destination, records=7)
    assert (found.difference, found.records, found.superseded) == (None, 3, 1)
    assert found.not_verified == {AT_SOURCE: 2, ON_BOTH_SIDES: 2}
    source = kept(("a", "1"), ("b", "1"), ("c", "1"))
    difference = compared(source, kept(("a", "1"), ("b", "2"))).difference
    assert difference is not None
    shown, other = difference.source, difference.destination
    assert shown is not None
    assert other is not None
    assert (shown.key, shown.offset, other.offset) == ("b", 1, 1)
    assert shown.value.startswith("digest ")
    assert shown.value != other.value


def test_what_counts_beside_keys() -> None:
    """Later and earlier records of a key, and timestamps unless the destination sets them."""
    later = kept(("a", "9"), at=50)
    source, without = kept(("a", "1"), ("b", "1")), kept(("b", "1"))
    assert differs([*without, *later], source, end=50) == ""
    assert differs(source, [*without, *later], end=50) == ""
    assert differs([*source, *later], without, end=50) == ONE_KEY
    assert differs(without, [*source, *later], end=50) == ONE_KEY
    assert differs([*without, *later], source) == ONE_KEY
    source = [*kept(("a", "1")), *kept(("b", "1"), at=10)]
    destination = [*kept(("c", "1")), *kept(("b", "1"), at=10)]
    assert differs(source, destination, start=10) == ""
    assert differs(source, destination) == TWO_KEYS
    records = [Record(0, 1_800_000_000_000, b"a", b"1", [])]
    source = kept(("a", "1"))
    assert differs(source, [[span(batch(records))]]) == ONE_KEY
    found = compared(source, [[span(batch(records, attributes=TIMESTAMP_TYPE_BIT))]], records=1)
    assert (found.difference, found.records, found.untimed) == (None, 1, 1)

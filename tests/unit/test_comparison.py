"""Both sides of a chunk, compared as bytes or record by record, up to the first difference."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay_pipelines.audit.comparison import BatchSide, Side, compare, excerpts
from relay_pipelines.errors import CorruptBatchError
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
    return BatchSide(fetches)


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


def test_nothing_on_either_side() -> None:
    assert compare(side(), side()).difference is None


def test_recompressed_records_are_the_same() -> None:
    found = compare(side(RECORDS, codec=1), side(RECORDS))
    assert (found.records, found.undecoded, found.difference) == (10, 0, None)


def test_compressed_batches_need_no_decoding() -> None:
    assert compare(side(RECORDS, codec=1), side(RECORDS, codec=1)).undecoded == 10


def test_a_range_that_cuts_batches() -> None:
    """Only the records within the range are compared."""
    whole = batch(RECORDS)
    cut = BatchSide([[FetchedSpan(3, 7, whole, None)]])
    found = compare(cut, side(RECORDS[3:7]))
    assert (found.records, found.difference) == (4, None)
    found = compare(BatchSide([[FetchedSpan(0, 7, whole, None)]]), side(RECORDS))
    assert found.difference is not None
    assert found.difference.what == "3 records are at the destination, but not in the source"


def change(**changes: object) -> list[Record]:
    """The records with another one in the middle."""
    return [*RECORDS[:5], RECORDS[5]._replace(**changes), *RECORDS[6:]]


TAMPERED = {
    "dropped": (RECORDS[:5] + RECORDS[6:], "1 record is missing at the destination", 5, 5),
    "two dropped": (RECORDS[:5] + RECORDS[7:], "2 records are missing at the destination", 5, 5),
    "inserted": (
        [*RECORDS[:5], RECORDS[0]._replace(value=b"new"), *RECORDS[5:]],
        "1 record is at the destination, but not in the source",
        5,
        5,
    ),
    "doubled": (
        [*RECORDS[:5], *RECORDS[4:]],
        "1 record is at the destination, but not in the source",
        5,
        5,
    ),
    "inserted, in the place of the last ones": (
        [*RECORDS[:5], *RECORDS[:2], *RECORDS[5:8]],
        "2 records are at the destination, but not in the source",
        5,
        5,
    ),
    "changed and dropped": (
        [*RECORDS[:5], RECORDS[5]._replace(key=None), *RECORDS[7:]],
        ("2 records are missing at the destination, and 1 record is there, but not in the source"),
        5,
        5,
    ),
    "appended": (
        [*RECORDS, RECORDS[0]],
        "1 record is at the destination, but not in the source",
        None,
        10,
    ),
    "reordered": (
        [*RECORDS[:5], RECORDS[6], RECORDS[5], *RECORDS[7:]],
        "the same records are in another order",
        5,
        5,
    ),
    "truncated": (RECORDS[:5], "the copies end here: 5 records are missing", 5, None),
    "emptied": ([], "the copies end here: 10 records are missing", 0, None),
    "value": (change(value=b"value X"), "1 record differs", 5, 5),
    "null value": (change(value=None), "1 record differs", 5, 5),
    "empty value": (change(value=b""), "1 record differs", 5, 5),
    "key": (change(key=None), "1 record differs", 5, 5),
    "timestamp": (change(timestamp=1_700_000_000_006), "1 record differs", 5, 5),
    "header": (change(headers=[("n", b"6")]), "1 record differs", 5, 5),
    "header name": (change(headers=[("m", b"5")]), "1 record differs", 5, 5),
    "no headers": (change(headers=[]), "1 record differs", 5, 5),
    "all": (
        [record._replace(value=b"") for record in RECORDS],
        "10 records differ",
        0,
        0,
    ),
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
    found = compare(
        source, side(*(copies[at : at + size] for at in range(0, len(copies), size)))
    ).difference
    assert found is not None
    assert found.what == what
    assert (found.source and found.source.offset) == at_source
    assert (found.destination and found.destination.offset) == at_destination


def test_a_changed_record_with_the_old_crc() -> None:
    """CRC-32C can be forged, so the bytes themselves are compared."""
    other = change(value=b"valuE 5")
    found = compare(side(RECORDS), side(other))
    assert found.difference is not None
    corrupt = batch(other)
    damaged = bytearray(corrupt.data)
    damaged[CRC_END - 4 : CRC_END] = batch(RECORDS).first.crc.to_bytes(4, "big")
    (run,) = split(memoryview(bytes(damaged)))
    with pytest.raises(CorruptBatchError):
        compare(side(RECORDS), BatchSide([[span(run)]]))


def test_batches_that_begin_at_another_time_differ() -> None:
    """Their bytes are the same, because timestamps count from the first one in the header."""
    later = [record._replace(timestamp=record.timestamp + 1) for record in RECORDS]
    found = compare(side(RECORDS), side(later)).difference
    assert found is not None
    assert (found.what, found.source and found.source.timestamp_ms) == (
        "10 records differ",
        1_700_000_000_000,
    )


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
    made = compare(side(RECORDS), at_destination(later)).difference
    assert made is not None
    assert (made.what, made.source and made.source.offset) == ("1 record differs", 7)


def test_append_time_at_the_source_becomes_create_time() -> None:
    """Every copy has the time of its batch at the source."""
    source = side(RECORDS, attributes=TIMESTAMP_TYPE_BIT)
    last = RECORDS[-1].timestamp
    assert compare(source, side([each._replace(timestamp=last) for each in RECORDS])).records == 10
    source = side(RECORDS, attributes=TIMESTAMP_TYPE_BIT)
    assert compare(source, side(RECORDS)).difference is not None


def test_records_of_another_producer_between_the_copies() -> None:
    """They are of another source if that wrote there; otherwise they were added."""
    ours, theirs = [batch(RECORDS[:5], 0, producer=1)], batch(RECORDS[:2], 5, producer=2)
    ours += [batch(RECORDS[5:], 7, producer=1)]
    fetches = [[span(ours[0])], [span(theirs)], [span(ours[1])]]
    assert compare(side(RECORDS), BatchSide(fetches, one_producer=True)).records == 10
    found = compare(side(RECORDS), BatchSide(fetches)).difference
    assert found is not None
    assert found.what == "2 records are at the destination, but not in the source"


class TestFiltered:
    """Of what a filter left out, only the number is known."""

    def test_the_kept_records_match(self) -> None:
        found = compare(side(RECORDS), side(RECORDS[1:4], RECORDS[5:9]), 3)
        assert (found.records, found.left_out, found.difference) == (7, 3, None)

    def test_all_are_left_out(self) -> None:
        found = compare(side(RECORDS), side(), 10)
        assert (found.records, found.left_out, found.difference) == (0, 10, None)

    def test_one_more_is_missing(self) -> None:
        found = compare(side(RECORDS), side(RECORDS[1:4], RECORDS[6:9]), 3).difference
        assert found is not None
        assert found.what == (
            "more records are missing at the destination than the ledger says that were left out"
        )

    def test_a_changed_record(self) -> None:
        """It is shown as it is at the destination; nothing tells which it was at the source."""
        copies = change(value=b"other")[1:]
        found = compare(side(RECORDS), side(copies), 1).difference
        assert found is not None
        assert found.what == "the destination holds a record that the source does not have here"
        assert found.destination is not None
        assert (found.destination.value, found.destination.offset) == ("other", 4)

    def test_fewer_were_left_out(self) -> None:
        found = compare(side(RECORDS), side(RECORDS), 2).difference
        assert found is not None
        assert found.what == (
            "the source has 2 records fewer than the ledger says that were left out"
        )


class TestExcerpts:
    """Values as text."""

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            (b"one", b"two", ("one", "two")),
            (b"one", None, ("one", "null")),
            (b"", None, ("", "null")),
            ("größe".encode(), b"x", ("größe", "x")),
            (b"\x00\xff", b"ab", ("00 ff", "61 62")),
            (b"a\nb", b"ab", ("61 0a 62", "61 62")),
        ],
        ids=["text", "null", "empty", "UTF-8", "binary", "control characters"],
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

    def test_bytes_that_are_not_utf8_at_the_end(self) -> None:
        """Only what is cut may be left out."""
        assert excerpts(b"abc\xe2", b"abc") == ("61 62 63 e2", "61 62 63")

    def test_a_long_value_and_its_beginning(self) -> None:
        assert excerpts(b"a" * 100, b"a" * 90) == (
            "…" + "a" * 34 + " (100 bytes, from 66)",
            "…" + "a" * 24 + " (90 bytes, from 66)",
        )

"""The ledger alone says which node delivered which records, and where that is not certain."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from relay_pipelines.demo.provenance import Share, shares, unexplained
from relay_pipelines.demo.reporter import shares_table
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition

ONE, OTHER = TopicPartition("orders.events", 0), TopicPartition("orders.status", 1)


def entry(
    at: TopicPartition, start: int, end: int, node: str, records: int | None = None
) -> LedgerEntry:
    copied = end - start if records is None else records
    return LedgerEntry(
        mirror="shop",
        source=OffsetRange(at, start, end),
        destination=OffsetRange(at, start, start + copied),
        records=copied,
        size_bytes=1,
        batches=1,
        rewritten=0,
        skipped={"compaction_gap": end - start - copied},
        digest="00000000",
        node=node,
        window="",
        run_id="run",
        committed_at_ms=0,
    )


LEDGER = [
    entry(OTHER, 0, 50, "b", records=20),
    entry(ONE, 10, 30, "a"),
    entry(ONE, 30, 40, "b"),
    entry(ONE, 0, 10, "a"),
    entry(ONE, 40, 41, "a"),
]
FOUND = {ONE: 41, OTHER: 20}


def test_consecutive_offsets_of_a_node_are_one_share_in_any_order_of_the_ledger():
    """A node that delivers again later has another share, as has every topic-partition."""
    assert shares(LEDGER) == [
        Share(OffsetRange(ONE, 0, 30), "a", records=30, chunks=2),
        Share(OffsetRange(ONE, 30, 40), "b", records=10, chunks=1),
        Share(OffsetRange(ONE, 40, 41), "a", records=1, chunks=1),
        Share(OffsetRange(OTHER, 0, 50), "b", records=20, chunks=1),
    ]
    assert shares([]) == []


@pytest.mark.parametrize(
    ("entries", "found", "open_questions"),
    [
        pytest.param(LEDGER, FOUND, [], id="all explained"),
        pytest.param(LEDGER, FOUND | {ONE: 40}, [ONE], id="a record of the ledger is missing"),
        pytest.param(
            LEDGER,
            FOUND | {OTHER: 21},
            [OTHER],
            id="a record is not in the ledger",
        ),
        pytest.param(
            [*LEDGER, entry(ONE, 30, 40, "a")],
            FOUND | {ONE: 51},
            [ONE],
            id="offsets from both nodes",
        ),
        pytest.param(
            [*LEDGER, entry(ONE, 50, 60, "b")], FOUND | {ONE: 51}, [ONE], id="a gap between offsets"
        ),
        pytest.param([entry(ONE, 5, 10, "a")], {ONE: 5}, [ONE], id="the first offsets are missing"),
        pytest.param(LEDGER[1:], FOUND, [OTHER], id="a topic-partition is not in the ledger"),
        pytest.param(LEDGER, {ONE: 41}, [OTHER], id="a topic-partition is missing"),
    ],
)
def test_disagreements_with_the_ledger_are_named(entries, found, open_questions):
    assert unexplained(shares(entries), found) == open_questions


def test_the_table_gives_each_nodes_sum_and_fits_into_80_columns():
    out = io.StringIO()
    many = [entry(TopicPartition("orders.payments", 1), 0, 12_345_678, "upstream-b")]
    Console(file=out, width=80).print(shares_table(shares([*LEDGER, *many])))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["orders.events-0", "a", "0", "30", "30", "2"] in lines
    assert ["b", "30", "40", "10", "1"] in lines
    assert ["orders.status-1", "b", "0", "50", "20", "1"] in lines
    assert lines[-3:] == [
        ["total", "a", "31", "3"],
        ["total", "b", "30", "2"],
        ["total", "upstream-b", "12,345,678", "1"],
    ]
    assert max(map(len, out.getvalue().splitlines())) <= 80

"""The ledger alone says which node delivered which records."""

from __future__ import annotations

import io

from rich.console import Console

from relay_pipelines.demo.proof import Share, shares
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
        reencoded=0,
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


def test_consecutive_offsets_of_a_node_are_one_share_in_any_order_of_the_ledger():
    """A node that delivers again later has another share, as has every topic-partition."""
    assert shares(LEDGER) == [
        Share(OffsetRange(ONE, 0, 30), "a", records=30, chunks=2),
        Share(OffsetRange(ONE, 30, 40), "b", records=10, chunks=1),
        Share(OffsetRange(ONE, 40, 41), "a", records=1, chunks=1),
        Share(OffsetRange(OTHER, 0, 50), "b", records=20, chunks=1),
    ]
    assert shares([]) == []


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

"""The demo: its proof can fail, its tables fit, and it touches nothing of the user's."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from relay_pipelines.demo import proof
from relay_pipelines.demo.dagster import RelayProcess, variables_for
from relay_pipelines.demo.moving import Written, problems
from relay_pipelines.demo.reporter import comparison_table, shares_table
from relay_pipelines.demo.shop import PARTITIONS, TRACE_ID, Event, Shop
from relay_pipelines.errors import RelayError
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from tests.support.tables import titled

AT = TopicPartition("orders.events", 0)
CLEAN = {"lost": 0, "duplicates": 0, "foreign": 0, "changed": 0}


def content(*records: tuple[bytes, bytes]) -> proof.Content:
    return [proof.Record(offset, *record) for offset, record in enumerate(records)]


A, B, C, D = ((name, b"content of " + name) for name in (b"a", b"b", b"c", b"d"))
CHANGED_B = (b"b", b"another content")


def differences(comparison: proof.Comparison) -> dict[str, int]:
    return {name: getattr(comparison, name) for name in CLEAN}


DIFFERENCES = [
    ("a lost record", [A, C], {"lost": 1}),
    ("a doubled record", [A, B, B, C], {"duplicates": 1}),
    ("everything twice", [A, B, C, A, B, C], {"duplicates": 3}),
    ("a changed record", [A, CHANGED_B, C], {"changed": 1}),
    ("a loss and a duplicate do not cancel out", [A, B, B], {"lost": 1, "duplicates": 1}),
    ("a record from elsewhere", [A, B, C, D], {"foreign": 1}),
    ("nothing arrived", [], {"lost": 3}),
    ("another order shows only in the digests", [A, C, B], {}),
]


@titled("destination, found", DIFFERENCES)
def test_what_differs_is_counted(destination, found):
    comparison = proof.compare(AT, content(A, B, C), content(*destination))
    assert differences(comparison) == CLEAN | found
    assert not comparison.same_order
    assert not comparison.equal


def test_sides_are_compared_by_records():
    """The table names the difference, and fits into 80 columns."""
    sides = {AT: content(A, B)}, {AT: content(A, A)}
    row = ["orders.events-0", "2", "2", "1", "1", "0", "DIFFER"]
    assert row in table(comparison_table(proof.compare_all(*sides)))
    source = [proof.Record(0, *A), proof.Record(7, *B), proof.Record(9, *C)]
    comparison = proof.compare(AT, source, content(A, B, C))
    assert comparison.equal
    assert differences(comparison) == CLEAN
    assert [found.lost for found in proof.compare_all({AT: content(A, B)}, {})] == [2]
    assert [found.foreign for found in proof.compare_all({}, {AT: content(A, B)})] == [2]
    # upstreams are identical only with equal offsets
    assert content(A, B) == content(A, B)
    assert content(A, B) != [proof.Record(0, *A), proof.Record(2, *B)]


def shop(count: int = 5_000) -> list[Event]:
    return list(Shop(events=count).history(count, until_ms=1_800_000_000_000))


def test_the_shop_shows_what_a_mirror_must_keep():
    """Null keys, tombstones, every topic-partition; keys where it is compacted; the same twice."""
    events = shop()
    assert events == shop()
    assert len({dict(event.headers)[TRACE_ID] for event in events}) == len(events)
    assert {(event.topic, event.partition) for event in events} == {
        (topic, partition) for topic, count in PARTITIONS.items() for partition in range(count)
    }
    assert any(event.key is None for event in events)
    assert any(event.value is None for event in events)
    assert all(event.key for event in events if event.topic == "orders.status")
    sizes = [len(event.value or b"") for event in events if event.topic == "orders.events"]
    assert 200 < min(sizes) < 450
    assert 700 < max(sizes) < 1000


ONE, OTHER = TopicPartition("orders.events", 0), TopicPartition("orders.status", 1)


def entry(
    at: TopicPartition, start: int, end: int, upstream: str, records: int | None = None
) -> LedgerEntry:
    copied = end - start if records is None else records
    here, there = OffsetRange(at, start, end), OffsetRange(at, start, start + copied)
    gap = {"compaction_gap": end - start - copied}
    return LedgerEntry("shop", here, there, copied, 1, 1, 0, gap, "", 7, upstream, "", "run", 0)


CHUNKS = (10, 30, "a"), (30, 40, "b"), (0, 10, "a"), (40, 41, "a")
LEDGER = [entry(OTHER, 0, 50, "b", records=20), *(entry(ONE, *each) for each in CHUNKS)]


def table(made: Table) -> list[list[str]]:
    """Return the words of each line of a table, which must fit into 80 columns."""
    out = io.StringIO()
    Console(file=out, width=80).print(made)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    return [line.split() for line in lines]


def test_consecutive_offsets_of_an_upstream_are_one_share_in_any_order_of_the_ledger():
    """An upstream that delivers again later has another share; the table gives each one's sum."""
    assert proof.shares(LEDGER) == [
        proof.Share(OffsetRange(ONE, 0, 30), "a", records=30, chunks=2),
        proof.Share(OffsetRange(ONE, 30, 40), "b", records=10, chunks=1),
        proof.Share(OffsetRange(ONE, 40, 41), "a", records=1, chunks=1),
        proof.Share(OffsetRange(OTHER, 0, 50), "b", records=20, chunks=1),
    ]
    assert proof.shares([]) == []
    many = [entry(TopicPartition("orders.payments", 1), 0, 12_345_678, "upstream-b")]
    lines = table(shares_table(proof.shares([*LEDGER, *many])))
    assert ["orders.events-0", "a", "0", "30", "30", "2"] in lines
    assert ["b", "30", "40", "10", "1"] in lines
    assert ["orders.status-1", "b", "0", "50", "20", "1"] in lines
    totals = "a 31 3", "b 30 2", "upstream-b 12,345,678 1"
    assert lines[-3:] == [["total", *of_upstream.split()] for of_upstream in totals]


A0, B1, A2 = Written("a", 0), Written("b", 1), Written("a", 2)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ([A0, B1, A2], []),
        ([B1, A0, A2], []),
        ([A0, A2], ["was not read"]),
        ([A0, B1, A2, B1], ["was read 2 times"]),
        ([A2, A0, B1], ["a: 0 was read after 2"]),
    ],
)
def test_each_record_once_and_in_order_per_key(read: list[Written], found: list[str]) -> None:
    said = problems([A0, B1, A2], read)
    assert len(said) == len(found)
    assert all(text in line for text, line in zip(found, said, strict=True))


def test_the_demo_uses_its_own_relay_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the user's own one is in the environment, as in the image: it would be copied."""
    for name in ("DAGSTER_HOME", "RELAY_CATALOG", "RELAY_CONFIG", "RELAY_CONFIG_YAML"):
        monkeypatch.setenv(name, "mirrors: {of-the-user: 5}")
    (tmp_path / "relay.yaml").write_text("mirrors: {of-the-demo: 5}")
    process = RelayProcess(tmp_path, ["plan"], "log", 300)
    try:
        with pytest.raises(RelayError, match=r"relay.yaml:1: mirrors.of-the-demo: expected a mapp"):
            process.check()
    finally:
        process.close()
    assert "of-the-user" not in "".join(variables_for(tmp_path).values())

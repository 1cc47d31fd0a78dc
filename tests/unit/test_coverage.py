"""What an audit looks at, and coverage by the ledger: what became of every source offset."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from relay_pipelines.audit.coverage import (
    OffsetKind,
    Stretch,
    binned,
    coverage,
    last_history,
    select,
)
from relay_pipelines.audit.request import Selection
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from tests.support.audited import AT, CHUNKS, TO, entry, wanted


def test_a_complete_range_has_no_problems() -> None:
    """Every chunk is a stretch with the counts of its offsets by kind, in any order of entries.

    One that a range cuts is shown whole: it says how many offsets it skipped, not which.
    """
    found = coverage(wanted(0, 40), CHUNKS, 40)
    assert found.stretches == (
        Stretch(0, 10, {"copied": 10}),
        Stretch(10, 30, {"copied": 15, "filtered": 5}),
        Stretch(30, 40, {"aborted": 9, "control": 1}),
    )
    assert found.counts == {"copied": 25, "filtered": 5, "aborted": 9, "control": 1}
    assert found.problems == []
    backwards = coverage(wanted(0, 40), CHUNKS[::-1], 40)
    assert replace(backwards, entries=found.entries) == found
    found = coverage(wanted(15, 35), CHUNKS, 40)
    assert [(each.start, each.end) for each in found.stretches] == [(10, 30), (30, 40)]
    assert found.problems == []


REMOVED = {
    "first": ([1, 2], "10 source offsets are in no ledger entry: [0, 10)"),
    "middle": ([0, 2], "20 source offsets are in no ledger entry: [10, 30)"),
    "last": ([0, 1], "10 source offsets are in no ledger entry: [30, 40)"),
    "all": ([], "40 source offsets are in no ledger entry: [0, 40)"),
}


@pytest.mark.parametrize(("left", "line"), REMOVED.values(), ids=REMOVED)
def test_a_removed_entry_is_missing(left: list[int], line: str) -> None:
    """The checkpoint shows that the last one was there."""
    assert coverage(wanted(0, 40), [CHUNKS[number] for number in left], 40).problems == [line]


def test_missing_offsets_that_are_explained() -> None:
    """They are no problem any more, but are still counted; those after the reason are missing."""
    missing = coverage(wanted(0, 40), CHUNKS[2:], 40)
    found = missing.explained(OffsetKind.FORGOTTEN, before=12)
    assert (found.counts[OffsetKind.FORGOTTEN], found.counts[OffsetKind.MISSING]) == (12, 18)
    assert found.problems == ["18 source offsets are in no ledger entry: [12, 30)"]
    found = missing.explained(OffsetKind.SUPERSEDED)
    assert (found.counts[OffsetKind.SUPERSEDED], found.problems) == (30, [])
    assert missing.explained(OffsetKind.FORGOTTEN, before=0) == missing
    found = missing.explained(OffsetKind.SUPERSEDED, since=25)
    assert found.counts[OffsetKind.SUPERSEDED] == 5
    assert found.problems == ["25 source offsets are in no ledger entry: [0, 25)"]
    assert missing.explained(OffsetKind.SUPERSEDED, since=30) == missing


def test_offsets_after_the_checkpoint_are_not_yet_copied() -> None:
    """They are no problem, beside what is missing before it."""
    found = coverage(wanted(0, 100), CHUNKS, 40)
    assert found.stretches[-1] == Stretch(40, 100, {"not_yet": 60})
    assert found.problems == []
    found = coverage(wanted(0, 100), CHUNKS[:2], 40)
    missing, not_yet = Stretch(30, 40, {"missing": 10}), Stretch(40, 100, {"not_yet": 60})
    assert found.stretches[-2:] == (missing, not_yet)
    assert found.missing == [wanted(30, 40)]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (entry(10, 30, 60), "20 source offsets are in several ledger entries: [10, 30)"),
        (entry(25, 35, 60), "10 source offsets are in several ledger entries: [25, 30), [30, 35)"),
        (entry(12, 14, 60), "2 source offsets are in several ledger entries: [12, 14)"),
    ],
    ids=["the same", "across two", "within one"],
)
def test_offsets_in_two_entries_are_doubled(more: LedgerEntry, line: str) -> None:
    assert line in coverage(wanted(0, 40), [*CHUNKS, more], 40).problems


@pytest.mark.parametrize(
    "changed",
    [
        replace(CHUNKS[1], records=14),
        replace(CHUNKS[1], records=14, skipped={"filtered": 6}, destination=OffsetRange(TO, 9, 9)),
        replace(CHUNKS[1], destination=OffsetRange(TO, 10, 20)),
    ],
    ids=["fewer records", "no copies", "fewer offsets of copies"],
)
def test_an_entry_whose_counts_do_not_add_up(changed: LedgerEntry) -> None:
    found = coverage(wanted(0, 40), [CHUNKS[0], changed, CHUNKS[2]], 40)
    assert "20 source offsets are in entries whose counts do not add up: [10, 30)" in found.problems


def test_copies_out_of_order_and_losses() -> None:
    """Those of a later chunk lie after those before; an accepted loss is told, and no problem."""
    found = coverage(wanted(0, 20), [entry(0, 10, 50), entry(10, 20, 55)], 20)
    assert found.problems == [
        "10 source offsets are in entries whose copies are out of order: [10, 20)"
    ]
    lost = replace(entry(40, 50, 40, lost=10), gap="retention took them")
    found = coverage(wanted(0, 60), [*CHUNKS, lost, entry(50, 60, 50)], 60)
    assert (found.problems, found.gaps, found.counts["lost"]) == ([], ["retention took them"], 10)


def test_only_the_last_history_counts() -> None:
    """A picture of many chunks has few stretches, and loses no offset."""
    again = replace(entry(0, 0), gap="the topic was created again")
    history = last_history([*CHUNKS, again, entry(0, 5, 90)])
    assert history == [again, entry(0, 5, 90)]
    assert coverage(wanted(0, 5), history, 5).problems == []
    chunks = [entry(start, start + 2, filtered=1) for start in range(0, 20_000, 2)]
    found = coverage(wanted(0, 20_000), chunks, 20_000)
    joined = binned(found.stretches, 100)
    assert 50 <= len(joined) <= 101
    assert sum(each.counts["copied"] for each in joined) == 10_000
    assert (joined[0].start, joined[-1].end) == (0, 20_000)
    assert binned(found.stretches[:3], 100) == list(found.stretches[:3])


OTHER = TopicPartition("orders", 1)


def at_time(made: LedgerEntry, committed_at_ms: int, window: str = "") -> LedgerEntry:
    return replace(made, committed_at_ms=committed_at_ms, window=window)


def of_other(made: LedgerEntry) -> LedgerEntry:
    return replace(made, source=replace(made.source, topic_partition=OTHER))


LEDGER = [
    at_time(entry(5, 10), 100, "w1"),
    at_time(of_other(entry(0, 4)), 150, "w1"),
    at_time(entry(10, 20), 200, "w2"),
    at_time(entry(20, 30), 300, "w3"),
]
CHECKPOINTS = {AT: 30, OTHER: 4}


def ranges(
    selection: Selection,
    ledger: list[LedgerEntry] = LEDGER,
    checkpoints: Mapping[TopicPartition, int] = CHECKPOINTS,
) -> list[str]:
    return [str(each.range) for each in select(selection, ledger, checkpoints)]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), ["orders-0[5, 30)", "orders-1[0, 4)"]),
        (Selection(("orders",)), ["orders-0[5, 30)", "orders-1[0, 4)"]),
        (Selection(("orders",), 1), ["orders-1[0, 4)"]),
        (Selection(window="w2"), ["orders-0[10, 20)"]),
        (Selection(window="w1"), ["orders-0[5, 10)", "orders-1[0, 4)"]),
        (Selection(("orders",), 0, offsets=(7, 25)), ["orders-0[7, 25)"]),
        (Selection(("orders",), 0, offsets=(7, None)), ["orders-0[7, 30)"]),
        (Selection(("orders",), 0, offsets=(None, 99)), ["orders-0[5, 99)"]),
        (Selection(since_ms=200), ["orders-0[10, 30)"]),
        (Selection(until_ms=200), ["orders-0[5, 10)", "orders-1[0, 4)"]),
        (Selection(since_ms=150, until_ms=300), ["orders-0[10, 20)", "orders-1[0, 4)"]),
    ],
    ids=str,
)
def test_the_ranges_of_a_selection(selection: Selection, expected: list[str]) -> None:
    assert ranges(selection) == expected


def test_how_far_a_selection_reaches() -> None:
    """To the checkpoint, so that entries removed at the end are noticed; a window to its own end.

    Without a checkpoint, the ledger alone says how far the copy came.
    """
    (found, _) = select(Selection(), LEDGER[:-1], CHECKPOINTS)
    assert (str(found.range), found.copied_to) == ("orders-0[5, 30)", 30)
    (found,) = select(Selection(window="w2"), LEDGER, CHECKPOINTS)
    assert found.copied_to == 20
    assert ranges(Selection(("orders",), 0), checkpoints={}) == ["orders-0[5, 30)"]
    # offsets of an earlier history are not audited; an empty ledger has nothing
    again = replace(entry(0, 0), gap="the topic was created again")
    assert ranges(Selection(), [*LEDGER[:1], again, entry(0, 3)], {AT: 3}) == ["orders-0[0, 3)"]
    with pytest.raises(ConfigError, match="no copies in what is to be audited"):
        ranges(Selection(), [], {})


NO_ENTRIES = "the ledger has no entries of "
BEFORE = (
    "the ledger has no entry of orders-0 before offset 5: either the mirror began there, or the"
    " ledger no longer has older ones; audit from offset 5 on"
)
BEHIND = (
    "orders-0 is copied up to offset 30, and the range begins at 30; name offsets that are copied;"
    " see `relay status`"
)
NO_COPIES = "the ledger has no copies in what is to be audited; see `relay ledger` for what it has"


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(("order",)), f"{NO_ENTRIES}the source topic 'order'; did you mean 'orders'?"),
        (Selection(("orders",), 7), f"{NO_ENTRIES}orders-7; it has the partitions 0, 1"),
        (Selection(window="w33"), f"{NO_ENTRIES}the window 'w33'; did you mean 'w3'?"),
        (Selection(("orders",), 0, offsets=(2, None)), BEFORE),
        (Selection(("orders",), 0, offsets=(30, None)), BEHIND),
        (Selection(since_ms=301), NO_COPIES),
    ],
    ids=str,
)
def test_what_the_ledger_does_not_have(selection: Selection, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ranges(selection)
    assert str(caught.value) == message

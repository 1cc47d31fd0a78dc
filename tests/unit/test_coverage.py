"""Coverage by the ledger: every source offset once, and what became of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay_pipelines.audit.coverage import OffsetKind, Stretch, binned, coverage, last_history
from relay_pipelines.model import LedgerEntry, OffsetRange
from tests.support.audited import CHUNKS, TO, entry, wanted


def test_a_complete_range_has_no_problems() -> None:
    """Every chunk is a stretch with the counts of its offsets by kind."""
    found = coverage(wanted(0, 40), CHUNKS, 40)
    assert found.stretches == (
        Stretch(0, 10, {"copied": 10}),
        Stretch(10, 30, {"copied": 15, "filtered": 5}),
        Stretch(30, 40, {"aborted": 9, "control": 1}),
    )
    assert found.counts == {"copied": 25, "filtered": 5, "aborted": 9, "control": 1}
    assert found.problems == []


def test_entries_may_come_in_any_order() -> None:
    assert coverage(wanted(0, 40), CHUNKS[::-1], 40) == coverage(wanted(0, 40), CHUNKS, 40)


def test_a_range_that_cuts_chunks_shows_them_whole() -> None:
    """A chunk says how many offsets it skipped, not which, so it cannot be cut."""
    found = coverage(wanted(15, 35), CHUNKS, 40)
    assert [(each.start, each.end) for each in found.stretches] == [(10, 30), (30, 40)]
    assert found.problems == []


@pytest.mark.parametrize(
    ("removed", "line"),
    [
        (0, "10 source offsets are in no ledger entry: [0, 10)"),
        (1, "20 source offsets are in no ledger entry: [10, 30)"),
        (2, "10 source offsets are in no ledger entry: [30, 40)"),
    ],
    ids=["first", "middle", "last"],
)
def test_a_removed_entry_is_missing(removed: int, line: str) -> None:
    """The checkpoint shows that the last one was there."""
    left = [each for number, each in enumerate(CHUNKS) if number != removed]
    assert coverage(wanted(0, 40), left, 40).problems == [line]


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


def test_all_entries_removed() -> None:
    assert coverage(wanted(0, 40), [], 40).problems == [
        "40 source offsets are in no ledger entry: [0, 40)"
    ]


def test_offsets_after_the_checkpoint_are_not_yet_copied() -> None:
    """They are no problem."""
    found = coverage(wanted(0, 100), CHUNKS, 40)
    assert found.stretches[-1] == Stretch(40, 100, {"not_yet": 60})
    assert found.problems == []


def test_what_is_missing_before_the_checkpoint_and_not_yet_after_it() -> None:
    found = coverage(wanted(0, 100), CHUNKS[:2], 40)
    assert found.stretches[-2:] == (
        Stretch(30, 40, {"missing": 10}),
        Stretch(40, 100, {"not_yet": 60}),
    )
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


def test_copies_out_of_order() -> None:
    """The copies of a later chunk lie after those of the chunk before it."""
    found = coverage(wanted(0, 20), [entry(0, 10, 50), entry(10, 20, 55)], 20)
    assert found.problems == [
        "10 source offsets are in entries whose copies are out of order: [10, 20)"
    ]


def test_an_accepted_loss_is_told_and_no_problem() -> None:
    lost = replace(entry(40, 50, 40, lost=10), gap="retention took them")
    found = coverage(wanted(0, 60), [*CHUNKS, lost, entry(50, 60, 50)], 60)
    assert (found.problems, found.gaps, found.counts["lost"]) == ([], ("retention took them",), 10)


def test_only_the_last_history_counts() -> None:
    """After a loss without offsets, the same offsets are other records."""
    again = replace(entry(0, 0), gap="the topic was created again")
    history = last_history([*CHUNKS, again, entry(0, 5, 90)])
    assert history == [again, entry(0, 5, 90)]
    assert coverage(wanted(0, 5), history, 5).problems == []


def test_a_picture_of_many_chunks_has_few_stretches() -> None:
    """Neighbours are joined, and no offset is lost."""
    chunks = [entry(start, start + 2, filtered=1) for start in range(0, 20_000, 2)]
    found = coverage(wanted(0, 20_000), chunks, 20_000)
    joined = binned(found.stretches, 100)
    assert 50 <= len(joined) <= 101
    assert sum(each.counts["copied"] for each in joined) == 10_000
    assert (joined[0].start, joined[-1].end) == (0, 20_000)
    assert binned(found.stretches[:3], 100) == list(found.stretches[:3])

"""What an audit looks at: topic, window, offsets, dates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from relay_pipelines.audit.coverage import select
from relay_pipelines.audit.request import Selection
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import LedgerEntry, TopicPartition
from tests.support.audited import AT, entry

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
        (Selection(windows=("w2",)), ["orders-0[10, 20)"]),
        (Selection(windows=("w1",)), ["orders-0[5, 10)", "orders-1[0, 4)"]),
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


def test_it_reaches_the_checkpoint() -> None:
    """So that entries removed at the end are noticed."""
    (found, _) = select(Selection(), LEDGER[:-1], CHECKPOINTS)
    assert (str(found.range), found.copied_to) == ("orders-0[5, 30)", 30)


def test_a_window_does_not_reach_the_checkpoint() -> None:
    (found,) = select(Selection(windows=("w2",)), LEDGER, CHECKPOINTS)
    assert found.copied_to == 20


def test_a_lost_checkpoint() -> None:
    """Then the ledger alone says how far the copy came."""
    assert ranges(Selection(("orders",), 0), checkpoints={}) == ["orders-0[5, 30)"]


def test_offsets_of_an_earlier_history_are_not_audited() -> None:
    again = replace(entry(0, 0), gap="the topic was created again")
    assert ranges(Selection(), [*LEDGER[:1], again, entry(0, 3)], {AT: 3}) == ["orders-0[0, 3)"]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (
            Selection(("order",)),
            "the ledger has no entries of the source topic 'order'; did you mean 'orders'?",
        ),
        (
            Selection(("orders",), 7),
            "the ledger has no entries of orders-7; it has the partitions 0, 1",
        ),
        (
            Selection(windows=("w33",)),
            "the ledger has no entries of the window 'w33'; did you mean 'w3'?",
        ),
        (
            Selection(("orders",), 0, offsets=(2, None)),
            (
                "the ledger has no entry of orders-0 before offset 5: either the mirror began"
                " there, or the ledger no longer has older ones; audit from offset 5 on"
            ),
        ),
        (
            Selection(("orders",), 0, offsets=(30, None)),
            (
                "orders-0 is copied up to offset 30, and the range begins at 30; name offsets that"
                " are copied; see `relay status`"
            ),
        ),
        (
            Selection(since_ms=301),
            "the ledger has no copies in what is to be audited; see `relay ledger` for what it has",
        ),
    ],
    ids=str,
)
def test_what_the_ledger_does_not_have(selection: Selection, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ranges(selection)
    assert str(caught.value) == message


def test_an_empty_ledger() -> None:
    with pytest.raises(ConfigError, match="no copies in what is to be audited"):
        ranges(Selection(), [], {})

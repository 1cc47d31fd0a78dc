"""Copies link their ledger entries whatever was there before: nothing, or a gap."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.records import encode
from tests.copying import copy_as_it_is
from tests.support.copies_in_memory import (
    AT,
    Clock,
    copy,
    destination,
    filled,
    job,
    served,
    whole,
)
from tests.support.fake_cluster import put
from tests.support.filled import chains


def test_the_head_outlives_the_ledger() -> None:
    """If retention has taken every entry, the next one still names the last of them."""
    source, copies = filled((0, 5), (5, 10), (10, 15)), destination("a")
    copy(copies, source, 10)
    before = chains(copies)[AT].records[-1]
    copies.logs[ledger_topic.TOPIC].entries.clear()
    copy(copies, source, 15)
    (entry,) = [record.entry for record in chains(copies)[AT].records]
    assert (entry.number, entry.previous) == (3, before.head.hash)


@pytest.mark.parametrize("point", [Failpoint.BEFORE_END_TXN, Failpoint.AFTER_END_TXN])
def test_an_attempt_fails_around_its_commit(point: Failpoint) -> None:
    """An aborted entry is in no chain; a committed one is, although the task never heard of it."""
    source, copies, failed = filled((0, 5), (5, 10), (10, 15)), destination("a"), []

    def failpoint(reached: Failpoint) -> None:
        if reached is point and len(failed) < 2:
            failed.append(point)
            raise DestinationError("the connection was lost")

    with patch.object(transaction, "failpoint", failpoint):
        copy(copies, source, 15)
    chain = chains(copies)[AT]
    assert len(failed) == 2
    assert (chain.breaks, len(chain.records)) == ([], 3)


def test_ranges_of_one_transaction_have_chains_of_their_own() -> None:
    """Their entries stand beside each other in the ledger."""
    source, copies = filled((0, 5), topics="abc"), destination("a", "b", "c")
    ranges = [replace(whole(topic, 5), owner="relay.m./1") for topic in "abc"]
    with served(source=source, destination=copies):
        for topic in "abc":
            owner = checkpoint.OwnerRecord("m", TopicPartition(topic, 0), "relay.m./1", 0)
            put(copies, checkpoint.TOPIC, encode(*checkpoint.owner_record(owner)))
        outcomes = copy_as_it_is(job(), ranges, Clock())
    assert [outcome.error for outcome in outcomes] == ["", "", ""]
    found = chains(copies)
    assert [chain.breaks for chain in found.values()] == [[], [], []]
    assert [chain.records[0].entry.previous for chain in found.values()] == ["start"] * 3

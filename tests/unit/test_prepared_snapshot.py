"""What is written before a copy, and when nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from relay_pipelines.errors import WrongClusterError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.plan.positions import OnDataLoss, Position
from relay_pipelines.prepare import owners
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.support.copies_in_memory import AT, DESTINATION, OPTIONS, destination, served
from tests.support.run_plans import snapshot_of


def test_nothing_is_written_while_another_deployment_copies() -> None:
    """It looks once, and accepts no loss: whoever copies may hold it back."""
    nobody: dict[str, Any] = {"bootstrap_servers": ["127.0.0.1:1"]}
    mirror = Mirror.model_validate(
        {
            "source": {"nodes": [{"name": "n", **nobody}]},
            "destination": nobody,
            "on_data_loss": OnDataLoss.CONTINUE,
        }
    )
    lost = Position(TopicPartition("a", 0), low_watermark=3, end_offset=5, next_offset=1)
    looks: Iterator[ClusterSnapshot] = iter([snapshot_of("m", "n", {"a": "a"}, [lost])])
    found = prepare_snapshot(
        lambda: next(looks), mirror, SystemClock(), waits=lambda snapshot: bool(snapshot.lost)
    )
    assert found.lost == [lost]
    assert not found.accepted


@pytest.mark.parametrize("what", ["a doubt", "a quarantine"])
def test_what_a_run_notes_goes_to_the_cluster_that_it_has_read(what: str) -> None:
    """An address may lead elsewhere by then: nothing is said to another cluster."""
    copies, clock = destination("a"), SystemClock()
    there = replace(DESTINATION, id="the one that was read")
    snapshot = replace(snapshot_of("m", "n", {"a": "a"}, []), destination=there)
    known = Checkpoint.initial("m", AT, AT, 7)
    note = {
        "a doubt": partial(owners.note_doubts, snapshot, [known]),
        "a quarantine": partial(owners.set_quarantine, "m", there, {"n": "other records"}),
    }[what]
    with served(destination=copies), pytest.raises(WrongClusterError):
        note(OPTIONS, clock)
    assert not copies.logs[checkpoint.TOPIC].entries
    assert not copies.ids

"""Accepted losses are links of the chain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines.ledger.chain import Chain
from relay_pipelines.model import Checkpoint
from relay_pipelines.plan.owners import own_id
from relay_pipelines.plan.positions import Position
from relay_pipelines.prepare import prepared_snapshot
from tests.support.copies_in_memory import AT, DESTINATION, Clock, checkpoints_of
from tests.support.filled import chains
from tests.support.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.copy(10)
    return made


def accept(world: World, position: Position, known: Sequence[Checkpoint] = ()) -> str:
    """Accept a loss as a driver does, and return what was lost."""
    snapshot: Any = SimpleNamespace(
        mirror="m", node=SimpleNamespace(name="source"), destination=DESTINATION,
        positions=[position], lost=[position], checkpoints={one.source: one for one in known},
        checkpoint_ends={}, owners={}, destinations={"a": "a"}, destination_topics={},
        owner_of=lambda at: own_id("m", at),
    )  # fmt: skip
    with world.answering(), patch.object(prepared_snapshot.topics, "create_state_topics"):
        (lost,) = prepared_snapshot.accept_losses(snapshot, world.mirror, Clock())
    return lost.what


def chain_of(world: World) -> Chain:
    return chains(world.copies)[AT]


def test_an_accepted_loss_is_a_link(world: World) -> None:
    """The chain goes on after it."""
    known = checkpoints_of(world.copies)[-1:]
    what = accept(world, Position(AT, 15, 20, next_offset=10), known)
    assert what == "retention took the offsets [10, 15) before they were copied"
    world.copy(20)
    chain = chain_of(world)
    assert (chain.breaks, len(chain.records)) == ([], 4)
    assert [record.entry.gap for record in chain.records] == ["", "", what, ""]

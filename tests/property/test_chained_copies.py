"""Copies link their ledger entries whatever was there before: nothing, a gap, or a loss."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.plan.positions import Position
from relay_pipelines.prepare import prepared_snapshot, topics
from relay_pipelines.protocol.records import encode
from relay_pipelines.sides import Sides
from tests.copying import copy_as_it_is
from tests.support import copies_in_memory as memory
from tests.support.copies_in_memory import checkpoints_of, copy, destination, filled, record, whole
from tests.support.fake_cluster import FakeCluster, put, served
from tests.support.filled import Clock, chains
from tests.support.planned_copy import at_destination
from tests.support.run_plans import snapshot_of
from tests.support.tables import titled
from tests.support.world import World


def test_the_head_outlives_the_ledger() -> None:
    """If retention has taken every entry, the next one still names the last of them."""
    source, copies = filled((0, 5), (5, 10), (10, 15)), destination("a")
    copy(copies, source, 10)
    before = chains(copies)[memory.AT].records[-1]
    copies.logs[ledger_topic.TOPIC].entries.clear()
    copy(copies, source, 15)
    (entry,) = [record.entry for record in chains(copies)[memory.AT].records]
    assert (entry.number, entry.previous) == (3, before.head.hash)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.copy(10)
    return made


def accept(world: World, position: Position, known: Sequence[Checkpoint] = ()) -> str:
    """Accept a loss as a driver does, and return what was lost."""
    checkpoints = {one.source: one for one in known}
    sides = Sides("m", world.mirror, Clock())
    snapshot = snapshot_of(
        "m", "source", {"a": "a"}, [position], checkpoints=checkpoints, sides=sides
    )
    with world.answering(), patch.object(topics, "create_state_topics"):
        (accepted,) = at_destination(snapshot, prepared_snapshot.accept_losses)
    return accepted.what


def chain_of(world: World) -> Chain:
    return chains(world.copies)[memory.AT]


def test_an_accepted_loss_is_a_link(world: World) -> None:
    """The chain goes on after it."""
    known = checkpoints_of(world.copies)[-1:]
    what = accept(world, Position(memory.AT, 15, 20, next_offset=10), known)
    assert what == "retention took the offsets [10, 15) before they were copied"
    world.copy(20)
    chain = chain_of(world)
    assert (chain.breaks, len(chain.records)) == ([], 4)
    assert [record.entry.gap for record in chain.records] == ["", "", what, ""]


def put_back(copies: FakeCluster) -> None:
    older = copies.logs[checkpoint.TOPIC].committed()[0]
    put(copies, checkpoint.TOPIC, encode(older.key, older.value, 0))


def moved(copies: FakeCluster) -> None:
    known = checkpoints_of(copies)[-1]
    later = replace(known, generation=known.generation + 1)
    put(copies, checkpoint.TOPIC, encode(*checkpoint.to_record(later)[:2], 0))


def of_another(copies: FakeCluster) -> None:
    known = checkpoints_of(copies)[-1]
    head = replace(known.ledger_head, number=known.ledger_head.number + 1)
    later = replace(known, next_offset=8, ledger_head=head, fingerprint=None)
    other = replace(later, source=TopicPartition("b", 0))
    put(copies, checkpoint.TOPIC, encode(b"m/a/0", checkpoint.to_record(other)[1], 0))


def created_again(copies: FakeCluster) -> None:
    copies.create("a")
    copies.topic_ids["a"] = uuid.UUID(int=2)
    put(copies, "a", memory.batch(*map(record, range(20))))  # its end is no sign


def created_again_by_an_old_broker(copies: FakeCluster) -> None:
    copies.topic_ids.clear()
    copies.create("a")


@titled(
    "happens, said",
    [
        ("an older one was put back", put_back, "the checkpoint is gone, which said offset 6"),
        ("a reset has moved it", moved, "a loss was accepted, or the topic reset"),
        ("it is of another topic", of_another, "the record 'm/a/0' of __relay_checkpoints is no"),
        ("its copies are gone, by the topic's id", created_again, "and created again"),
        ("and by where the records land", created_again_by_an_old_broker, "and created again"),
    ],
)
def test_what_a_task_does_not_go_on_from(happens: Callable[[FakeCluster], None], said: str) -> None:
    """Between the plan and its first request, another one has decided; it commits nothing."""
    source, copies = filled((0, 3), (3, 6), (6, 9), topics="ab"), destination("a")
    copies.topic_ids["a"] = uuid.UUID(int=1)
    copy(copies, source, 3)
    copy(copies, source, 6)
    planned = replace(whole("a", 9), checkpoint=checkpoints_of(copies)[-1])
    happens(copies)
    with served(source=source, destination=copies):
        (outcome,) = copy_as_it_is(memory.job(), [planned], Clock())
    assert said in outcome.error
    assert len(copies.logs[ledger_topic.TOPIC].committed()) == 2

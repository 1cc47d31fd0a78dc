"""What a snapshot costs and holds, and what is written before a copy."""

import copy
import dataclasses
import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from relay_pipelines import json_codec
from relay_pipelines.errors import (
    DivergedUpstreamError,
    LogTruncatedError,
    WrongClusterError,
)
from relay_pipelines.garbage import only_new_garbage_collected
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.model import OffsetRange, Status, TopicPartition
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.plan.positions import OnDataLoss, Position
from relay_pipelines.prepare import owners
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import _Run, never
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.upstream_selection import select_upstream
from relay_pipelines.user_sources import Sources
from tests.copying import copy_as_it_is
from tests.support import copies_in_memory as memory
from tests.support.config_files import SIDES
from tests.support.run_plans import plan_of, snapshot_of, with_checkpoints


def test_an_only_upstream_in_quarantine_is_not_read() -> None:
    """As of several: an operator clears it."""
    sides = Sides("m", Mirror.model_validate(SIDES))
    with pytest.raises(DivergedUpstreamError, match="one: quarantined: it differs"):
        select_upstream(sides, CheckpointSnapshot(quarantined={"one": "it differs"}))


def test_nothing_is_written_while_another_deployment_copies() -> None:
    """It looks once, and accepts no loss: whoever copies may hold it back."""
    mirror = Mirror.model_validate({**SIDES, "on_data_loss": OnDataLoss.CONTINUE})
    lost = Position(TopicPartition("a", 0), low_watermark=3, end_offset=5, next_offset=1)
    looks: Iterator[ClusterSnapshot] = iter([snapshot_of("m", "n", {"a": "a"}, [lost], mirror)])
    found = prepare_snapshot(lambda: next(looks), waits=lambda snapshot: bool(snapshot.held))
    assert list(found.held_for(Blocker.LOST)) == [lost.topic_partition]
    assert not found.accepted


class Upstream:
    """Something in a cycle, as an error and the frames of its traceback are."""

    def __init__(self) -> None:
        self.itself = self


def test_only_what_is_new_is_collected() -> None:
    """New cycles are freed at once, those that were there before only afterwards: nothing leaks."""
    gc.collect()
    frozen = gc.get_freeze_count()  # what Python 3.12 itself freezes when it collects
    old = weakref.ref(Upstream())
    with only_new_garbage_collected():
        new = weakref.ref(Upstream())
        gc.collect()
        assert (old() is None, new() is None) == (False, True)
    gc.collect()
    assert old() is None
    assert gc.get_freeze_count() == frozen


def test_one_object_of_each() -> None:
    """However it is made: by name, in a task, from JSON, as a copy, or by two threads at once."""
    tp = TopicPartition("orders", 1)
    offsets = OffsetRange(tp, 0, 9)
    assert TopicPartition(partition=1, topic=b"orders".decode()) is tp
    assert pickle.loads(pickle.dumps(offsets)).topic_partition is tp
    assert json_codec.from_json(OffsetRange, json_codec.to_json(offsets)) == offsets
    assert {copy.copy(tp), copy.deepcopy(tp), dataclasses.replace(tp)} == {tp}
    assert dataclasses.asdict(offsets)["topic_partition"] == {"topic": "orders", "partition": 1}
    adapter = TypeAdapter(OffsetRange)
    assert adapter.validate_json(adapter.dump_json(offsets)).topic_partition is tp
    assert adapter.validate_python(offsets).topic_partition is tp
    assert tp != TopicPartition("orders", 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        tp.partition = 2  # type: ignore[misc]

    threads, before = 8, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for number in range(200):
                barrier = Barrier(threads)

                def make(number: int = number, barrier: Barrier = barrier) -> TopicPartition:
                    barrier.wait()
                    return TopicPartition(f"made-{number}", 0)

                made = [pool.submit(make) for _ in range(threads)]
                assert len({id(each.result()) for each in made}) == 1
    finally:
        sys.setswitchinterval(before)
    ordered = [TopicPartition("a", 2), TopicPartition("a", 10), TopicPartition("b", 0)]
    assert sorted([ordered[2], *ordered[:2]]) == ordered
    assert ordered[0] <= ordered[1] < ordered[2]
    assert OffsetRange(ordered[1], 5, 6) < OffsetRange(ordered[2], 0, 1)


@pytest.mark.parametrize("what", ["a doubt", "a quarantine"])
def test_what_a_run_notes_goes_to_the_cluster_that_it_has_read(what: str) -> None:
    """An address may lead elsewhere by then: nothing is said to another cluster."""
    copies = memory.destination("a")
    snapshot = snapshot_of("m", "n", {"a": "a"}, [])
    snapshot = replace(snapshot, sides=snapshot.sides.at("the one that was read"))
    outcomes: list[Any] = [SimpleNamespace(diverged={"n": "other records"})]
    result = RunResult("m", run_id="run", topics={}, outcomes=outcomes)
    with snapshot.destination_client() as client:
        run = _Run(snapshot.sides, LedgerReader(client), result, [], never, Sources())
        notes: dict[str, Callable[[], None]] = {
            "a doubt": partial(owners.note_doubts, client, snapshot, {memory.AT: 7}),
            "a quarantine": run._quarantine_diverged_upstreams,
        }
        with memory.served(destination=copies), pytest.raises(WrongClusterError):
            notes[what]()
    assert not copies.logs[checkpoint.TOPIC].entries
    assert not copies.ids


@pytest.mark.parametrize("planned", [0, 5, 10])
def test_a_doubt_is_of_what_the_run_has_committed_before(planned: int) -> None:
    """It plans from offset 5, say, commits up to 10, and then finds that the disk was put back.

    A run that is slower, and has seen another checkpoint, does not take the doubt back.
    """
    source, copies, clock = memory.filled((0, 5), (5, 10)), memory.destination("a"), SystemClock()
    with memory.served(source=source, destination=copies):
        for end in (5, 10):
            known = [None, *memory.checkpoints_of(copies)][-1]
            wanted = replace(memory.whole("a", end), checkpoint=known)
            (copied,) = copy_as_it_is(memory.job(chunk_bytes=1), [wanted], clock)
        failed = replace(copied, status=Status.FAILED, error_kind=LogTruncatedError.__name__)
        known_then = {each.next_offset: {memory.AT: each} for each in memory.checkpoints_of(copies)}
        plan = plan_of("m", "source", {"a": "a"}, [])
        checkpoints = known_then.get(planned, {})
        snapshot = with_checkpoints(plan.snapshot, checkpoints)
        result = RunResult("m", run_id="run", topics={}, outcomes=[failed])
        with snapshot.destination_client() as client:
            run = _Run(snapshot.sides, LedgerReader(client), result, [], never, Sources())
            run.note_doubts(replace(plan, snapshot=snapshot))
            slower = with_checkpoints(snapshot, known_then[5])
            owners.note_doubts(client, slower, {memory.AT: 5})
            assert read_state(client).of("m").doubted == {memory.AT}

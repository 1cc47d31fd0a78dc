"""Whether a tick requests the job of a lane, by what ran before and what is new; what it prunes."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterInstance, DagsterRunStatus

from relay_pipelines.ledger.checkpoint import StartRecord
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.positions import OnDataLoss, Position
from relay_pipelines.sensors import pruning
from relay_pipelines.sensors.run_requests import RunRequests
from relay_pipelines.settings import WindowSettings
from relay_pipelines.windows.open_window import OpenWindow, OpenWindowStore
from tests.support.run_plans import snapshot_of

AT = TopicPartition("a", 0)
LANE = Lane("m", "main", WindowSettings.model_validate({"session": "300s", "keep": 2}), ("a",))
OWN = Lane("m", "own", LANE.window, ("a",), patterns=("a",))
TAGS = naming.tags("m", "main")
NEW, OLD, LOST = (Position(AT, 0, 9, 0), Position(AT, 0, 9, 9), Position(AT, 5, 9, 2))


@dg.op(name=LANE.op, config_schema=dg.Noneable(dict))
def copy(context: dg.OpExecutionContext) -> None:
    """Record a window, as a run does that has copied one."""
    if context.run.tags.get("copies"):
        context.log_event(dg.AssetMaterialization(naming.mirrored_asset("m", "a"), partition="w"))


@dg.job(name=naming.lane_job("m", "main"), executor_def=dg.in_process_executor)
def job() -> None:
    copy()


def run(
    instance: DagsterInstance,
    status: DagsterRunStatus,
    tags: dict[str, str] = TAGS,
    told: Lane = LANE,
) -> None:
    """Let a run have this status now; one that has started says when."""
    config = {"ops": {LANE.op: {"config": told.op_config}}}
    started = instance.create_run_for_job(job, run_config=config, tags={**TAGS, **tags})
    if status is not DagsterRunStatus.NOT_STARTED:
        instance.report_dagster_event(DagsterEvent("PIPELINE_START", job.name), started.run_id)
    if status is DagsterRunStatus.FAILURE:
        instance.report_run_failed(started)
    if status is DagsterRunStatus.CANCELED:
        instance.report_run_canceled(started)


queued, session, canceled, failed = (
    partial(run, status=DagsterRunStatus[name])
    for name in ("NOT_STARTED", "STARTED", "CANCELED", "FAILURE")
)
told_otherwise = partial(session, told=replace(LANE, foreign_patterns=("b",)))
told_without = partial(session, told=replace(LANE, foreign_patterns=("a",)))


def killed_after_it_copied(instance: DagsterInstance) -> None:
    done = job.execute_in_process(instance=instance, tags=TAGS | {"copies": "yes"})
    found = instance.get_run_by_id(done.run_id)
    assert found is not None
    instance.report_run_failed(found)


def left_a_window_open(instance: DagsterInstance) -> None:
    frozen = FrozenWindow("k", (OffsetRange(AT, 0, 9),))
    assert OpenWindowStore(instance, LANE).write(OpenWindow(frozen, Cluster("d", ("b:1",)), "id"))


@dataclass(frozen=True)
class Tick:
    """What has happened, oldest first, and what a tick finds so many seconds later."""

    before: tuple[Callable[[DagsterInstance], None], ...] = ()
    later: float = 0.0
    found: Position = NEW
    starts: bool = False
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    lane: Lane = LANE


RUNS = "a run is requested"
TICKS = {
    "something is new": (Tick(), RUNS),
    "nothing is new": (Tick(found=OLD), ""),
    "a run is about to start": (Tick((queued,)), r"run \w{8} is about to start"),
    "a run was cancelled": (Tick((canceled,)), RUNS),
    "a run failed": (Tick((failed,)), r"the last run failed, the next one starts in [23][.\d]+ s"),
    "a run failed a while ago": (Tick((failed,), 31), RUNS),
    "three runs failed": (Tick((failed,) * 3, 100), "the last run failed, .*"),
    "three runs failed, two minutes ago": (Tick((failed,) * 3, 121), RUNS),
    "runs that had copied were killed": (Tick((killed_after_it_copied,) * 4, 31), RUNS),
    "a killed run has left a window alone": (Tick((left_a_window_open,), found=OLD), RUNS),
    "only a run decides where the mirror starts": (Tick(found=OLD, starts=True), RUNS),
    "a loss holds all back": (Tick(found=LOST), ""),
    "only a run accepts a loss": (Tick(found=LOST, on_data_loss=OnDataLoss.CONTINUE), RUNS),
    "a session copies": (Tick((session,)), r"run \w{8} copies"),
    "a session that ends soon": (Tick((session,), 285), RUNS),
    "a session and its successor": (Tick((session, session), 285), "run .*"),
    "a session that was told other topics": (Tick((told_otherwise,)), RUNS),
    "another lane copies what has come to this one": (
        Tick((session,), lane=OWN),
        r"waits for run \w{8} of main, which still copies its topics",
    ),
    "another lane copies it no longer": (Tick((told_without,), lane=OWN), RUNS),
}


@pytest.mark.parametrize("title", TICKS)
def test_a_tick(instance: DagsterInstance, title: str) -> None:
    """It requests a run, or says why not, if there is a reason besides that nothing is new."""
    tick, expected = TICKS[title]
    for happens in tick.before:
        happens(instance)
    found = replace(
        snapshot_of("m", "upstream", {"a": "a"}, [tick.found]),
        new_starts=[StartRecord("m", "a", {0: 9}, "upstream", {}, 0)] if tick.starts else [],
    )
    kafka: Any = SimpleNamespace(mirror=lambda _: SimpleNamespace(on_data_loss=tick.on_data_loss))
    now = time.time() + tick.later
    requests = RunRequests(instance, tick.lane, [LANE, OWN], kafka, found, now)
    request = requests.find("9 records waiting")
    if expected == RUNS:
        assert request is not None
        assert request.job_name == naming.lane_job("m", tick.lane.name)
        assert request.tags[naming.TAG_WAITING] == "9 records waiting"
        assert request.run_config == {"ops": {tick.lane.op: {"config": tick.lane.op_config}}}
    else:
        assert request is None
        assert re.fullmatch(expected, "; ".join(requests.remarks)), requests.remarks


def test_idle_runs_are_pruned(instance: DagsterInstance) -> None:
    """They do not accumulate, and do not push out the runs of the windows that are kept."""
    for number in range(4):
        canceled(instance, tags={naming.TAG_UPSTREAM: "a"} if number == 0 else {})
    third, second, _, first = [found.run_id for found in instance.get_runs()]
    pruning.prune(instance, LANE, time.time())
    assert [found.run_id for found in instance.get_runs()] == [third, second, first]

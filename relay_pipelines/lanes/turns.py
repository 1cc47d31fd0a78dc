"""Who copies a lane now: a session, its successor, or a run that a person started.

Runs of a lane find each other by their tags. A person's run goes first: a session pauses between
two windows while such a run is in progress. A successor starts up while the session still copies,
and takes over between two windows. Correctness does not depend on this: two runs that copy the same
topic-partition fence each other, and what the loser left out is in the next window.

Each run writes its own tag before it reads those of the others, so that of two runs at least one
sees the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.protocol.clock import Clock

LOOK_SECONDS = 1.0
"""How often a run looks for others while it waits: each time is a query of Dagster's database."""
_IN_PROGRESS = [
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


class Turn(StrEnum):
    """What a run of a lane is doing, in its tag `relay/turn`."""

    STARTING = "starting"
    """A session, which starts Spark."""
    READY = "ready"
    """A session, which waits for its predecessor."""
    COPYING = "copying"
    PAUSED = "paused"
    """A session, while a person's run copies."""
    BY_HAND = "by_hand"
    """A run that a person started: of assets, a backfill, or `mirror_once`."""


@dataclass(frozen=True, slots=True)
class Others:
    """The other runs of a lane that are in progress.

    Args:
        by_hand: whether a person's run is among them.
        successor: whether a session that started later is ready to take over.
        predecessor: whether a session that started earlier has not ended.
        before_person: whether a session copies, or an earlier run of a person is in progress.
    """

    by_hand: bool
    successor: bool
    predecessor: bool
    before_person: bool


def tag(instance: DagsterInstance, lane: Lane, run_id: str, turn: Turn) -> None:
    """Say what a run of the lane is doing."""
    tags = naming.tags(lane.mirror, lane.name)
    instance.add_run_tags(run_id, {**tags, naming.TAG_TURN: turn.value})


def others(instance: DagsterInstance, lane: Lane, run_id: str) -> Others:
    """Look for other runs of the lane."""
    found = instance.get_runs(
        RunsFilter(tags=naming.tags(lane.mirror, lane.name), statuses=_IN_PROGRESS)
    )
    # newest first; a run that has no tag yet is about to get one
    turns = [(run.run_id, run.tags.get(naming.TAG_TURN, Turn.STARTING)) for run in found]
    own = next((index for index, (other, _) in enumerate(turns) if other == run_id), 0)
    newer = {turn for _, turn in turns[:own]}
    older = {turn for _, turn in turns[own + 1 :]}
    return Others(
        by_hand=Turn.BY_HAND in newer | older,
        successor=Turn.READY in newer,
        predecessor=bool(older - {Turn.BY_HAND}),
        before_person=Turn.COPYING in newer | older or Turn.BY_HAND in older,
    )


def take(
    context: dg.OpExecutionContext, lane: Lane, clock: Clock, stop: Callable[[], bool]
) -> None:
    """Wait in a person's run until no other run copies the lane; sessions pause until it ends."""
    tag(context.instance, lane, context.run_id, Turn.BY_HAND)
    waiting = False
    while others(context.instance, lane, context.run_id).before_person and not stop():
        if not waiting:
            context.log.info(
                "waiting until another run of %s/%s has copied its window", lane.mirror, lane.name
            )
        waiting = True
        clock.sleep(LOOK_SECONDS)


def sessions(instance: DagsterInstance, lane: Lane) -> list[dg.DagsterRun]:
    """The runs of the lane's job that have not ended, newest first."""
    return list(
        instance.get_runs(
            RunsFilter(
                job_name=naming.lane_job(lane.mirror, lane.name),
                statuses=[DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED, *_IN_PROGRESS],
            )
        )
    )

"""Who copies a lane now: a session, its successor, or a run that a person started.

Runs of a lane find each other by their tags. A person's run goes first: the session pauses between
two windows while such a run is in progress. A successor starts up while the session still copies,
and takes over between two windows. Correctness does not depend on this: two runs that copy the same
topic-partition fence each other, and what the loser left out is in the next window.
"""

from dataclasses import dataclass
from enum import StrEnum

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane

_IN_PROGRESS = [
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


class Turn(StrEnum):
    """What a run of a lane is doing, in its tag `relay/turn`."""

    STARTING = "starting"
    """A successor, which starts Spark."""
    READY = "ready"
    """A successor, which waits for its predecessor."""
    COPYING = "copying"
    PAUSED = "paused"
    """A session, while a person's run copies."""
    BY_HAND = "by_hand"
    """A run that a person started: of assets, or a backfill."""


@dataclass(frozen=True, slots=True)
class Others:
    """The other runs of a lane that are in progress.

    Args:
        by_hand: whether a person's run is among them.
        successor: whether a session that started later is ready to take over.
        predecessor: whether a session that started earlier is not paused or ended.
    """

    by_hand: bool
    successor: bool
    predecessor: bool


def tag(instance: DagsterInstance, lane: Lane, run_id: str, turn: Turn) -> None:
    """Say what a run of the lane is doing."""
    tags = naming.tags(lane.mirror, lane.name)
    instance.add_run_tags(run_id, {**tags, naming.TAG_TURN: turn})


def others(instance: DagsterInstance, lane: Lane, run_id: str) -> Others:
    """Look for other runs of the lane."""
    found = instance.get_runs(
        RunsFilter(tags=naming.tags(lane.mirror, lane.name), statuses=_IN_PROGRESS)
    )
    turns = {run.run_id: run.tags.get(naming.TAG_TURN, "") for run in found}
    # newest first
    order = [run.run_id for run in found]
    own = order.index(run_id) if run_id in order else 0
    return Others(
        by_hand=any(turns[other] == Turn.BY_HAND for other in order if other != run_id),
        successor=any(turns[other] == Turn.READY for other in order[:own]),
        predecessor=any(turns[other] != Turn.BY_HAND for other in order[own + 1 :]),
    )


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

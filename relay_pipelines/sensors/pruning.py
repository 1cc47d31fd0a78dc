"""Deletes old windows and their runs: pages and ticks read everything that Dagster keeps."""

import datetime as dt

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane

PER_TICK = 5
_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def prune(instance: dg.DagsterInstance, lane: Lane) -> None:
    """Delete the oldest windows beyond `window.keep`, and the runs that ended before the others.

    This takes about 0.1 s for a run of 200 topics, so a tick deletes a few.
    """
    plans = naming.plans_name(lane.mirror, lane.name)
    present = sorted(instance.get_dynamic_partitions(plans))
    excess = len(present) - lane.window.keep
    if excess <= 0:
        return
    for window in present[: min(excess, PER_TICK)]:
        for topic in lane.topics:
            name = naming.windows_name(lane.mirror, topic)
            if instance.has_dynamic_partition(name, window):
                instance.delete_dynamic_partition(name, window)
        instance.delete_dynamic_partition(plans, window)
    kept_since = dt.datetime.fromisoformat(naming.planned_at(present[excess]))
    old = RunsFilter(
        tags=naming.tags(lane.mirror, lane.name), statuses=_ENDED, updated_before=kept_since
    )
    for run in instance.get_runs(old, limit=PER_TICK):
        instance.delete_run(run.run_id)
        instance.compute_log_manager.delete_logs(prefix=[run.run_id])

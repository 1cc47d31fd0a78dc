"""Deletes old windows and their runs: pages and ticks read everything that Dagster keeps."""

import datetime as dt
import random
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from relay_pipelines.checks.other_deployments import RECENT_SECONDS
from relay_pipelines.orchestration import naming, shortcuts, window_log
from relay_pipelines.orchestration.lane import Lane

WINDOWS_PER_TICK = 50
RUNS_PER_TICK = 5
_LOOKED_AT = 10 * RUNS_PER_TICK
_ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]


def prune(instance: dg.DagsterInstance, lane: Lane, now: float) -> None:
    """Delete the oldest windows beyond `window.keep`, the runs before the others, and idle runs.

    A run of 200 topics takes about 0.1 s, so a tick deletes a few.

    Args:
        now: seconds since the Unix epoch.
    """
    for run_id in [*_before_kept_windows(instance, lane, now), *_beyond_kept(instance, lane)]:
        instance.delete_run(run_id)
        _delete_file(instance, run_id)
        instance.compute_log_manager.delete_logs(prefix=[run_id])


def _delete_file(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the file of a run's events, of which Dagster has deleted only the rows."""
    # only the storage in SQLite has a file per run
    path_of = getattr(instance.event_log_storage, "path_for_shard", None)
    if path_of is not None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path_of(run_id)}{suffix}").unlink(missing_ok=True)


def _before_kept_windows(instance: dg.DagsterInstance, lane: Lane, now: float) -> list[str]:
    """Delete the keys of old windows; return runs that ended before the windows that are kept."""
    plans = naming.plans_name(lane.path, lane.name)
    present = sorted(instance.get_dynamic_partitions(plans))
    excess = len(present) - lane.window.keep
    if excess <= 0:
        return []
    _delete_windows(instance, lane, present[: min(excess, WINDOWS_PER_TICK)])
    # the check of other deployments needs the recent ones
    recent = dt.datetime.fromtimestamp(now - RECENT_SECONDS, dt.UTC)
    old = RunsFilter(
        tags=naming.tags(lane.path, lane.name),
        statuses=_ENDED,
        updated_before=min(_frozen_at(instance, lane, present[excess]), recent),
    )
    return list(instance.get_run_ids(old, limit=RUNS_PER_TICK))


def _delete_windows(instance: dg.DagsterInstance, lane: Lane, windows: Sequence[str]) -> None:
    """Delete the keys of windows, and what checks said of them."""
    topics: dict[str, Sequence[str]] = {}
    for window in windows:
        # those of the plan: a topic of it may have come to another lane since
        plan = window_log.find(instance, lane, window, ())
        topics[window] = lane.topics if plan is None else plan.topics
    assets = {
        window: [naming.mirrored_asset(lane.path, topic) for topic in some]
        for window, some in topics.items()
    }
    shortcuts.delete_evaluations(instance, assets)
    for window, some in topics.items():
        names = [naming.windows_name(lane.path, topic) for topic in some]
        # last the lane's own, by which the window is found
        names.append(naming.plans_name(lane.path, lane.name))
        shortcuts.delete_key(instance, names, window)


def _frozen_at(instance: dg.DagsterInstance, lane: Lane, window: str) -> dt.datetime:
    """Return when a window was frozen; its key has only whole seconds."""
    of_window = dg.AssetRecordsFilter(asset_key=lane.windows_asset, asset_partitions=[window])
    for record in instance.fetch_materializations(of_window, limit=1).records:
        return dt.datetime.fromtimestamp(record.timestamp, dt.UTC)
    return dt.datetime.fromisoformat(naming.planned_at(window))


def _beyond_kept(instance: dg.DagsterInstance, lane: Lane) -> list[str]:
    """Return runs without a window if there are more runs than windows may be."""
    # by the job, because Dagster needs minutes to find tens of thousands of runs by their tags
    ended = RunsFilter(job_name=naming.lane_job(lane.path, lane.name), statuses=_ENDED)
    beyond = instance.get_run_ids(ended)[lane.window.keep :]
    if not beyond:
        return []
    # in the end every one is looked at, and no tick loads many
    some = random.sample(list(beyond), min(len(beyond), _LOOKED_AT))
    runs = instance.get_runs(RunsFilter(run_ids=some))
    # a run that has copied a window says from which upstream
    return [run.run_id for run in runs if naming.TAG_UPSTREAM not in run.tags][-RUNS_PER_TICK:]

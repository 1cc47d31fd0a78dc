"""Old windows are forgotten whole, with their runs: pages and ticks read through all that Dagster remembers."""

from collections.abc import Iterable

import dagster as dg
from dagster import RunRecord, RunsFilter

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.sensors.attempts import PARTITION, is_active


def forget(
    instance: dg.DagsterInstance, lane: Lane, windows: Iterable[str], now: float
) -> list[str]:
    """Delete the runs of these windows, with their events and logs; return the windows, but not those with runs under way.

    About 0.1 s for a run of 200 topics. Killed in between, it is done again: the keys are deleted
    last, by the daemon.
    """
    forgotten = []
    for window in windows:
        records = instance.get_run_records(RunsFilter(tags={PARTITION: window}))
        if not any(is_active(record, now) for record in records):
            for run_id in [record.dagster_run.run_id for record in records if _is_of(lane, record)]:
                instance.delete_run(run_id)
                instance.compute_log_manager.delete_logs(prefix=[run_id])
            forgotten.append(window)
    return forgotten


def _is_of(lane: Lane, record: RunRecord) -> bool:
    """Others may have partitions of the same name; a run that failed before it was tagged stays: it left little."""
    tags = record.dagster_run.tags
    return tags.get(naming.TAG_MIRROR) == lane.mirror and tags.get(naming.TAG_LANE) == lane.name

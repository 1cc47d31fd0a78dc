"""What became of a window so far, by the runs that copied it: the planner's, those from the UI, and backfills."""

from collections.abc import Collection
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterEventType, DagsterRunStatus, RunRecord, RunsFilter

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.plan.frozen_window import FrozenWindow

PARTITION = "dagster/partition"
"""The tag of a run's window."""
_WILL_RETRY = "dagster/will_retry"
_RETRIED_BY = "dagster/auto_retry_run_id"
_PARENT = "dagster/parent_run_id"
_RETRY_SECONDS = 120.0  # a retry that has not begun by then never will
MOST_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Attempts:
    """One window.

    Args:
        missing: topics of the window that no run has brought to its end.
        active: whether a run is under way, or about to be started again.
        requested: how often the planner asked for it.
        failed_at: when the last run ended, in seconds since the epoch; 0 if none has.
    """

    window: FrozenWindow
    missing: Collection[str]
    active: bool = False
    requested: int = 0
    failed_at: float = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the planner has no more to do for it; what failed for good is copied with the next window."""
        return not self.active and (not self.missing or self.requested >= MOST_ATTEMPTS)


def of_window(
    instance: dg.DagsterInstance, lane: Lane, window: FrozenWindow, now: float
) -> Attempts:
    """Look up the window's runs."""
    records = instance.get_run_records(RunsFilter(tags={PARTITION: window.key}))
    missing = set(window.topics)
    for record in records:
        missing -= _done(instance, lane, window, record)
    if not records:
        missing = {
            topic for topic in missing if not _is_materialized(instance, lane, topic, window.key)
        }
    ended = [
        record.end_time or record.update_timestamp.timestamp()
        for record in records
        if record.dagster_run.is_finished
    ]
    roots = [
        record
        for record in records
        if naming.TAG_ATTEMPT in record.dagster_run.tags and not _is_retry(record)
    ]
    return Attempts(
        window=window,
        missing=missing,
        active=any(is_active(record, now) for record in records),
        requested=len(roots),
        failed_at=max(ended, default=0.0),
    )


def _is_materialized(instance: dg.DagsterInstance, lane: Lane, topic: str, key: str) -> bool:
    """Whether a run of no single window, `mirror_once`, has copied the topic."""
    records = dg.AssetRecordsFilter(
        asset_key=naming.mirrored(lane.mirror, topic), asset_partitions=[key]
    )
    return bool(instance.fetch_materializations(records, limit=1).records)


def _is_retry(record: RunRecord) -> bool:
    return _PARENT in record.dagster_run.tags


def is_active(record: RunRecord, now: float) -> bool:
    """Whether a run is under way, or about to be started again."""
    run = record.dagster_run
    if not run.is_finished:
        return True
    waits = run.tags.get(_WILL_RETRY) == "true" and _RETRIED_BY not in run.tags
    return waits and now - (record.end_time or now) < _RETRY_SECONDS


def _done(
    instance: dg.DagsterInstance, lane: Lane, window: FrozenWindow, record: RunRecord
) -> set[str]:
    run = record.dagster_run
    if run.status is DagsterRunStatus.SUCCESS and run.asset_selection:
        unlisted = run.tags.get(naming.TAG_UNLISTED, "").split(",")
        return {
            topic
            for topic in window.topics
            if topic in unlisted or naming.mirrored(lane.mirror, topic) in run.asset_selection
        }
    events = instance.get_records_for_run(
        run.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION
    ).records
    found = {event.asset_key for event in events}
    return {topic for topic in window.topics if naming.mirrored(lane.mirror, topic) in found}

"""Which topics of a window are missing, by its runs: from the planner, the UI and backfills."""

from collections.abc import Collection
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterEventType, DagsterRunStatus, RunRecord, RunsFilter

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.plan.frozen_window import FrozenWindow

_WILL_RETRY = "dagster/will_retry"
_RETRIED_BY = "dagster/auto_retry_run_id"
_PARENT = "dagster/parent_run_id"
_RETRY_SECONDS = 120.0  # Dagster starts a retry within this time or never
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """The state of one window.

    Args:
        missing: topics of the window that no run has completed.
        active: whether a run is in progress or about to be retried.
        requested: how often the planner has requested a run of the window.
        failed_at: when the last run ended, in seconds since the epoch; 0 if none has.
    """

    window: FrozenWindow
    missing: Collection[str]
    active: bool = False
    requested: int = 0
    failed_at: float = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the planner is done with it; the next window copies what failed for good."""
        return not self.active and (not self.missing or self.requested >= MAX_ATTEMPTS)


def window_status(
    instance: dg.DagsterInstance, lane: Lane, window: FrozenWindow, now: float
) -> WindowStatus:
    """Look up the runs of a window."""
    records = instance.get_run_records(RunsFilter(tags={naming.TAG_PARTITION: window.key}))
    missing = set(window.topics)
    for record in records:
        missing -= _completed(instance, lane, window, record)
    if not records:
        missing = {
            topic for topic in missing if not _is_materialized(instance, lane, topic, window.key)
        }
    ended = [
        record.end_time or record.update_timestamp.timestamp()
        for record in records
        if record.dagster_run.is_finished
    ]
    requested = [
        record
        for record in records
        if naming.TAG_ATTEMPT in record.dagster_run.tags and not _is_retry(record)
    ]
    return WindowStatus(
        window=window,
        missing=missing,
        active=any(is_active(record, now) for record in records),
        requested=len(requested),
        failed_at=max(ended, default=0.0),
    )


def is_active(record: RunRecord, now: float) -> bool:
    """Whether a run is in progress or about to be retried."""
    run = record.dagster_run
    if not run.is_finished:
        return True
    waits = run.tags.get(_WILL_RETRY) == "true" and _RETRIED_BY not in run.tags
    return waits and now - (record.end_time or now) < _RETRY_SECONDS


def _is_retry(record: RunRecord) -> bool:
    return _PARENT in record.dagster_run.tags


def _is_materialized(instance: dg.DagsterInstance, lane: Lane, topic: str, key: str) -> bool:
    """Whether `mirror_once`, whose runs have no partition tag, has copied the topic."""
    records = dg.AssetRecordsFilter(
        asset_key=naming.mirrored_asset(lane.mirror, topic), asset_partitions=[key]
    )
    return bool(instance.fetch_materializations(records, limit=1).records)


def _completed(
    instance: dg.DagsterInstance, lane: Lane, window: FrozenWindow, record: RunRecord
) -> set[str]:
    run = record.dagster_run
    if run.status is DagsterRunStatus.SUCCESS and run.asset_selection:
        unlisted = run.tags.get(naming.TAG_UNLISTED, "").split(",")
        return {
            topic
            for topic in window.topics
            if topic in unlisted or naming.mirrored_asset(lane.mirror, topic) in run.asset_selection
        }
    events = instance.get_records_for_run(
        run.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION
    ).records
    found = {event.asset_key for event in events}
    return {topic for topic in window.topics if naming.mirrored_asset(lane.mirror, topic) in found}

"""Evaluations of checks that a planner reports: dated, and also while a cluster does not answer."""

import datetime as dt

import dagster as dg

from relay_pipelines.checks import lag, lag_target
from relay_pipelines.console.formatting import format_time
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.sensors.planner_cursor import Cursor


def dated(event: dg.AssetCheckEvaluation, now: float) -> dg.AssetCheckEvaluation:
    """Add the time as the partition: without one, the next window makes the check "not evaluated".

    Dagster shows the last evaluation of a check unless its asset, or that partition of it, has been
    materialised since.
    """
    return dg.AssetCheckEvaluation(
        asset_key=event.asset_key,
        check_name=event.check_name,
        passed=event.passed,
        metadata=event.metadata,
        severity=event.severity,
        description=event.description,
        # to the millisecond: Dagster refuses a second evaluation of a partition without a run
        partition=dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="milliseconds"),
    )


def report_unknown_lag(
    context: dg.SensorEvaluationContext, lane: Lane, error: RelayError, now: float
) -> None:
    """Fail the lag's checks, once, if the clusters have not answered for the lag target.

    A tick that fails stores no events and no cursor, so they are stored here.
    """
    cursor = Cursor.load(context.cursor)
    if not cursor.is_unknown(lane, now):
        return
    since = f" since {format_time(round(cursor.known_at * 1000))}" if cursor.known_at else ""
    words = f"not known{since}"
    key = dg.AssetCheckKey(lane.windows_asset, naming.LAG)
    storage = context.instance.event_log_storage
    last = storage.get_latest_asset_check_execution_by_key([key]).get(key)
    evaluation = last.evaluation if last else None
    if evaluation is not None and (evaluation.description or "").startswith(words):
        return
    why = f"{words}: {error}"
    topics = dict.fromkeys(lane.topics, why)
    for event in [lag.unknown(lane, why), *lag_target.evaluations(lane, topics)]:
        context.instance.report_runless_asset_event(dated(event, now))

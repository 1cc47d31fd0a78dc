"""Evaluations of checks that a planner reports: dated, and also while a cluster does not answer."""

import datetime as dt

import dagster as dg

from relay_pipelines.checks import lag, lag_target
from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import HELD_BACK, format_time
from relay_pipelines.page.page import away
from relay_pipelines.sensors.planner_cursor import Cursor
from relay_pipelines.windows import message_counts

_LOOKED_AT = 20
"""How many evaluations of a check are looked at for that of the last window."""


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


def released(instance: dg.DagsterInstance, lane: Lane, topic: str) -> dg.AssetCheckEvaluation:
    """What `message_counts` says when nothing of a topic is held back any more.

    It is what the last window has found: nothing else was counted since.
    """
    key = dg.AssetCheckKey(naming.mirrored_asset(lane.path, topic), naming.MESSAGE_COUNTS)
    for record in instance.event_log_storage.get_asset_check_execution_history(key, _LOOKED_AT):
        found = record.evaluation
        if found is None or not naming.is_window_key(found.partition or ""):
            continue
        if HELD_BACK not in (found.description or ""):
            return dg.AssetCheckEvaluation(
                asset_key=found.asset_key,
                check_name=found.check_name,
                passed=found.passed,
                metadata=found.metadata,
                severity=found.severity,
                description=f"window {found.partition}: {found.description}",
            )
    return message_counts.held(lane.path, topic, "")


def no_longer_mirrored(
    lane: Lane, topic: str, why: str, *, was_held: bool
) -> list[dg.AssetCheckEvaluation]:
    """What the checks of a topic say once, which nothing evaluates any more.

    Args:
        was_held: whether `message_counts` failed because a guard held something back. If it failed
            because a count differs, that stays.
    """
    words = f"no longer mirrored: {why}; reload the code location"
    asset = naming.mirrored_asset(lane.path, topic)
    return [
        dg.AssetCheckEvaluation(asset_key=asset, check_name=name, passed=True, description=words)
        for name in (naming.LAG_TARGET, *([naming.MESSAGE_COUNTS] if was_held else []))
    ]


def no_longer_there(lane: Lane) -> list[dg.AssetCheckEvaluation]:
    """What the checks of a lane say once that relay.yaml no longer has."""
    words = "the lane is no longer in relay.yaml: others copy its topics; reload the code location"
    return [
        dg.AssetCheckEvaluation(
            asset_key=lane.windows_asset, check_name=name, passed=True, description=words
        )
        for name in (naming.LAG, naming.SOURCE_TOPICS, naming.OTHER_DEPLOYMENTS)
    ]


def report_unknown_lag(
    context: dg.SensorEvaluationContext, lane: Lane, cursor: Cursor, error: Exception, now: float
) -> None:
    """Fail the lag's checks, once, if the lag has not been known for longer than its target.

    A tick that fails stores no events and no cursor, so they are stored here.
    """
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
    page = None
    if isinstance(error, RelayError):
        since_ms = round(cursor.known_at * 1000) or None
        page = away(lane.mirror, error, round(now * 1000), since_ms)
    for event in [lag.unknown(lane, why, page), *lag_target.evaluations(lane, topics)]:
        context.instance.report_runless_asset_event(dated(event, now))

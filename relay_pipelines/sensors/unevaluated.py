"""Evaluations of checks of which nothing is known: while a cluster does not answer, or for ever.

Each has in its metadata since when, to be told from what a look has found.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from relay_pipelines.checks import lag, lag_target
from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, changed, dated
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import format_time
from relay_pipelines.page.page import page_unreachable
from relay_pipelines.sensors.said import Cursor

_UNEVALUATED = "not evaluated since"


def not_reported(
    instance: dg.DagsterInstance, lane: Lane, topics: Collection[str], late: Container[str]
) -> Iterator[str]:
    """Yield topics of which Dagster has no lag target, or one that is not true any more.

    Args:
        late: those that miss it.
    """
    if not topics:
        return
    keys = {topic: naming.topic_check(lane.path, topic, naming.LAG_TARGET) for topic in topics}
    evaluations = _last(instance, keys.values())
    for topic, key in keys.items():
        last = evaluations.get(key)
        if last is None or last.passed == (topic in late) or _UNEVALUATED in last.metadata:
            yield topic


def no_longer_mirrored(lane: Lane, topic: str, why: str, now: float) -> dg.AssetCheckEvaluation:
    """What the lag target of a topic says once, which nothing evaluates any more."""
    words = f"no longer mirrored: {why}; reload the code location"
    key = naming.topic_check(lane.path, topic, naming.LAG_TARGET)
    return CheckResult(passed=True, description=words, metadata=_since(now)).evaluation(key)


def no_longer_there(lane: Lane) -> Iterator[dg.AssetCheckEvaluation]:
    """What the checks of a lane say once that relay.yaml no longer has."""
    words = "the lane is no longer in relay.yaml: others copy its topics; reload the code location"
    for name in (naming.LAG, naming.SOURCE_TOPICS, naming.OTHER_DEPLOYMENTS):
        yield CheckResult(passed=True, description=words).evaluation(lane.check(name))


def was_unknown(instance: dg.DagsterInstance, lane: Lane) -> bool:
    """Whether Dagster has no lag, or an unknown one."""
    last = _last_lag(instance, lane)
    return last is None or _UNEVALUATED in last.metadata


def report_unknown_lag(
    instance: dg.DagsterInstance, lane: Lane, cursor: Cursor, error: Exception, now: float
) -> None:
    """Fail the lag's checks, once, if the lag has not been known for longer than its target.

    A tick that fails stores no events and no cursor, so they are stored here. Of a topic that the
    source has deleted, nothing waits; no later tick would report it.
    """
    if not cursor.is_unknown(lane, now):
        return
    last, unevaluated = _last_lag(instance, lane), _since(cursor.known_at)
    if last is not None and unevaluated.items() <= last.metadata.items():
        return
    since = f" since {format_time(round(cursor.known_at * 1000))}" if cursor.known_at else ""
    why = f"not known{since}: {error}"
    topics = (topic for topic in lane.topics if not cursor.is_deleted(topic))
    page = None
    if isinstance(error, RelayError):
        since_ms = round(cursor.known_at * 1000) or None
        page = page_unreachable(lane.mirror, error, round(now * 1000), since_ms)
    unknown = lag.unknown(lane, why, page).evaluation(lane.check(naming.LAG))
    # the lag last: once Dagster has it, nothing is reported again
    for each in [*(lag_target.evaluation(lane, topic, why) for topic in topics), unknown]:
        event = changed(each, metadata={**each.metadata, **unevaluated})
        instance.report_runless_asset_event(dated(event, now))


def _since(known_at: float) -> Mapping[str, dg.MetadataValue[Any]]:
    known = dg.MetadataValue.timestamp(known_at) if known_at else dg.MetadataValue.null()
    return {_UNEVALUATED: known}


def _last_lag(instance: dg.DagsterInstance, lane: Lane) -> dg.AssetCheckEvaluation | None:
    key = lane.check(naming.LAG)
    return _last(instance, [key]).get(key)


def _last(
    instance: dg.DagsterInstance, keys: Iterable[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, dg.AssetCheckEvaluation]:
    """What Dagster has of checks; not of one that a person runs, or that failed to run."""
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key([*keys])
    evaluations = {key: record.evaluation for key, record in records.items()}
    return {
        key: last for key, last in evaluations.items() if isinstance(last, dg.AssetCheckEvaluation)
    }

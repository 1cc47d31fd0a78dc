"""Reports how far the source topics have grown.

The graph shows an external asset in green only if it was materialised: an observation leaves it
grey. Nothing deletes events that belong to no run, so there are few of them.

Evaluations of checks that a planner reports: dated, and also while a cluster does not answer.

What a planner remembers from tick to tick.
"""

import datetime as dt
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from relay_pipelines.checks import lag, lag_target
from relay_pipelines.checks.other_deployments import Foreign
from relay_pipelines.errors import RelayError
from relay_pipelines.formats import PLANNER_CURSOR
from relay_pipelines.model import digest_of
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, changed
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import count, format_time, plural
from relay_pipelines.page.page import page_unreachable
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(slots=True)
class Cursor:
    """What was reported last of a lane.

    Args:
        lag_seconds: how old the oldest record was.
        missing: topics that are missing or have no asset, each with which of the two.
        foreign: runs of other deployments.
        foreign_at: when they were reported.
        held: topics of which a guard holds something back, each with why.
        late: topics that miss the lag target, each with why.
        topics: how many topics with an asset had their lag target reported.
        source: the last source topic at which a tick looked.
        source_left: how many of this turn over the source topics are left.
        source_at: when the turn began.
        sources: what identifies the topics of the turn.
        known_at: when the clusters answered last.
    """

    lag_passed: bool | None = None
    lag_at: float = 0.0
    lag_seconds: float = 0.0
    missing: list[str] | None = None
    foreign: dict[str, Foreign] | None = None
    foreign_at: float = 0.0
    held: dict[str, str] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)
    topics: int = 0
    source: str = ""
    source_left: int = 0
    source_at: float = 0.0
    sources: str = ""
    known_at: float = 0.0

    def of_tick(self, lane: Lane, now: float) -> "Cursor":
        """The cursor of a tick in which the clusters answer.

        After a time in which the lag was reported as unknown, all of it is reported anew.
        """
        if self.is_unknown(lane, now):
            return replace(self, lag_passed=None, late={}, topics=0, known_at=now)
        return replace(self, known_at=now)

    def is_deleted(self, topic: str) -> bool:
        """Whether the source had deleted a topic at the last tick."""
        return f"{topic} deleted" in (self.missing or ())

    def is_unknown(self, lane: Lane, now: float) -> bool:
        """Whether the lag has not been known for longer than its target."""
        return (now - self.known_at) * 1000 > lane.window.lag_target


@dataclass(slots=True)
class MirrorCursor:
    """What was reported last of a mirror.

    Args:
        lanes: by name.
        denied: topics with an asset that are no longer mirrored.
        line: what the last tick that looked has said, if nothing was to be done; else empty.
    """

    lanes: dict[str, Cursor] = field(default_factory=dict)
    denied: list[str] = field(default_factory=list)
    line: str = ""

    def of(self, lane: Lane) -> Cursor:
        """What was reported of a lane; nothing at its first tick."""
        return self.lanes.get(lane.name, Cursor())

    @staticmethod
    def load(text: str | None, now: float) -> "MirrorCursor":
        """Return what `dump` stored; nothing at the first tick.

        What cannot be read, as of another version, counts as nothing: all is reported again. So
        does what a clock that was ahead has stored: nothing of it would be due until that time.
        """
        found = PLANNER_CURSOR.recalled(MirrorCursor, text)
        is_ahead = any(cursor.known_at > now for cursor in found.lanes.values())
        return MirrorCursor() if is_ahead else found

    @property
    def looked_at(self) -> float:
        """When the last tick looked at all lanes; 0 if none has."""
        return min((cursor.known_at for cursor in self.lanes.values()), default=0.0)

    def dump(self) -> str:
        """Return it as Dagster stores it."""
        return PLANNER_CURSOR.text(self)


PER_TICK = 50
_SECONDS = 300.0
_SECONDS_PER_TOPIC = 60.0
"""The topics of a lane share one event a minute, if that makes fewer of them."""
_REST = 0.1
"""The part of the time between two reports of a topic by which the second may be late."""
_END = "end offset (sum)"


def find(
    instance: dg.DagsterInstance, lane: Lane, snapshot: ClusterSnapshot, cursor: Cursor, now: float
) -> tuple[list[dg.AssetMaterialization], Cursor]:
    """Find topics that were never reported, or that have grown and were reported a while ago.

    Ticks take turns over the topics, some in each. They rest after a turn, until one may be due, or
    the topics are others: to read what was reported of fifty takes a third of an idle tick.

    Args:
        cursor: of the last tick.
        now: seconds since the Unix epoch.

    Returns:
        their materialisations, and the cursor with where this tick stops.
    """
    # of a topic with a topic-partition that cannot be read, the end is unknown
    unknown = {tp.topic for tp in snapshot.held_for(Blocker.UNKNOWN)}
    topics = sorted((snapshot.destinations.keys() & set(lane.topics)) - unknown)
    sources, rest = digest_of(topics), _between_seconds(lane) * _REST
    if sources != cursor.sources or now - cursor.source_at >= rest:
        cursor = replace(cursor, sources=sources, source_at=now, source_left=len(topics))
    after, left = cursor.source, cursor.source_left
    turn = [*(topic for topic in topics if topic > after), *(t for t in topics if t <= after)]
    if not (looked := turn[: min(PER_TICK, left)]):
        return [], cursor
    events = list(_events(instance, lane, snapshot, looked, now))
    return events, replace(cursor, source=looked[-1], source_left=left - len(looked))


def _between_seconds(lane: Lane) -> float:
    """Return how long a topic that grows is not reported again."""
    return max(_SECONDS, _SECONDS_PER_TOPIC * len(lane.topics))


def _events(
    instance: dg.DagsterInstance,
    lane: Lane,
    snapshot: ClusterSnapshot,
    topics: Sequence[str],
    now: float,
) -> Iterator[dg.AssetMaterialization]:
    """The events of the topics of which one is due."""
    ends: dict[str, list[int]] = {topic: [] for topic in topics}
    for position in snapshot.positions:
        if position.topic_partition.topic in ends:
            ends[position.topic_partition.topic].append(position.end_offset)
    keys = {topic: naming.source_asset(lane.path, topic) for topic in topics}
    reported = instance.get_latest_materialization_events(keys.values())
    between = _between_seconds(lane)
    for topic, key in keys.items():
        rate = None
        if (last := reported.get(key)) is not None and last.asset_materialization is not None:
            grown = sum(ends[topic]) - int(str(last.asset_materialization.metadata[_END].value))
            passed = now - last.timestamp
            if not grown or passed < between:
                continue
            rate = round(grown / passed, 1) if grown > 0 else None
        yield _event(key, ends[topic], snapshot.upstream.name, rate)


def _event(
    key: dg.AssetKey, ends: Sequence[int], upstream: str, rate: float | None
) -> dg.AssetMaterialization:
    speed = "" if rate is None else f", {count(rate)} a second"
    return dg.AssetMaterialization(
        key,
        description=f"{count(sum(ends))} offsets in {plural(len(ends), 'topic-partition')}{speed}",
        metadata={
            _END: sum(ends),
            "topic-partitions": len(ends),
            "upstream": upstream,
            **({} if rate is None else {"rate (offsets/s)": rate}),
        },
    )


_UNEVALUATED = "not evaluated since"
"""What a look did not find has this in its metadata, to be told from what one did find."""


def dated(event: dg.AssetCheckEvaluation, now: float) -> dg.AssetCheckEvaluation:
    """Add the time as the partition: without one, the next window makes the check "not evaluated".

    Dagster shows the last evaluation of a check unless its asset, or that partition of it, has been
    materialised since.
    """
    # to the millisecond: Dagster refuses a second evaluation of a partition without a run
    moment = dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="milliseconds")
    return changed(event, partition=moment)


def not_reported(
    instance: dg.DagsterInstance, lane: Lane, topics: Iterable[str], late: Container[str]
) -> set[str]:
    """The topics of which Dagster has no lag target, or one that is not true any more.

    Args:
        late: those that were reported to miss it.
    """
    keys = {naming.topic_check(lane.path, topic, naming.LAG_TARGET): topic for topic in topics}
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([*keys])
    said = {keys[key]: record.evaluation for key, record in found.items()}
    return {
        topic
        for topic in keys.values()
        if (last := said.get(topic)) is None
        or last.passed == (topic in late)
        or _UNEVALUATED in last.metadata
    }


def no_longer_mirrored(lane: Lane, topic: str, why: str, now: float) -> dg.AssetCheckEvaluation:
    """What the lag target of a topic says once, which nothing evaluates any more."""
    words = f"no longer mirrored: {why}; reload the code location"
    key = naming.topic_check(lane.path, topic, naming.LAG_TARGET)
    return CheckResult(passed=True, description=words, metadata=_since(now)).evaluation(key)


def _since(known_at: float) -> dict[str, dg.MetadataValue[Any]]:
    known = dg.MetadataValue.timestamp(known_at) if known_at else dg.MetadataValue.null()
    return {_UNEVALUATED: known}


def no_longer_there(lane: Lane) -> list[dg.AssetCheckEvaluation]:
    """What the checks of a lane say once that relay.yaml no longer has."""
    words = "the lane is no longer in relay.yaml: others copy its topics; reload the code location"
    names = (naming.LAG, naming.SOURCE_TOPICS, naming.OTHER_DEPLOYMENTS)
    return [
        CheckResult(passed=True, description=words).evaluation(lane.check(name)) for name in names
    ]


def report_unknown_lag(
    context: dg.SensorEvaluationContext, lane: Lane, cursor: Cursor, error: Exception, now: float
) -> None:
    """Fail the lag's checks, once, if the lag has not been known for longer than its target.

    A tick that fails stores no events and no cursor, so they are stored here. Of a topic that the
    source has deleted, nothing waits; no later tick would report it.
    """
    if not cursor.is_unknown(lane, now):
        return
    since = f" since {format_time(round(cursor.known_at * 1000))}" if cursor.known_at else ""
    key, unevaluated = lane.check(naming.LAG), _since(cursor.known_at)
    storage = context.instance.event_log_storage
    last = storage.get_latest_asset_check_execution_by_key([key]).get(key)
    evaluation = last.evaluation if last else None
    if evaluation is not None and unevaluated.items() <= evaluation.metadata.items():
        return
    why = f"not known{since}: {error}"
    topics = {topic: why for topic in lane.topics if not cursor.is_deleted(topic)}
    page = None
    if isinstance(error, RelayError):
        since_ms = round(cursor.known_at * 1000) or None
        page = page_unreachable(lane.mirror, error, round(now * 1000), since_ms)
    unknown = lag.unknown(lane, why, page).evaluation(key)
    for each in [unknown, *lag_target.evaluations(lane, topics)]:
        event = changed(each, metadata={**each.metadata, **unevaluated})
        context.instance.report_runless_asset_event(dated(event, now))

"""The planner of a lane: cuts new records into windows and requests one run after the other.

It requests one window at a time, in order, because people expect that. Correctness depends on the
checkpoints alone.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

import dagster as dg

from relay_pipelines.checks import lag, source_topics
from relay_pipelines.console.formatting import plural, seconds
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import naming, window_log
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.lanes.window_log import History
from relay_pipelines.lanes.window_planner import WindowPlanner
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.prepare import topics
from relay_pipelines.resources import KafkaResource
from relay_pipelines.sensors.pruning import delete_runs
from relay_pipelines.sensors.window_status import WindowStatus, window_status
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_TICK_SECONDS = 10
_LAG_SECONDS = 300.0
PRUNED_PER_TICK = 5
_BACKOFF_SECONDS = 30.0


def build(lane: Lane, assets: dg.AssetsDefinition | None, catalog: Catalog) -> dg.SensorDefinition:
    """Build the sensor; on a lane without topics, and so without assets, it only learns them."""

    @dg.sensor(
        name=f"plan_{lane.identifier}",
        description=f"Cuts new records of {lane.mirror}/{lane.name} into windows and requests a run"
        " for one after the other.",
        minimum_interval_seconds=max(1, min(_TICK_SECONDS, lane.window.every // 1000)),
        target=None if assets is None else dg.AssetSelection.assets(assets),
        tags={naming.TAG_MIRROR: lane.mirror, naming.TAG_LANE: lane.name},
    )
    def plan(
        context: dg.SensorEvaluationContext, kafka: KafkaResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False, patient=False)
            return _Tick(context, lane, kafka, snapshot, catalog).result()
        except RelayError as error:
            raise dg.Failure(f"{lane.mirror}: {error}") from None

    return plan


@dataclass(slots=True)
class _Cursor:
    """What was reported last: the lag and when, and topics deleted at the source."""

    lag_passed: bool | None = None
    lag_at: float = 0.0
    deleted: list[str] | None = None

    @staticmethod
    def load(text: str | None) -> "_Cursor":
        return _Cursor(**json.loads(text)) if text else _Cursor()

    def dump(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class _Tick:
    """One evaluation."""

    context: dg.SensorEvaluationContext
    lane: Lane
    kafka: KafkaResource
    snapshot: ClusterSnapshot
    catalog: Catalog
    remarks: list[str] = field(default_factory=list)

    def result(self) -> dg.SensorResult:
        lane, instance, now = self.lane, self.context.instance, self.kafka.clock.now_ms() / 1000
        self._learn()
        self._warn_of_accepted_losses()
        _limit_pool(instance, lane)
        history = window_log.history(instance, lane)
        unsettled = self._unsettled(history, now)
        cut = self._cut(history, len(unsettled), now)
        measured = lag.measure(self.kafka, self.snapshot)
        checks, cursor = self._checks(measured, now, repeat=bool(cut))
        self._warn_of_missing_topics()
        requests = self._requests(
            [*reversed(unsettled), *(WindowStatus(window, window.topics) for window in cut)], now
        )
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "; ".join([str(measured), *self.remarks]),
            cursor=cursor.dump(),
            dynamic_partitions_requests=self._partitions(cut, history, now),
            asset_events=[*(window_log.event(lane, window) for window in cut), *checks],
        )

    def _warn_of_accepted_losses(self) -> None:
        for lost in self.snapshot.accepted:
            self.context.log.warning(
                "%s: %s; the copy resumes after it", lost.topic_partition, lost.what
            )

    def _unsettled(self, history: History, now: float) -> list[WindowStatus]:
        """The windows that still have something to copy, newest first."""
        found = [
            window_status(self.context.instance, self.lane, window, now)
            for window in history.windows
        ]
        mirrored = self.snapshot.destinations
        waiting = {topic for status in found if not status.is_settled for topic in status.missing}
        excluded = sorted(waiting.difference(mirrored, self.snapshot.deleted))
        if excluded:
            line = f"no longer mirrored, and left out: {', '.join(excluded)}"
            self.context.log.warning(line)
            self.remarks.append(line)
        # a topic that is deleted at the source or no longer mirrored cannot be copied
        found = [
            replace(status, missing=set(status.missing).intersection(mirrored)) for status in found
        ]
        return [status for status in found if not status.is_settled]

    def _checks(
        self, measured: lag.Lag, now: float, *, repeat: bool
    ) -> tuple[list[dg.AssetCheckEvaluation], _Cursor]:
        """The lag on a change, after a while or with a new window; missing topics on a change."""
        events, cursor = [], _Cursor.load(self.context.cursor)
        passed = lag.passes(self.lane, measured)
        if repeat or passed != cursor.lag_passed or now - cursor.lag_at > _LAG_SECONDS:
            events.append(lag.evaluation(self.lane, measured))
            cursor = replace(cursor, lag_passed=passed, lag_at=now)
        missing = sorted([*self.snapshot.deleted, *self.snapshot.unseen])
        if missing != cursor.deleted:
            events.append(source_topics.evaluation(self.lane, self.snapshot))
            cursor = replace(cursor, deleted=missing)
        return events, cursor

    def _learn(self) -> None:
        new = self.catalog.learn(self.lane.mirror, self.snapshot.destinations)
        unlisted = [topic for topic in self.snapshot.destinations if topic not in self.lane.topics]
        if new:
            self.context.log.info("new topics: %s", ", ".join(new))
        if unlisted:
            self.remarks.append(
                f"{plural(len(unlisted), 'topic')} without an asset ({', '.join(unlisted[:3])}):"
                " reload the code location"
            )

    def _warn_of_missing_topics(self) -> None:
        if self.snapshot.deleted:
            self.remarks.append(
                f"missing at the source: {', '.join(sorted(self.snapshot.deleted))}"
            )
        allow = self.kafka.mirror(self.lane.mirror).topics.allow
        for line in [
            *map(str, topics.unseen(self.snapshot)),
            *topics.nothing_selected(self.snapshot, allow),
        ]:
            self.context.log.warning(line)
            self.remarks.append(line)

    def _cut(self, history: History, outstanding: int, now: float) -> list[FrozenWindow]:
        """Cut new windows: a backlog at once, else at most one window per `window.every`."""
        lane = self.lane
        if not lane.topics:
            return []
        new = WindowPlanner(lane, self.snapshot, history, lane.limits, int(now * 1000)).new()
        cut = list(islice(new, max(0, lane.window.ahead - outstanding)))
        age = now * 1000 - max((window.planned_at_ms for window in history.windows), default=0)
        if len(cut) == 1 and age < lane.window.every and next(new, None) is None:
            self.remarks.append(
                f"the next window is cut in {seconds((lane.window.every - age) / 1000)}"
            )
            return []
        return cut

    def _requests(self, outstanding: Sequence[WindowStatus], now: float) -> list[dg.RunRequest]:
        """Request the oldest incomplete window, unless a run of the lane is in progress."""
        active = next((status for status in outstanding if status.active), None)
        if active is not None:
            self.remarks.append(f"window {active.window.key} is being copied")
            return []
        oldest = next((status for status in outstanding if status.missing), None)
        if oldest is None:
            return []
        rest = oldest.failed_at + _BACKOFF_SECONDS * 2 ** (oldest.requested - 1) - now
        if oldest.requested and rest > 0:
            self.remarks.append(
                f"window {oldest.window.key} failed {plural(oldest.requested, 'time')},"
                f" next attempt in {seconds(rest)}"
            )
            return []
        attempt = oldest.requested + 1
        tags = naming.tags(
            self.lane.mirror,
            self.lane.name,
            (self.snapshot.node.name, self.snapshot.node_why),
            attempt,
        )
        listed = sorted(set(oldest.missing).intersection(self.lane.topics))
        unlisted = sorted(set(oldest.missing).difference(self.lane.topics))
        return [
            dg.RunRequest(
                run_key=f"{oldest.window.key}#{attempt}",
                partition_key=oldest.window.key,
                # a run must select an asset: a topic that is already complete copies nothing
                asset_selection=[
                    naming.mirrored_asset(self.lane.mirror, topic)
                    for topic in listed or self._any_listed(oldest.window)
                ],
                tags=tags | ({naming.TAG_UNLISTED: ",".join(unlisted)} if unlisted else {}),
            )
        ]

    def _any_listed(self, window: FrozenWindow) -> list[str]:
        mirrored = set(self.snapshot.destinations).intersection(self.lane.topics)
        return sorted(mirrored.intersection(window.topics) or mirrored)[:1]

    def _partitions(
        self, cut: Sequence[FrozenWindow], history: History, now: float
    ) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
        """Add keys, also those that a killed tick left out; delete the oldest beyond `keep`."""
        partitions, lane = window_log.definition(self.lane), self.lane
        present = self.context.instance.get_dynamic_partitions(lane.partitions_name)
        known = set(present)
        windows = [*reversed(history.windows), *cut]
        added = [window.key for window in windows if window.key not in known]
        requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
        if added:
            requests.append(partitions.build_add_request(added))
        excess = len(present) + len(added) - lane.window.keep
        if excess > 0:
            oldest = sorted(present)[: min(excess, PRUNED_PER_TICK)]
            old = delete_runs(self.context.instance, lane, oldest, now)
            requests.append(partitions.build_delete_request(old))
        return requests


def _limit_pool(instance: dg.DagsterInstance, lane: Lane) -> None:
    """Allow one run at a time; runs queued before the limit is set would start together."""
    pool, storage = naming.pool(lane.mirror, lane.name), instance.event_log_storage
    if pool not in {limit.name for limit in storage.get_pool_limits()}:
        storage.set_concurrency_slots(pool, 1)

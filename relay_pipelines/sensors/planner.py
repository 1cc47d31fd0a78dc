"""The planner of a lane: cuts what is new into windows, and asks for one run after the other.

One window at a time and in order, because that is what people expect; correctness rests on the
checkpoints alone.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

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
from relay_pipelines.sensors.attempts import Attempts, of_window
from relay_pipelines.sensors.pruning import forget
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_TICK_SECONDS = 10
_LAG_SECONDS = 300.0
PRUNED_PER_TICK = 5
_BACKOFF_SECONDS = 30.0


def build(lane: Lane, assets: dg.AssetsDefinition | None, catalog: Catalog) -> dg.SensorDefinition:
    """The sensor; without topics, and so without assets, it only learns them."""

    @dg.sensor(
        name=f"plan_{lane.identifier}",
        description=f"Cuts new records of {lane.mirror}/{lane.name} into windows and copies them one after the other.",
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
    """What the last tick said: of the lag, said again when it changes, or after a while; of topics that are gone."""

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

    def result(self) -> dg.SensorResult | dg.SkipReason:
        lane, instance, now = self.lane, self.context.instance, self.kafka.clock.now_ms() / 1000
        self._learn()
        for lost in self.snapshot.accepted:
            self.context.log.warning(
                "%s: %s; the copy goes on behind it", lost.topic_partition, lost.what
            )
        _limit_pool(instance, lane)
        history = window_log.history(instance, lane)
        looked_up = [of_window(instance, lane, window, now) for window in history.windows]
        self._leave_out(looked_up)
        # nobody can copy what is gone from the source, or not mirrored any more
        looked_up = [
            replace(one, missing=set(one.missing).intersection(self.snapshot.destinations))
            for one in looked_up
        ]
        waiting = [one for one in looked_up if not one.is_settled]
        cut = self._cut(history, len(waiting), now)
        events: list[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation] = []
        events += [window_log.event(lane, one) for one in cut]
        cursor = _Cursor.load(self.context.cursor)
        found = lag.measure(self.kafka, self.snapshot)
        passed = lag.passes(lane, found)
        if passed != cursor.lag_passed or now - cursor.lag_at > _LAG_SECONDS or cut:
            events.append(lag.evaluation(lane, found))
            cursor = replace(cursor, lag_passed=passed, lag_at=now)
        gone = sorted([*self.snapshot.deleted, *self.snapshot.unseen])
        if gone != cursor.deleted:
            events.append(source_topics.evaluation(lane, self.snapshot))
            cursor = replace(cursor, deleted=gone)
        self._say_what_is_missing()
        waiting = [*[Attempts(window=one, missing=one.topics) for one in reversed(cut)], *waiting]
        requests = self._requests(list(reversed(waiting)), now)
        self.remarks.insert(0, str(found))
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else "; ".join(self.remarks),
            cursor=cursor.dump(),
            dynamic_partitions_requests=self._partitions(cut, history, now),
            asset_events=events,
        )

    def _learn(self) -> None:
        new = self.catalog.learn(self.lane.mirror, self.snapshot.destinations)
        unlisted = [topic for topic in self.snapshot.destinations if topic not in self.lane.topics]
        if new:
            self.context.log.info("new topics: %s", ", ".join(new))
        if unlisted:
            self.remarks.append(
                f"{plural(len(unlisted), 'topic')} without an asset yet ({', '.join(unlisted[:3])}): reload the code location"
            )

    def _say_what_is_missing(self) -> None:
        if self.snapshot.deleted:
            self.remarks.append(f"gone from the source: {', '.join(sorted(self.snapshot.deleted))}")
        allow = self.kafka.mirror(self.lane.mirror).topics.allow
        for line in [
            *map(str, topics.unseen(self.snapshot)),
            *topics.nothing_selected(self.snapshot, allow),
        ]:
            self.context.log.warning(line)
            self.remarks.append(line)

    def _leave_out(self, looked_up: Sequence[Attempts]) -> None:
        """Say which topics of windows that wait are not mirrored any more."""
        waiting = {topic for one in looked_up if not one.is_settled for topic in one.missing}
        left_out = sorted(waiting.difference(self.snapshot.destinations, self.snapshot.deleted))
        if left_out:
            line = f"not mirrored any more, and left out: {', '.join(left_out)}"
            self.context.log.warning(line)
            self.remarks.append(line)

    def _cut(self, history: History, outstanding: int, now: float) -> list[FrozenWindow]:
        """Cut new windows: a backlog at once, what has just come in only every so often."""
        lane = self.lane
        if not lane.topics:
            return []
        coming = WindowPlanner(lane, self.snapshot, history, lane.limits, int(now * 1000)).new()
        cut = [
            one
            for one, _ in zip(coming, range(max(0, lane.window.ahead - outstanding)), strict=False)
        ]
        age = now * 1000 - max((one.planned_at_ms for one in history.windows), default=0)
        if len(cut) == 1 and age < lane.window.every and next(coming, None) is None:
            self.remarks.append(
                f"the next window is cut in {seconds((lane.window.every - age) / 1000)}"
            )
            return []
        return cut

    def _requests(self, outstanding: Sequence[Attempts], now: float) -> list[dg.RunRequest]:
        """Ask for the oldest window that nobody is copying, unless some window is being copied."""
        active = next((one for one in outstanding if one.active), None)
        if active is not None:
            self.remarks.append(f"window {active.window.key} is being copied")
            return []
        oldest = next((one for one in outstanding if one.missing), None)
        if oldest is None:
            return []
        rest = oldest.failed_at + _BACKOFF_SECONDS * 2 ** (oldest.requested - 1) - now
        if oldest.requested and rest > 0:
            self.remarks.append(
                f"window {oldest.window.key} failed {plural(oldest.requested, 'time')}, next attempt in {seconds(rest)}"
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
                # a run must select something: what is done already copies nothing
                asset_selection=[
                    naming.mirrored(self.lane.mirror, topic)
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
        """Add the new keys, and any of a tick that was killed after its events; forget the oldest beyond what is kept."""
        partitions, lane = window_log.definition(self.lane), self.lane
        present = self.context.instance.get_dynamic_partitions(lane.partitions_name)
        known = set(present)
        added = [one.key for one in [*reversed(history.windows), *cut] if one.key not in known]
        requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
        if added:
            requests.append(partitions.build_add_request(added))
        excess = len(present) + len(added) - lane.window.keep
        if excess > 0:
            old = forget(
                self.context.instance, lane, sorted(present)[: min(excess, PRUNED_PER_TICK)], now
            )
            requests.append(partitions.build_delete_request(old))
        return requests


def _limit_pool(instance: dg.DagsterInstance, lane: Lane) -> None:
    """One run at a time: runs that are queued before a pool's limit is set would start together."""
    pool, storage = naming.pool(lane.mirror, lane.name), instance.event_log_storage
    if pool not in {one.name for one in storage.get_pool_limits()}:
        storage.set_concurrency_slots(pool, 1)

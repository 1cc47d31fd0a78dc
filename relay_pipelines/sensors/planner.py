"""The planner of a mirror: starts the job of each lane that has something to copy.

The jobs cut the windows themselves, when they can copy them. Correctness depends on the checkpoints
alone.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.formats import PLANNER_CURSOR
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.check_builder import dated
from relay_pipelines.orchestration.lane import Lane, lanes_of
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.output.page_view import held_line
from relay_pipelines.prepare import topics
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of
from relay_pipelines.sensors.lane_plan import LanePlan, LaneTick
from relay_pipelines.sensors.run_requests import handover_seconds
from relay_pipelines.sensors.said import Cursor, MirrorCursor, recalled
from relay_pipelines.sensors.tick_ends import TickError, no_longer_in_file
from relay_pipelines.sensors.unevaluated import no_longer_there, report_unknown_lag
from relay_pipelines.snapshot import hidden_copies
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot, all_topics

_TICK_SECONDS = 10


def build(
    lanes: Sequence[Lane],
    jobs: Sequence[dg.JobDefinition],
    catalog: Catalog,
    status: dg.DefaultSensorStatus,
) -> dg.SensorDefinition:
    """Build the sensor of a mirror.

    Args:
        lanes: all lanes of the mirror, the main lane first.
        jobs: those of the lanes.
    """
    main = lanes[0]

    def plan(
        context: dg.SensorEvaluationContext,
        # a direct call passes the resources by their keys, too: Dagster itself does not
        **_: object,
    ) -> dg.SensorResult | dg.SkipReason:
        return _Tick(context, lanes, kafka_of(context, main.prefix), catalog).result()

    return _Planner(
        name=naming.planner(main.path),
        evaluation_fn=plan,
        description=f"Looks at the clusters of {main.mirror}, and starts the jobs of the lanes that"
        " have something to copy.",
        minimum_interval_seconds=min(map(_tick_seconds, lanes)),
        jobs=list(jobs),
        default_status=status,
        tags={naming.TAG_MIRROR: main.path},
        required_resource_keys={kafka_key(main.prefix)},
    )


class _Planner(dg.SensorDefinition):
    """A sensor of jobs that get their resources when the definitions are loaded."""

    def with_updated_jobs(self, new_jobs: Sequence[Any]) -> dg.SensorDefinition:
        with warnings.catch_warnings():
            # Dagster makes the sensor again, with an argument that we do not use
            warnings.simplefilter("ignore", dg.BetaWarning)
            return super().with_updated_jobs(new_jobs)


def _tick_seconds(lane: Lane) -> int:
    """A session copies between ticks; without sessions each run needs one."""
    if lane.window.session:
        return _TICK_SECONDS
    return max(1, min(_TICK_SECONDS, lane.window.every // 1000))


@dataclass(slots=True)
class _Tick:
    """One evaluation; what goes wrong in one lane costs the others nothing.

    Args:
        loaded: the lanes that the code location has loaded.
        plans: of the lanes that could be evaluated.
        failures: of the others, by lane.
        remarks: on the whole mirror.
        hidden: what hides copies from readers at the destination.
    """

    context: dg.SensorEvaluationContext
    loaded: Sequence[Lane]
    kafka: KafkaResource
    catalog: Catalog
    plans: list[LanePlan] = field(default_factory=list, init=False)
    failures: dict[str, str] = field(default_factory=dict, init=False)
    remarks: list[str] = field(default_factory=list, init=False)
    hidden: Sequence[OpenTransaction] = field(default=(), init=False)
    _with_asset: frozenset[str] = field(init=False)
    _now: float = field(init=False)

    def __post_init__(self) -> None:
        self._with_asset = frozenset(topic for lane in self.loaded for topic in lane.topics)
        self._now = self.kafka.clock.now_ms() / 1000

    @property
    def _names(self) -> set[str]:
        return {lane.name for lane in self.loaded}

    @property
    def _mirror(self) -> str:
        return self.loaded[0].mirror

    def result(self) -> dg.SensorResult | dg.SkipReason:
        cursor = recalled(PLANNER_CURSOR, MirrorCursor, self.context.cursor, self._now)
        if self._may_rest(cursor):
            return dg.SkipReason(cursor.line)
        try:
            self.kafka = self.kafka.for_ticks()
            if self._mirror not in self.kafka.settings.mirrors:
                return no_longer_in_file(self._mirror)
            snapshot = self._look()
            lanes = self._lanes_now(snapshot.destinations)
        except RelayError as error:
            for lane in self._lanes(cursor):
                self._fail(lane, cursor.of(lane), error)
            raise TickError(f"{self._mirror}: {error}") from None
        for lane in lanes:
            self._plan(lane, lanes, snapshot.only(lane.belongs), cursor.of(lane))
        if self.failures and not self.plans:
            raise TickError(f"{self._mirror}: {'; '.join(self._failed())}")
        return self._together(cursor)

    def _may_rest(self, cursor: MirrorCursor) -> bool:
        """Whether the sessions, which look more often, are enough for a while: nothing was new.

        One whose run has ended is missed at once, and one that ends soon enough.
        """
        longest = min(
            min(handover_seconds(lane) / 2, lane.window.lag_target / 4000) for lane in self.loaded
        )
        return (
            bool(cursor.line)
            and self._now - cursor.at < longest
            and all(turns.sessions(self.context.instance, lane) for lane in self.loaded)
        )

    def _plan(
        self, lane: Lane, lanes: Sequence[Lane], snapshot: ClusterSnapshot, cursor: Cursor
    ) -> None:
        try:
            tick = LaneTick(
                *(self.context, lane, lanes, self._unloaded(), self.kafka, snapshot),
                # what it changes counts only if it does not fail
                *(self.hidden, self._with_asset, deepcopy(cursor), self._now),
            )
            self.plans.append(tick.plan())
        except Exception as error:  # whatever it is, the other lanes go on
            if not isinstance(error, RelayError):
                self.context.log.exception("%s/%s cannot be planned", lane.mirror, lane.name)
            self._fail(lane, cursor, error)

    def _fail(self, lane: Lane, cursor: Cursor, error: Exception) -> None:
        self.failures[lane.name] = str(error)
        report_unknown_lag(self.context.instance, lane, cursor, error, self._now)

    def _look(self) -> ClusterSnapshot:
        """Take one snapshot for all lanes: with the ages of what waits, all that a tick asks for.

        Raises:
            RelayError: no upstream or no destination broker answers, or refuses.
        """
        snapshot = self.kafka.snapshot(self._mirror, all_topics, patient=False)
        self._learn(snapshot)
        for line in map(str, topics.nothing_selected(snapshot)):
            self.context.log.warning(line)
            self.remarks.append(line)
        self.hidden = hidden_copies.find(snapshot)
        return snapshot

    def _lanes_now(self, seen: Iterable[str]) -> list[Lane]:
        """The loaded lanes as relay.yaml has them now: only jobs that are loaded can be requested.

        What belongs to others is copied by these until then.
        """
        mirror = self.kafka.mirror(self._mirror)
        known = {*self.catalog.known(self._mirror, mirror), *seen}
        return lanes_of(self._mirror, mirror, known, self.loaded[0].prefix, self._names)

    def _unloaded(self) -> list[Lane]:
        lanes = lanes_of(self._mirror, self.kafka.mirror(self._mirror), ())
        return [lane for lane in lanes if lane.name not in self._names]

    def _lanes(self, cursor: MirrorCursor) -> Sequence[Lane]:
        """The loaded lanes with what has an asset, without what relay.yaml no longer mirrors."""
        try:
            lanes = self._lanes_now(())
        except ConfigError:  # it is relay.yaml that cannot be read
            return [lane for lane in self.loaded if lane.name in cursor.lanes] or self.loaded
        return [
            replace(lane, topics=tuple(filter(self._with_asset.__contains__, lane.topics)))
            for lane in lanes
        ]

    def _learn(self, snapshot: ClusterSnapshot) -> None:
        with suppress(OSError):  # the tick knows them without the file
            if new := self.catalog.learn(self._mirror, snapshot.destinations):
                self.context.log.info("new topics: %s", ", ".join(new))

    def _together(self, before: MirrorCursor) -> dg.SensorResult:
        """One result of all lanes: Dagster shows the line of a tick that requests no run."""
        line = " | ".join(filter(None, self._lines()))
        requests = [plan.request for plan in self.plans if plan.request is not None]
        if requests:
            self.context.log.info(line)
        events = [event for plan in self.plans for event in plan.events]
        for lane in self._gone():
            if lane.name in before.lanes:
                events += (dated(event, self._now) for event in no_longer_there(lane))
        has_news = events or self.failures or self.hidden
        is_idle = not has_news and all(plan.idle for plan in self.plans)
        lanes = {name: before.lanes[name] for name in self.failures if name in before.lanes}
        lanes |= {plan.lane: plan.cursor for plan in self.plans}
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else line,
            cursor=PLANNER_CURSOR.text(MirrorCursor(lanes, line if is_idle else "")),
            asset_events=events,
        )

    def _gone(self) -> list[Lane]:
        """The loaded lanes that relay.yaml no longer has."""
        planned = {plan.lane for plan in self.plans}.union(self.failures)
        return [lane for lane in self.loaded if lane.name not in planned]

    def _lines(self) -> Iterator[str]:
        """What failed or is held back first, then a line for each lane, by name if several."""
        yield from self._failed()
        held = {tp: error for plan in self.plans for tp, error in plan.held.items()}
        yield held_line(self._mirror, held)
        for lane in self._gone():
            gone = f"{lane.mirror}/{lane.name} is no longer in relay.yaml"
            yield f"{gone}; reload the code location"
        yield from self.remarks
        for plan in self.plans:
            yield self._named([plan.lane], plan.line)

    def _failed(self) -> list[str]:
        """A line for each reason why lanes could not be evaluated."""
        reasons: dict[str, list[str]] = {}
        for lane, why in self.failures.items():
            reasons.setdefault(why, []).append(lane)
        return [self._named(lanes, why) for why, lanes in reasons.items()]

    def _named(self, lanes: Sequence[str], line: str) -> str:
        """A line of lanes, by their names if the mirror has several."""
        return f"{', '.join(lanes)}: {line}" if len(self.loaded) > 1 else line

"""The planner of a lane: starts the lane's job when there is something to copy.

The job cuts the windows itself, when it can copy them. Correctness depends on the checkpoints
alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg
from dagster import DagsterRunStatus, RunsFilter

from relay_pipelines.checks import lag, lag_target, other_deployments, source_topics
from relay_pipelines.console.formatting import plural, seconds
from relay_pipelines.errors import DataLossError, RelayError
from relay_pipelines.lanes import naming, turns
from relay_pipelines.lanes.config_watch import has_lane
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.resting import Resting
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.plan.positions import OnDataLoss, Position, data_loss, plan_windows
from relay_pipelines.prepare import topics
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of
from relay_pipelines.sensors import source_events
from relay_pipelines.sensors.evaluations import dated, report_unknown_lag
from relay_pipelines.sensors.planner_cursor import Cursor
from relay_pipelines.sensors.pruning import prune
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_TICK_SECONDS = 10
_LAG_SECONDS = 300.0
_LAG_CHANGE_SECONDS = 60.0
_BACKOFF_SECONDS = 30.0
_LONGEST_BACKOFF_SECONDS = 600.0
_HANDOVER_SECONDS = 30.0
"""How long before its end a session gets a successor, which has to start Spark."""


def build(
    lane: Lane, job: dg.JobDefinition, catalog: Catalog, status: dg.DefaultSensorStatus
) -> dg.SensorDefinition:
    """Build the sensor."""

    @dg.sensor(
        name=f"plan_{lane.identifier}",
        description=f"Starts {job.name} when {lane.mirror}/{lane.name} has something to copy.",
        minimum_interval_seconds=_tick_seconds(lane),
        job_name=job.name,
        default_status=status,
        tags=naming.tags(lane.path, lane.name),
        required_resource_keys={kafka_key(lane.prefix)},
    )
    def plan(
        context: dg.SensorEvaluationContext,
        # a direct call passes the resources by their keys, too: Dagster itself does not
        **_: object,
    ) -> dg.SensorResult | dg.SkipReason:
        kafka = kafka_of(context, lane.prefix)
        try:
            if not has_lane(kafka.settings, lane, catalog):
                return dg.SkipReason(
                    f"{lane.mirror}/{lane.name} is no longer in relay.yaml; reload the code"
                    " location"
                )
            snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False, patient=False)
            return _Tick(context, lane, kafka, snapshot, catalog).result()
        except RelayError as error:
            now = kafka.clock.now_ms() / 1000
            report_unknown_lag(context, lane, error, now)
            raise dg.Failure(f"{lane.mirror}: {error}") from None

    return plan


def _tick_seconds(lane: Lane) -> int:
    """A session copies between ticks; without sessions each run needs one."""
    if lane.window.session:
        return _TICK_SECONDS
    return max(1, min(_TICK_SECONDS, lane.window.every // 1000))


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
        now = self.kafka.clock.now_ms() / 1000
        self._learn()
        measured = lag.measure(self.kafka, self.lane, self.snapshot)
        checks, cursor = self._checks(measured, now)
        sources, cursor.source = source_events.find(
            self.context.instance, self.lane, self.snapshot, cursor.source, now
        )
        self._warn_of_missing_topics()
        requests = self._requests(now, str(measured))
        prune(self.context.instance, self.lane, now)
        sentence = "; ".join([str(measured), *self.remarks])
        if requests:
            self.context.log.info(sentence)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else sentence,
            cursor=cursor.dump(),
            asset_events=[*sources, *checks],
        )

    def _checks(
        self, measured: lag.Lag, now: float
    ) -> tuple[list[dg.AssetCheckEvaluation], Cursor]:
        """The lag on a change of a minute or after a while; the other checks on a change."""
        events, cursor = [], Cursor.load(self.context.cursor).of_tick(self.lane, now)
        passed, oldest = lag.passes(self.lane, measured), measured.oldest_seconds or 0.0
        if (
            passed != cursor.lag_passed
            or now - cursor.lag_at > _LAG_SECONDS
            or abs(oldest - cursor.lag_seconds) > _LAG_CHANGE_SECONDS
        ):
            events.append(lag.evaluation(self.lane, measured))
            cursor = replace(cursor, lag_passed=passed, lag_at=now, lag_seconds=oldest)
        late = self._late_topics(cursor, measured)
        events += lag_target.evaluations(self.lane, late)
        stays = set(cursor.late).difference(late)
        cursor = replace(
            cursor,
            late=sorted(stays.union(topic for topic, why in late.items() if why)),
            topics=len(self.lane.topics),
        )
        unseen = [*self.snapshot.unseen, *self.snapshot.refused]
        gone = [*self.snapshot.deleted, *unseen, *map(str, self.snapshot.unreadable)]
        missing = sorted([*gone, *self._without_asset()])
        if missing != cursor.missing:
            found = source_topics.evaluation(self.lane, self.snapshot, self._without_asset())
            events.append(found)
            cursor = replace(cursor, missing=missing)
        foreign = other_deployments.find(self.context.instance, self.snapshot, now)
        if foreign != cursor.foreign:
            events.append(other_deployments.evaluation(self.lane, foreign))
            cursor = replace(cursor, foreign=foreign)
        if foreign:
            self.remarks.append(other_deployments.words(foreign))
        return [dated(event, now) for event in events], cursor

    def _late_topics(self, cursor: Cursor, measured: lag.Lag) -> dict[str, str]:
        """The topics to report: those that miss the lag target now or meet it again; all at first.

        Returns:
            topic -> why it misses the target; empty if it meets it.
        """
        now_ms = self.kafka.clock.now_ms()
        found = lag_target.missed(self.lane, self.snapshot, measured.late, now_ms)
        unreadable = {at.topic for at in self.snapshot.unreadable}
        known = unreadable.union(self.snapshot.destinations) & set(self.lane.topics)
        return {
            topic: found.get(topic, "")
            for topic in sorted(known)
            if len(self.lane.topics) != cursor.topics or (topic in found) != (topic in cursor.late)
        }

    def _without_asset(self) -> list[str]:
        return sorted(set(self.snapshot.destinations).difference(self.lane.topics))

    def _learn(self) -> None:
        new = self.catalog.learn(self.lane.mirror, self.snapshot.destinations)
        if new:
            self.context.log.info("new topics: %s", ", ".join(new))
        if unlisted := self._without_asset():
            self.remarks.append(
                f"{plural(len(unlisted), 'topic')} without an asset ({', '.join(unlisted[:3])}),"
                " copied all the same: reload the code location to see them"
            )

    def _warn_of_missing_topics(self) -> None:
        self.remarks += self.snapshot.all_takeovers
        if self.snapshot.deleted:
            self.remarks.append(
                f"missing at the source: {', '.join(sorted(self.snapshot.deleted))}"
            )
        allow = self.kafka.mirror(self.lane.mirror).topics.allow
        for line in [
            *map(str, [*topics.unseen(self.snapshot), *self.snapshot.held_back]),
            *topics.nothing_selected(self.snapshot, allow),
        ]:
            self.context.log.warning(line)
            self.remarks.append(line)

    def _requests(self, now: float, waiting: str) -> list[dg.RunRequest]:
        """Request the lane's job: a session if none runs or one ends soon, or a run for news."""
        for run_id in turns.bury(self.context.instance, self.lane):
            self.remarks.append(f"run {run_id[:8]} was given up: it was silent")
        running = turns.sessions(self.context.instance, self.lane)
        if running and not self._ends_soon(running, now):
            self.remarks.append(turns.in_words(running))
            return []
        runs = self._last_runs()
        rest = _backoff_seconds(runs, now)
        if rest > 0:
            self.remarks.append(f"the last run failed, the next one starts in {seconds(rest)}")
            return []
        failed = Resting.load(runs[0].dagster_run.tags) if runs else Resting()
        if resting := failed.topics(now):
            self.remarks.append(f"failed and left out for now: {', '.join(sorted(resting))}")
        if not running and not self._has_news(without=resting):
            return []
        tags = {
            **naming.tags(self.lane.path, self.lane.name),
            naming.TAG_WAITING: waiting,
            # before runs of people's own assets that wait in the same queue
            naming.TAG_PRIORITY: "10",
        }
        if resting_tag := failed.dump():
            tags[naming.TAG_RESTING] = resting_tag
        if new := self._without_asset():
            # the run may load them in a part of the lane that has no planner before a reload
            tags[naming.TAG_NEW_TOPICS] = " ".join(new)
        return [dg.RunRequest(tags=tags)]

    def _ends_soon(self, running: Sequence[dg.DagsterRun], now: float) -> bool:
        """Whether the only session of the lane needs a successor."""
        if len(running) > 1 or not self.lane.window.session:
            return False
        record = self.context.instance.get_run_record_by_id(running[0].run_id)
        started = record.start_time if record else None
        lasts = self.lane.window.session / 1000
        before = min(_HANDOVER_SECONDS, lasts / 2)
        return started is not None and now - started > lasts - before

    def _has_news(self, without: Collection[str]) -> bool:
        positions = self.snapshot.positions
        without = {*without, *self.snapshot.refused}
        news = [at for at in positions if at.topic_partition.topic not in without]
        return bool(plan_windows(news).windows) or self._must_prepare(news)

    def _must_prepare(self, positions: Sequence[Position]) -> bool:
        """Whether only a run can decide where the mirror starts, or accept a loss: ticks look.

        With `start: latest`, each tick would see the mirror start at the end of the source.
        """
        accepts = self.kafka.mirror(self.lane.mirror).on_data_loss is OnDataLoss.CONTINUE
        lost = (isinstance(data_loss(position), DataLossError) for position in positions)
        return bool(self.snapshot.new_starts) or (accepts and any(lost))

    def _last_runs(self) -> Sequence[dg.RunRecord]:
        """The last runs of the lane's job, the newest first."""
        job = naming.lane_job(self.lane.path, self.lane.name)
        return self.context.instance.get_run_records(RunsFilter(job_name=job), limit=6)


def _backoff_seconds(runs: Sequence[dg.RunRecord], now: float) -> float:
    """How long to wait before another run, after runs that failed soon after their start.

    Runs that failed for some topics only do not count: these topics rest, and the others go on.
    """
    failed = 0
    for record in runs:
        run = record.dagster_run
        if run.status is not DagsterRunStatus.FAILURE or naming.TAG_FAILED_TOPICS in run.tags:
            break
        failed += 1
    if not failed:
        return 0.0
    started = runs[0].start_time or runs[0].create_timestamp.timestamp()
    rest = min(_BACKOFF_SECONDS * 2 ** (failed - 1), _LONGEST_BACKOFF_SECONDS)
    return float(started + rest - now)

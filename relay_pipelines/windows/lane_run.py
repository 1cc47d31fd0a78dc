"""Copies a lane inside one Dagster run: window after window, with one Spark session."""

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import dagster as dg

from relay_pipelines.errors import PolicySupersededError, RelayError, together
from relay_pipelines.finding import Severity, texts
from relay_pipelines.model import TopicPartition
from relay_pipelines.offsets import checks
from relay_pipelines.offsets.following import FollowedGroups
from relay_pipelines.orchestration import heartbeat, naming, run_tags, turns, window_log
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.run_log import RunLog, log_and_print
from relay_pipelines.orchestration.shortcuts import Batch, Event
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.orchestration.turns import Place, Turn
from relay_pipelines.plan.frozen_window import FrozenWindow, WindowLimits
from relay_pipelines.prepare import topics
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.resources import KafkaResource
from relay_pipelines.run.other_writers import OtherWriters, mark_end
from relay_pipelines.run.result import RunResult, joined
from relay_pipelines.run.run import run
from relay_pipelines.run.run_plan import plan_frozen
from relay_pipelines.settings import Settings
from relay_pipelines.settings.models import Start
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.lag import Rate, Rates
from relay_pipelines.user_sources import Sources
from relay_pipelines.windows import run_snapshot, window_events
from relay_pipelines.windows.cut import new_windows
from relay_pipelines.windows.failed_windows import FailedWindows
from relay_pipelines.windows.open_window import OpenWindow, OpenWindowStore
from relay_pipelines.windows.schema_checks import SchemaChecks
from relay_pipelines.windows.window_checks import WindowChecks
from relay_pipelines.windows.window_run import WindowReport, count_window

COPYING_TIMES = 9
"""For how many times as long as the end of a window takes a session copies before the next one."""


@dataclass(slots=True)
class LaneRun:
    """The windows of a lane that one op copies, and the way of each of them.

    `copy_new` is the whole way: look, cut, copy, and, for a tenth of the time, recount, freeze,
    events. A window then has several rounds. `copy_frozen` is its second half: a
    person's run copies a window again that was cut and frozen before.

    The op yields the events, those together that are stored together.

    Args:
        session: returns the Spark session; called only if there is something to copy.
        stop: whether the run is asked to stop.
        attempt: each begins at another upstream.
        brief: whether the log has one line per window.
        patient: whether to retry for `give_up_after` while a cluster does not answer.
        yields: whether to wait while another deployment copies the lane's topics.
        has_backlog: whether the last window left out some of what was new.
        held: why topic-partitions are held back, as the last survey found.
        unseen: a line for each topic that the source does not show, and for what is held back.
        place: in the queue of the lane.
        checks: the expectations of the windows, which run behind the copy.
        schemas: their schemas, which are compared behind the copy.
    """

    context: dg.OpExecutionContext
    lane: Lane
    kafka: KafkaResource
    session: Callable[[], Any]
    stop: Callable[[], bool]
    catalog: Catalog
    attempt: int = 0
    patient: bool = True
    brief: bool = False
    yields: bool = False
    has_backlog: bool = field(default=False, init=False)
    held: Mapping[TopicPartition, RelayError] = field(default_factory=dict, init=False)
    unseen: Sequence[str] = field(default=(), init=False)
    place: Place = field(init=False)
    checks: WindowChecks = field(init=False)
    schemas: SchemaChecks = field(init=False)
    _reported: list[dg.AssetCheckEvaluation] = field(default_factory=list, init=False)
    _upstream: str = field(default="", init=False)
    _sources: Sources | None = field(default=None, init=False)
    _ledger_ends: Mapping[TopicPartition, int] = field(default_factory=dict, init=False)
    _surveyed_seconds: float = field(default=0.0, init=False)
    _has_all_topics: bool = field(default=True, init=False)
    _snapshots: Rates = field(default_factory=Rates, init=False)
    _rates: Mapping[str, Rate] = field(default_factory=dict, init=False)
    _looked: float = field(default=0.0, init=False)
    _is_replaced: bool = field(default=False, init=False)
    _writers: OtherWriters = field(init=False)
    _waits: bool = field(default=False, init=False)  # for another deployment
    _open: OpenWindow | None = field(default=None, init=False)
    _has_copied: bool = field(default=False, init=False)
    _next_end: float = field(default=0.0, init=False)
    _stored: OpenWindowStore = field(init=False)
    _failed: FailedWindows = field(init=False)
    _snapshot: ClusterSnapshot = field(init=False)
    groups: FollowedGroups = field(init=False)
    """Those that are kept up to date at the destination, within its block."""

    def __post_init__(self) -> None:
        self.groups = FollowedGroups(self.kafka.sides(self.lane.mirror), self._warn, self._belongs)
        self._writers = OtherWriters(
            cache(self.context.instance.has_run),
            *(self.lane.window.every / 1000, self.kafka.clock, self._say_writers),
            turns.deployment_of(self.context.instance),
        )
        self.place = Place(self.context, self.lane, self.kafka.clock, self.stop)
        self._stored = OpenWindowStore(self.context.instance, self.lane)
        self._failed = FailedWindows(self.context.instance, self.lane)
        self.schemas = SchemaChecks(self.lane, self.context.log)
        self.checks = WindowChecks(
            # other runs end when they have copied
            *(self.lane, self.kafka, self.context.log),
            beside_copy=self.brief,
        )

    def use(self, loaded: Settings, lane: Lane) -> None:
        """Use other settings, and the lane by them, from the next window on."""
        self.kafka, self.lane = self.kafka.with_settings(loaded), lane
        self.checks.kafka = self.kafka
        self.groups.use(self.kafka.sides(lane.mirror))
        # of another destination, maybe
        self._snapshots, self._ledger_ends = Rates(), {}

    def _warn(self, line: str) -> None:
        log_and_print(self.context.log, line, logging.WARNING)

    def _belongs(self, topic: str) -> bool:
        return self.lane.belongs(topic)

    def copy_new(
        self, limits: WindowLimits, without: Collection[str] = ()
    ) -> Generator[Batch, None, list[WindowReport]]:
        """Copy what is new, and end the window if that is due; return those that have ended.

        What an earlier window left out is new.

        Args:
            without: topics to leave out.

        Raises:
            RelayError: no upstream or no destination broker answers.
        """
        snapshot = self._snapshot = self.survey(without)
        if self._open is None:  # a run that was killed may have left one
            self._open = self._stored.load(snapshot, self.context.log)
        windows = new_windows(snapshot, limits, self.kafka.clock.now_ms())
        frozen = next(windows, None)
        held = snapshot.held
        if self._waits:
            # what is superseded waits for the operator, whenever the other one ends
            waits = {tp: e for tp, e in held.items() if isinstance(e, PolicySupersededError)}
            self._say_held(waits)
            return (yield from self.end_window())
        self._say_held(held)
        self.unseen = [*map(str, [*topics.unseen(snapshot), *together(held.values())])]
        if frozen is None:
            return (yield from self.end_window()) if self._is_due() else []
        self.has_backlog = next(windows, None) is not None
        return (yield from self._copy_round(snapshot, frozen, limits))

    def _copy_round(
        self, snapshot: ClusterSnapshot, frozen: FrozenWindow, limits: WindowLimits
    ) -> Generator[Batch, None, list[WindowReport]]:
        """Copy what is new as a round of the window that is open, or of a new one."""
        reports: list[WindowReport] = []
        if self._open and not self._open.frozen.takes(frozen, limits):
            reports = yield from self.end_window()
        if self._open is None:
            first = window_log.with_own_key(self.context.instance, self.lane, frozen)
            # the entries of two windows show a loss that was accepted between them, too
            destination_id = snapshot.at_destination.cluster_id
            self._open = OpenWindow(
                *(first, snapshot.destination, destination_id, self._ledger_ends)
            )
        else:
            self._open.frozen = self._open.frozen.extended(frozen)
        window = self._open
        # before the copy: what is copied is in a window, whatever happens to this run
        if not self._stored.write(window):
            self._open = None  # another run goes on with it
            return reports
        copied = self._copied(snapshot, replace(frozen, key=window.frozen.key))
        window.copied = joined(window.copied, copied) if window.copied else copied
        if copied.interrupted:  # another run goes on
            return reports
        if copied.has_failed or self._is_due():
            reports = [*reports, *(yield from self.end_window())]
        return reports

    def end_window(self) -> Generator[Batch, None, list[WindowReport]]:
        """Count the window that is open, and say what it has copied; none if none is open."""
        window, self._open = self._open, None
        if window is None:
            return []
        began = self.kafka.clock.monotonic()
        frozen = window.frozen
        report = self._counted(
            self._snapshot, frozen, frozen.topics, window.copied, window.ledger_ends
        )
        if not self._stored.is_own():
            return []  # another run goes on with it
        yield from window_log.freeze(self.context.instance, self.lane, frozen, window.destination)
        before = self._copied_since(self._snapshot, report)
        rounds = window.copied.rounds if window.copied else 0
        yield from self._reported_events(report, rounds, before)
        self._stored.clear()
        ended = self.kafka.clock.monotonic()
        self._next_end = ended + COPYING_TIMES * (ended - began)
        return [report]

    def _is_due(self) -> bool:
        return self.kafka.clock.monotonic() >= self._next_end

    def _say_held(self, held: Mapping[TopicPartition, RelayError]) -> None:
        """Log why topic-partitions are held back, when that begins and when it is over."""
        # what a message says besides, such as offsets, changes while it lasts
        before = {(type(error), tp) for tp, error in self.held.items()}
        new = [error for tp, error in held.items() if (type(error), tp) not in before]
        for error in together(new):
            log_and_print(self.context.log, f"held back: {error}", logging.ERROR)
        if self.held and not held:
            log_and_print(self.context.log, "no topic-partition is held back any more")
        self.held = held

    def _say_writers(self, line: str) -> None:
        self._warn(line)
        tags = {naming.TAG_WAITS: line if self._writers.waits else ""}
        run_tags.add(self.context.instance, self.context.run_id, tags)

    def _prepared(self, take_snapshot: Callable[[], ClusterSnapshot]) -> ClusterSnapshot:
        if not self.yields:
            return prepare_snapshot(take_snapshot)
        snapshot, self._waits = self._writers.prepared(take_snapshot)
        return snapshot

    def survey(
        self,
        without: Collection[str] = (),
        start: Start | None = None,
        only: Collection[str] | None = None,
    ) -> ClusterSnapshot:
        """Take a snapshot of the lane's topics, and write what a run must know before it copies.

        Args:
            without: topics to leave out.
            only: the topics to look at; all of the lane if None.
            start: where topics start that were never copied; as configured if None.

        Raises:
            RelayError: no upstream or no destination broker answers.
        """
        lane, clock, began = self.lane, self.kafka.clock, self.kafka.clock.monotonic()

        def belongs(topic: str) -> bool:
            if only is not None:
                return topic in only
            return topic not in without and lane.belongs(topic)

        snapshot = run_snapshot.prepare(
            self.kafka,
            lane.mirror,
            belongs,
            self.context.log,
            self.attempt,
            patient=self.patient,
            start=start,
            prepared=self._prepared,
        )
        heartbeat.of(self.context.run_id).move()
        self._surveyed_seconds = clock.monotonic() - began
        self._has_all_topics = not without and (only is None or set(lane.topics) <= set(only))
        self._rates = self._snapshots.learn(snapshot, clock.now_ms())
        self.catalog.learn(lane.mirror, snapshot.destinations)
        return snapshot

    def copy(
        self, snapshot: ClusterSnapshot, frozen: FrozenWindow
    ) -> Generator[Batch, None, WindowReport]:
        """Freeze a window and copy it; failures are in its report, and fail its checks."""
        frozen = window_log.with_own_key(self.context.instance, self.lane, frozen)
        yield from window_log.freeze(self.context.instance, self.lane, frozen, snapshot.destination)
        copied = self._copied(snapshot, frozen)
        report = self._counted(snapshot, frozen, frozen.topics, copied, self._ledger_ends)
        if not report.result.interrupted:  # nothing was counted; the next window copies the rest
            before = self._copied_since(snapshot, report)
            yield from self._reported_events(report, copied.rounds, before)
        return report

    def copy_frozen(
        self, snapshot: ClusterSnapshot, frozen: FrozenWindow, topics_copied: Collection[str]
    ) -> Generator[Batch, None, WindowReport]:
        """Copy what some topics of a frozen window have left, recount it, and yield its events.

        They are of this window alone, because an op of assets yields them.

        Args:
            snapshot: of these topics.
        """
        copied = self._copied(snapshot, frozen)
        report = self._counted(snapshot, frozen, topics_copied, copied, self._ledger_ends)
        if not report.result.interrupted:
            yield from self._reported_events(report, copied.rounds)
        return report

    def _copied(self, snapshot: ClusterSnapshot, frozen: FrozenWindow) -> RunResult:
        self._say_upstream(snapshot)
        self._has_copied = True
        return run(
            plan_frozen(snapshot, frozen),
            self.session,
            [self._run_log(), heartbeat.of(self.context.run_id)],
            stop=self.stop,
            run_id=self.context.run_id,
            scope=self.lane.name,  # lanes are copied side by side
            sources=self._read_sources(),
        )

    def _counted(
        self,
        snapshot: ClusterSnapshot,
        frozen: FrozenWindow,
        topics_counted: Collection[str],
        copied: RunResult | None,
        ledger_ends: Mapping[TopicPartition, int],
    ) -> WindowReport:
        report = count_window(
            *(self.kafka, snapshot, frozen, topics_counted, copied),
            run_id=self.context.run_id,
            ledger_ends=ledger_ends,
        )
        self._ledger_ends = report.result.ledger_ends
        return report

    def _run_log(self) -> RunLog:
        return RunLog(
            *(self.context.log, self._surveyed_seconds), brief=self.brief, held=len(self.held)
        )

    def _copied_since(self, snapshot: ClusterSnapshot, report: WindowReport) -> list[Event]:
        """What windows that failed say now that this one has copied what they left out."""

        def count(window: FrozenWindow) -> WindowReport:
            return count_window(
                *(self.kafka, snapshot, window, window.topics, None), run_id=self.context.run_id
            )

        return [*self._failed.copied_since(self.context.run_id, snapshot, report, count)]

    def _reported_events(
        self, report: WindowReport, rounds: int, before: Sequence[Event] = ()
    ) -> Iterator[Batch]:
        """Yield what a window says of its topics, and of the lane; log its end.

        Args:
            rounds: how many this run has copied.
            before: events of earlier windows; those of the newest one come last.
        """
        self._run_log().recounted(
            *(report.frozen.key, len(report.topics), rounds),
            *(report.result, report.recount_seconds),
        )
        for topic in report.topics:
            rate = self._rates.get(topic.topic)
            topic.source_rate = None if rate is None else rate.source
        events = list(
            window_events.of_lane(self.context, self.lane, report, all_topics=self._has_all_topics)
        )
        events += checks.of_run(self.groups, self.lane)
        is_known = all(event in self._reported for event in events)
        yield [
            *before,
            *window_events.of_window(self.context.run_id, self.lane, report),
            *(() if is_known else events),
        ]
        self._failed.note(report)
        self._reported = self._reported if is_known else events
        self.checks.add(report, self.session)
        self.schemas.add(report, self.kafka)

    def _read_sources(self) -> Sources:
        """Read the user's classes once for all tasks of a window."""
        sources = Sources.of(self.kafka.mirror(self.lane.mirror).classes)
        for line in sources.changes(self._sources):
            log_and_print(self.context.log, f"{line}: the windows from this one on use it")
        self._sources = sources
        return sources

    def finished_checks(self) -> Batch:
        """Return the results of checks that ran behind the copy since the last call."""
        return [*self.checks.finished(), *self.schemas.finished()]

    def finish(self) -> Generator[Batch, None, list[str]]:
        """Say that this run copies nothing more, and wait for the expectations of its windows.

        Returns:
            a line for each that fails the run.
        """
        self._mark_end()
        if self.checks.are_running:
            self.place.say(Turn.CHECKS)
        yield from ([event] for event in self.checks.rest(self._ends_checks))
        yield from ([event] for event in self.schemas.rest(self._ends_checks))
        return self.checks.blocked

    def _mark_end(self) -> None:
        """Let no run wait for this one; a session that is told to stop may be the last of all."""
        is_last = self.yields and self.stop()
        if self._has_copied or is_last:
            mark_end(
                Sides(self.lane.mirror, self.kafka.mirror(self.lane.mirror), self.kafka.clock),
                self.context.run_id,
                deployment=self._writers.deployment,
                goes_on=not is_last,
            )

    def _ends_checks(self) -> bool:
        """Whether to give up expectations: for a later run that has as many; both have a Spark."""
        now = self.kafka.clock.monotonic()
        if not self._is_replaced and now - self._looked > turns.LOOK_SECONDS:
            self._looked = now
            self._is_replaced = self.place.has_later_checks()
        return self._is_replaced or self.stop()

    def _say_upstream(self, snapshot: ClusterSnapshot) -> None:
        if snapshot.upstream.name != self._upstream:
            self._upstream = snapshot.upstream.name
            tags = {naming.TAG_UPSTREAM: self._upstream, naming.TAG_WHY: snapshot.selection.why}
            run_tags.add(self.context.instance, self.context.run_id, tags)


def failures(reports: Sequence[WindowReport]) -> list[str]:
    """One line for each topic that is incomplete in these windows, or whose count differs."""
    return [
        f"window {report.frozen.key}: {line}"
        for report in reports
        for line in [
            *report.failures,
            *(
                f"{topic.topic}: {line}"
                for topic in report.topics
                for line in texts(topic.findings, Severity.DIFFERENCE)
            ),
        ]
    ]

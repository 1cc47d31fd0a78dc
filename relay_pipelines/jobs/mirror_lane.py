"""The job of a lane: copies one window, or one after the other for as long as a session lasts."""

import logging
from collections.abc import Collection, Iterator, Sequence

import dagster as dg
from dagster import DagsterRunStatus

from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import heartbeat, naming, run_tags, turns
from relay_pipelines.orchestration.job_builder import build_job
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.run_log import log_and_print
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import Session, Stop
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.orchestration.turns import Turn
from relay_pipelines.output.formatting import format_time, seconds
from relay_pipelines.resources import KafkaResource
from relay_pipelines.windows.config_watch import Change, ConfigWatch
from relay_pipelines.windows.cut import FailedTopics
from relay_pipelines.windows.lane_run import LaneRun, failures
from relay_pipelines.windows.window_run import WindowReport

GRACE_SECONDS = 60.0
"""How long a session goes on after its time, so that its successor can start."""
_MOST_SAID = 3  # failures, in a tag


def build(lane: Lane, catalog: Catalog) -> dg.JobDefinition:
    """Build the job of a lane."""

    def copy(
        context: dg.OpExecutionContext, kafka: KafkaResource, stop: Stop, session: Session
    ) -> Iterator[Batch]:
        # a session tries again soon, and must end soon when it is told to
        if waiting := context.run_tags.get(naming.TAG_WAITING):
            context.log.info("the planner requested this run: %s", waiting)
        stays = lane.window.session > 0
        copying = LaneRun(
            *(context, lane.with_config(context.op_config), kafka, session, stop, catalog),
            patient=not stays,
            brief=stays,
            yields=True,
        )
        return _Session(copying).run()

    pace = "in one window."
    if lane.window.session:
        every, session_seconds = lane.window.every / 1000, lane.window.session / 1000
        pace = f"every {seconds(every)} for {seconds(session_seconds)}."
    return build_job(
        naming.lane_job(lane.path, lane.name),
        lane.op,
        f"Copies {lane.mirror}/{lane.name}: what is new, {pace}",
        copy,
        prefix=lane.prefix,
        config={
            name: dg.Field([str], default_value=patterns, description="patterns of whole names")
            for name, patterns in lane.op_config.items()
        },
        tags={
            **naming.tags(lane.path, lane.name),
            # from the start: a process that dies before it says so itself would block its lane
            naming.TAG_TURN: Turn.STARTS.value,
            # the planner starts the next run, which copies what this one left out
            naming.TAG_MAX_RETRIES: "0",
        },
    )


class _Session:
    """Copies what is new every so often, until its time is over or it is told to stop.

    Ending windows takes a tenth of its time at most. A window also ends whenever another process
    copies, or copies in another way: before a run by hand, a successor, or another relay.yaml. Only
    a session that is stopped leaves it open, for the next one.

    A lane without sessions has one that ends after its first window.
    """

    def __init__(self, copying: LaneRun) -> None:
        self._copying = copying
        self._clock = copying.kafka.clock
        self._log = copying.context.log
        self._place = copying.place
        self._watch = ConfigWatch(copying.kafka, copying.lane, copying.catalog, self._log)
        self._failures: list[str] = []
        self._failed_topics = FailedTopics()

    @property
    def _lane(self) -> Lane:
        return self._copying.lane

    def run(self) -> Iterator[Batch]:
        """Take over from the predecessor, and copy."""
        try:
            with self._copying.groups:
                yield from self._take_over()
        except KeyboardInterrupt:  # while Spark started, or a second signal
            self._raise_if_cancelled()

    def _take_over(self) -> Iterator[Batch]:
        self._place.say(Turn.STARTS)
        try:
            self._copying.session()  # records that come while Spark starts are in the first window
        except RelayError as error:
            raise dg.Failure(str(error), allow_retries=False) from None
        yield from self._copy_windows()
        blocked = yield from self._copying.finish()
        if self._copying.stop():
            self._raise_if_cancelled()
        elif lines := [*self._failures, *blocked]:
            raise dg.Failure("; ".join(lines), allow_retries=False)

    def _raise_if_cancelled(self) -> None:
        """The operator cancels a session; if all of Dagster ends, it is not a failure."""
        context = self._copying.context
        run = context.instance.get_run_by_id(context.run_id)
        if not self._lane.window.session or run is None or run.status is DagsterRunStatus.CANCELING:
            raise dg.DagsterExecutionInterruptedError
        self._log.info("interrupted: this session ends")

    def _copy_windows(self) -> Iterator[Batch]:
        self._place.wait()
        first = self._clock.monotonic()
        while self._place.wait():
            began, window = self._clock.monotonic(), self._lane.window
            is_late = began > first + window.session / 1000 + GRACE_SECONDS
            change = self._watch.change()
            if is_late or change:
                yield from self._end_window()
            if is_late or (change and self._ends_with(change)):
                return
            yield from self._copy_round()
            yield self._copying.finished_checks()
            if not window.session:
                return
            if not self._copying.has_backlog or self._copying.attempt:
                self._wait_for_next(began + window.every / 1000)
            if self._place.is_awaited():
                yield from self._end_window()

    def _end_window(self) -> Iterator[Batch]:
        reports = yield from self._copying.end_window()
        if reports:
            self._note(reports, ())

    def _copy_round(self) -> Iterator[Batch]:
        """Copy what is new; a failure is logged when it is new, and the session goes on."""
        copying = self._copying
        copying.has_backlog = False
        resting = self._failed_topics.left_out(self._clock.monotonic())
        try:
            reports = yield from copying.copy_new(self._lane.limits, resting)
        except RelayError as error:
            self._note_failures([str(error)], [str(error)], resting)
        else:
            self._note(reports, resting)

    def _note(self, reports: Sequence[WindowReport], resting: Collection[str]) -> None:
        for report in reports:
            self._failed_topics.note(report, self._clock.monotonic())
        lines = failures(reports)
        # without the window's key
        self._note_failures(lines, [line.partition(": ")[2] for line in lines], resting)

    def _note_failures(
        self, lines: Sequence[str], known: list[str], resting: Collection[str]
    ) -> None:
        """Log what fails, and did not before.

        Args:
            known: the lines as they are known again.
            resting: the topics that were left out.
        """
        self._copying.attempt = self._copying.attempt + 1 if lines else 0
        for line, what in zip(lines, known, strict=True):
            if what not in self._failures:
                log_and_print(self._log, line, logging.ERROR)
        # topics that rest have not recovered
        rest = tuple(f"{topic}: " for topic in resting)
        self._set_failures(known + [line for line in self._failures if line.startswith(rest)])

    def _set_failures(self, failures: list[str]) -> None:
        """Keep what fails now, and say it where the planner's line finds it."""
        if failures != self._failures:
            hidden = len(failures) - _MOST_SAID
            more = [f"and {hidden} more"] if hidden > 0 else []
            context, line = self._copying.context, "; ".join([*failures[:_MOST_SAID], *more])
            run_tags.add(context.instance, context.run_id, {naming.TAG_FAILURES: line})
        self._failures = failures

    def _ends_with(self, change: Change) -> bool:
        """Use a relay.yaml that has changed; return whether another session has to read it."""
        if change.lane is None or not change.lane.window.session:
            log_and_print(self._log, f"{change.what}: this session ends", logging.WARNING)
            return True
        log_and_print(
            self._log, f"{change.what}: the windows from this one on use it", logging.WARNING
        )
        context, moment = self._copying.context, format_time(self._clock.now_ms())
        tags = {naming.TAG_CHANGED: f"{change.what} at {moment}"}
        run_tags.add(context.instance, context.run_id, tags)
        self._copying.use(change.settings, change.lane)
        return False

    def _wait_for_next(self, moment: float) -> None:
        """Wait until a moment, or until another run wants to copy."""
        while (left := moment - self._clock.monotonic()) > 0 and not self._copying.stop():
            heartbeat.of(self._copying.context.run_id).move()  # it has nothing to move
            self._clock.sleep(min(left, turns.LOOK_SECONDS))
            if left > turns.LOOK_SECONDS and self._place.is_awaited():
                return

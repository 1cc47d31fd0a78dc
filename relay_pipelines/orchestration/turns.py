"""Who copies a lane now: its runs form a queue, and let each other copy between two windows.

Who waits has a number. A run by hand begins with 0, before the sessions; one that lets others copy
goes to the end. Of two sessions the later one copies, and the other one ends: a successor starts
Spark while its predecessor copies, and waits only then.

Correctness does not depend on this: two runs that copy the same topic-partition fence each other,
and what the loser left out is in the next window. A run takes its turn in its tag, and looks at the
others once more: of two that do so at once, at least one sees the other, and waits. A number
follows those of others, and equal ones the order in which Dagster created the runs: nobody compares
clocks. Nobody waits for a run that starts, that checks, or that is dead.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.storage.runs import SqlRunStorage

from relay_pipelines.orchestration import heartbeat, naming, run_tags
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.shortcuts import IN_PROGRESS, runs_in_progress
from relay_pipelines.output.formatting import plural, seconds
from relay_pipelines.protocol.clock import Clock

LOOK_SECONDS = 1.0
"""How often a run looks for others while it waits: each time is a query of Dagster's database."""
_SILENT_SECONDS = 30.0
_STARTED = [DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_LAST = sys.maxsize


class Turn(StrEnum):
    """What a run of a lane is doing, in its tag."""

    STARTS = "starts"
    """A session, which starts Spark."""
    WAITS = "waits"
    """With its number: `waits since 3`."""
    COPIES = "copies"
    CHECKS = "checks"
    """It has copied, and runs expectations: no process waits for it."""


_DOING: dict[str, str] = {
    Turn.STARTS: "starts Spark",
    Turn.WAITS: "waits for its turn",
}


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of a lane that is in progress.

    Args:
        is_session: whether it is one of the lane's job; others were started by hand.
        since: its number, if it waits.
        created: greater for those that Dagster created later.
    """

    run_id: str
    is_session: bool
    turn: str
    since: int
    created: int

    def replaces(self, other: "_Run") -> bool:
        """Whether it copies instead of another one."""
        return self.is_session and other.is_session and self.created > other.created

    def comes_before(self, other: "_Run") -> bool:
        """Whether it copies its next window before another one does."""
        if self.turn != Turn.WAITS or other.replaces(self):
            return self.turn == Turn.COPIES and other.since < _LAST
        first = (self.since, self.created) < (other.since, other.created)
        return first or self.replaces(other)


class Place:
    """The place of a run in the queue of a lane.

    Args:
        is_over: whether the run copies no further window: another one does instead, or it was
            declared dead.
    """

    def __init__(
        self, context: dg.OpExecutionContext, lane: Lane, clock: Clock, stop: Callable[[], bool]
    ) -> None:
        self.is_over = False
        self._context, self._lane, self._clock, self._stop = context, lane, clock, stop
        self._is_session = context.job_name == naming.lane_job(lane.path, lane.name)
        self._turn = ""
        self._before: Sequence[_Run] = ()

    def say(self, turn: str) -> None:
        """Say to the other runs of the lane what this one is doing."""
        if turn != self._turn:
            self._turn = turn
            tags = {**naming.tags(self._lane.path, self._lane.name), naming.TAG_TURN: str(turn)}
            run_tags.add(self._context.instance, self._context.run_id, tags)

    def is_awaited(self) -> bool:
        """Look, between two windows, whether other runs wait, which copy before this one then."""
        return not (self._stop() or self._is_first(_LAST))

    def wait(self) -> bool:
        """Wait for the turn of this run, unless it has it and is not awaited.

        Returns:
            whether it copies a window now.
        """
        said = ""
        since = int(self._is_session)  # runs by hand begin before all sessions
        if self._before:
            since = 1 + max(1, *(run.since for run in self._before))
        while (self._turn != Turn.COPIES or self._before) and not (self.is_over or self._stop()):
            if not self._takes_turn(since):
                copying = "" if self._is_session else _who_copies(self._before)
                if copying not in {"", said}:
                    said, name = copying, f"{self._lane.mirror}/{self._lane.name}"
                    self._context.log.info("waiting for its turn in %s: %s", name, copying)
                heartbeat.of(self._context.run_id).move()  # it waits, and has nothing to move
                self._clock.sleep(LOOK_SECONDS)
        return not (self.is_over or self._stop())

    def has_later_checks(self) -> bool:
        """Look whether a run that started later has copied, too, and runs expectations."""
        own = self._context.run_id
        runs = _look(self._context.instance, self._lane, own)
        return any(
            run.turn == Turn.CHECKS for run in takewhile(lambda run: run.run_id != own, runs)
        )

    def _takes_turn(self, since: int) -> bool:
        waits = f"{Turn.WAITS} since {since}"
        self.say(waits)
        if self._is_first(since):
            self.say(Turn.COPIES)
            if not self._is_first(since):
                self.say(waits)
        return not self._before

    def _is_first(self, since: int) -> bool:
        """Look whether no run comes before this one, which has this number."""
        run_id = self._context.run_id
        runs = {run.run_id: run for run in _look(self._context.instance, self._lane, run_id)}
        own = runs.pop(run_id, None)
        self._before = [
            run for run in runs.values() if own and run.comes_before(replace(own, since=since))
        ]
        self.is_over = own is None or any(run.replaces(own) for run in self._before)
        return not self._before


def _look(instance: DagsterInstance, lane: Lane, own: str = "") -> list[_Run]:
    """Look at the runs of a lane that are in progress, and not dead, the newest one first.

    Args:
        own: the id of the run that looks.
    """
    tags, job = naming.tags(lane.path, lane.name), naming.lane_job(lane.path, lane.name)
    runs = []
    for age, run in enumerate(runs_in_progress(instance, *tags.items())):
        if run.run_id == own or not is_dead(run):
            # until it runs, the tag may be that of the run that it repeats
            said = {} if run.status is DagsterRunStatus.STARTING else run.tags
            turn, _, since = said.get(naming.TAG_TURN, Turn.STARTS).partition(" since ")
            runs.append(_Run(run.run_id, run.job_name == job, turn, int(since or 0), -age))
    return runs


def _who_copies(runs: Sequence[_Run]) -> str:
    copying = (run.run_id[:8] for run in runs if run.turn == Turn.COPIES)
    return ", ".join(f"run {run_id} copies a window" for run_id in copying)


def deployment_of(instance: DagsterInstance) -> str:
    """Return what all runs of a Dagster share, and no other has; empty if it is not in SQL."""
    storage = instance.run_storage
    return storage.get_run_storage_id() if isinstance(storage, SqlRunStorage) else ""


def is_dead(run: dg.DagsterRun) -> bool:
    """Look at a run, and return whether it has started, and its heartbeat has ended."""
    copies = run.status in _STARTED and naming.TAG_TURN in run.tags
    return copies and heartbeat.watcher.is_dead(run)


def fail_dead_runs(instance: DagsterInstance, lane: Lane) -> list[str]:
    """Report runs of the lane that are dead as failed, and return their ids."""
    runs = instance.get_runs(RunsFilter(tags=naming.tags(lane.path, lane.name), statuses=_STARTED))
    dead = [run for run in runs if is_dead(run)]
    for run in dead:
        instance.report_run_failed(run, f"{heartbeat.GIVEN_UP}: another run takes over")
    return [run.run_id for run in dead]


_QUEUED_SECONDS = 10.0
_MOST_QUEUED = 20


def waits_of_people(instance: DagsterInstance, lane: Lane, now: float) -> Iterator[str]:
    """Yield a line for each run that the operator started, and that has to wait, with for whom.

    Args:
        now: seconds since the Unix epoch.
    """
    runs = _look(instance, lane)
    others = _who_copies(runs)
    for run in runs:
        if others and run.turn == Turn.WAITS and not run.is_session:
            yield f"run {run.run_id[:8]}, which was started by hand, waits for its turn: {others}"
    queued = instance.get_run_records(
        RunsFilter(statuses=[DagsterRunStatus.QUEUED]), limit=_MOST_QUEUED
    )
    for record in queued:
        waited = now - record.create_timestamp.timestamp()
        if waited > _QUEUED_SECONDS and _copies_by_hand(record.dagster_run, lane):
            yield (
                f"run {record.dagster_run.run_id[:8]}, which was started by hand, waits in"
                f" Dagster's queue for {seconds(waited)}: {_who_holds_the_queue(instance)}"
            )


def _copies_by_hand(run: dg.DagsterRun, lane: Lane) -> bool:
    """Whether a run is to copy topics of the lane, and no planner has requested it."""
    jobs = {naming.job(lane.prefix, name) for name in ("mirror_once", "backfill_by_date")}
    topics = {naming.mirrored_asset(lane.path, topic) for topic in lane.topics}
    return run.job_name in jobs or not topics.isdisjoint(run.asset_selection or ())


def _who_holds_the_queue(instance: DagsterInstance) -> str:
    runs = instance.get_runs(RunsFilter(statuses=IN_PROGRESS))
    sessions_of_lanes = sum(naming.TAG_TURN in run.tags for run in runs)
    queue = instance.get_concurrency_config().run_queue_config
    if queue is None or len(runs) < queue.max_concurrent_runs:
        return "one that it may not run beside is in progress, by a pool or a tag of dagster.yaml"
    return (
        f"dagster.yaml allows {plural(queue.max_concurrent_runs, 'run')} at a time, and"
        f" {sessions_of_lanes} of them copy lanes; raise `max_concurrent_runs`"
    )


def in_words(runs: Sequence[dg.DagsterRun]) -> str:
    """Say what the run that copies a lane is doing, or else the one that will.

    Args:
        runs: as of `sessions`; not empty.
    """
    doing = [(run, run.tags.get(naming.TAG_TURN, "")) for run in runs]
    run, turn = next((pair for pair in doing if pair[1] == Turn.COPIES), doing[-1])
    silent = heartbeat.watcher.silent_seconds(run)
    if run.status not in _STARTED:
        what = "is about to start"
    elif silent > _SILENT_SECONDS:
        what = f"has not reported for {seconds(silent)}"
    else:
        remark = run.tags.get(naming.TAG_HEARTBEAT, "").partition(": ")[2]
        waits = run.tags.get(naming.TAG_WAITS)
        does = f"waits: {waits}" if waits else _DOING.get(turn.partition(" ")[0], "copies")
        failures = run.tags.get(naming.TAG_FAILURES)
        fails = f"with failures: {failures}" if failures else ""
        what = ", ".join(filter(None, [does, remark, run.tags.get(naming.TAG_CHANGED), fails]))
    return f"run {run.run_id[:8]} {what}"


def sessions(instance: DagsterInstance, lane: Lane) -> list[dg.DagsterRun]:
    """The runs of the lane's job that have not ended, newest first.

    Those that only check do not count: expectations never delay a copy.
    """
    runs = instance.get_runs(
        RunsFilter(
            job_name=naming.lane_job(lane.path, lane.name),
            statuses=[DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED, *IN_PROGRESS],
        )
    )
    return [run for run in runs if run.tags.get(naming.TAG_TURN) != Turn.CHECKS]

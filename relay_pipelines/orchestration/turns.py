"""Who copies a lane now: a session, its successor, or a run that was started by hand.

Runs of a lane find each other by their tags. A run by hand goes first: a session pauses between
two windows while such a run is in progress. A successor starts up while the session still copies,
and takes over between two windows. Correctness does not depend on this: two runs that copy the same
topic-partition fence each other, and what the loser left out is in the next window.

Each run writes its own tag before it reads those of the others, so that of two runs at least one
sees the other.

How a run fails for good: Dagster's run retries look at a tag, not at the failure.

Whether runs that copy are alive: their heartbeats, and those who watch them.

Dagster does not notice that a process has died if its code server died with it: such a run would be
in progress for ever, and everybody would wait for it. docs/transactions.md argues why a wrong
decision costs time only.
"""

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.storage.runs import SqlRunStorage
from sqlalchemy.exc import OperationalError

from relay_pipelines.model import LedgerEntry
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.naming import TAG_HEARTBEAT
from relay_pipelines.output.formatting import format_time, plural, seconds
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.spark.session import kill_jvm

LOOK_SECONDS = 1.0
"""How often a run looks for others while it waits: each time is a query of Dagster's database."""
_SILENT_SECONDS = 30.0
_STARTED = [DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_IN_PROGRESS = [DagsterRunStatus.STARTING, *_STARTED]
DEAD_SECONDS = 90.0
"""How long somebody must have watched the same heartbeat before he gives the run up."""
GIVEN_UP = f"it was silent for {seconds(DEAD_SECONDS)}: its process has died, or hangs"
"""Why a run was reported as failed by another one."""
_BUSY_SECONDS = 30.0
"""How long others may write to SQLite: so long Dagster's events wait, and its runs for 5 s."""
_tagging = threading.Lock()
"""Tags are read, changed and written: a thread must not undo what another one has written."""


class Turn(StrEnum):
    """What a run of a lane is doing, in its tag."""

    STARTING = "starting"
    """A session, which starts Spark."""
    READY = "ready"
    """A session, which waits for its predecessor."""
    COPYING = "copying"
    PAUSED = "paused"
    """A session, while a run by hand copies."""
    CHECKING = "checking"
    """A run that has copied, and runs expectations: no process waits for it."""
    BY_HAND = "by_hand"
    """A run that the operator started: of assets, a backfill, or `mirror_once`."""
    BETWEEN = "between"
    """Such a run with many windows, which lets a session copy what is new before its next one."""


_DOING: dict[str, str] = {
    Turn.STARTING: "starts Spark",
    Turn.READY: "waits for the run before it",
    Turn.PAUSED: "pauses for a run that was started by hand",
}


@dataclass(frozen=True, slots=True)
class OtherRuns:
    """The other runs of a lane that are in progress.

    Args:
        by_hand: whether a run by hand is among them.
        successor: whether a session that started later is ready to take over.
        predecessor: whether a session that started earlier has not ended.
        before_person: whether a session copies, or an earlier run by hand is in progress.
        was_ended: whether this run is no longer in progress itself: it was declared dead.
        later_checks: whether a run that started later has copied, too, and runs expectations.
        paused: whether a session waits for a run by hand.
    """

    by_hand: bool
    successor: bool
    predecessor: bool
    before_person: bool
    was_ended: bool = False
    later_checks: bool = False
    paused: bool = False


def tag(instance: DagsterInstance, lane: Lane, run_id: str, turn: Turn) -> None:
    """Say what a run of the lane is doing."""
    add_tags(instance, run_id, {**naming.tags(lane.path, lane.name), naming.TAG_TURN: turn.value})


def add_tags(instance: DagsterInstance, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run of this process, also while its heartbeat adds one, or others write."""
    until = time.monotonic() + _BUSY_SECONDS
    with _tagging:
        while True:
            try:
                return instance.add_run_tags(run_id, tags)
            except OperationalError as error:
                if "database is locked" not in str(error.orig) or time.monotonic() > until:
                    raise


def deployment_of(instance: DagsterInstance) -> str:
    """Return what all runs of a Dagster share, and no other has; empty if it is not in SQL."""
    storage = instance.run_storage
    return storage.get_run_storage_id() if isinstance(storage, SqlRunStorage) else ""


def is_dead(run: dg.DagsterRun) -> bool:
    """Look at a run, and return whether it has started, and its heartbeat has ended."""
    copies = run.status in _STARTED and naming.TAG_TURN in run.tags
    return copies and watcher.is_dead(run)


def other_runs(instance: DagsterInstance, lane: Lane, run_id: str) -> OtherRuns:
    """Look for other runs of the lane."""
    found = instance.get_runs(
        RunsFilter(tags=naming.tags(lane.path, lane.name), statuses=_IN_PROGRESS)
    )
    runs = [run for run in found if run.run_id == run_id or not is_dead(run)]
    # newest first; a run that has no tag yet is about to get one
    turns = [(run.run_id, run.tags.get(naming.TAG_TURN, Turn.STARTING)) for run in runs]
    own = next((index for index, (other, _) in enumerate(turns) if other == run_id), len(turns))
    newer = {turn for _, turn in turns[:own]}
    older = {turn for _, turn in turns[own + 1 :]}
    return OtherRuns(
        by_hand=Turn.BY_HAND in newer | older,
        successor=Turn.READY in newer,
        predecessor=bool(older - {Turn.BY_HAND, Turn.BETWEEN, Turn.CHECKING}),
        before_person=Turn.COPYING in newer | older or bool(older & {Turn.BY_HAND, Turn.BETWEEN}),
        was_ended=own == len(turns),
        later_checks=Turn.CHECKING in newer,
        paused=Turn.PAUSED in newer | older,
    )


def is_copied(instance: DagsterInstance, mirror: str, lane: str) -> bool:
    """Whether a run of a lane is in progress, be it that it still starts Spark."""
    runs = instance.get_runs(
        RunsFilter(tags=naming.tags(mirror, lane), statuses=_IN_PROGRESS), limit=5
    )
    return any(not is_dead(run) and run.tags.get(naming.TAG_TURN) != Turn.CHECKING for run in runs)


def fail_dead_runs(instance: DagsterInstance, lane: Lane) -> list[str]:
    """Report runs of the lane that are dead as failed, and return their ids."""
    runs = instance.get_runs(RunsFilter(tags=naming.tags(lane.path, lane.name), statuses=_STARTED))
    dead = [run for run in runs if is_dead(run)]
    for run in dead:
        instance.report_run_failed(run, f"{GIVEN_UP}: another run takes over")
    return [run.run_id for run in dead]


def wait_for_turn(
    context: dg.OpExecutionContext, lane: Lane, clock: Clock, stop: Callable[[], bool]
) -> None:
    """Wait in a run by hand until no other run copies the lane; sessions pause until it ends."""
    tag(context.instance, lane, context.run_id, Turn.BY_HAND)
    said = ""
    while other_runs(context.instance, lane, context.run_id).before_person and not stop():
        if (others := _others_that_copy(context.instance, lane, context.run_id)) != said:
            said = others
            context.log.info("waiting for its turn in %s/%s: %s", lane.mirror, lane.name, others)
        clock.sleep(LOOK_SECONDS)


def _others_that_copy(instance: DagsterInstance, lane: Lane, run_id: str) -> str:
    runs = instance.get_runs(
        RunsFilter(tags=naming.tags(lane.path, lane.name), statuses=_IN_PROGRESS)
    )
    waits = {Turn.STARTING, Turn.READY, Turn.PAUSED, Turn.CHECKING}
    copying = [
        f"run {run.run_id[:8]} copies a window"
        for run in runs
        if run.run_id != run_id and run.tags.get(naming.TAG_TURN) not in waits and not is_dead(run)
    ]
    return ", ".join(copying)


_QUEUED_SECONDS = 10.0
_MOST_QUEUED = 20


def waits_of_people(instance: DagsterInstance, lane: Lane, now: float) -> Iterator[str]:
    """Yield a line for each run that the operator started, and that has to wait, with for whom.

    Args:
        now: seconds since the Unix epoch.
    """
    by_hand = {**naming.tags(lane.path, lane.name), naming.TAG_TURN: Turn.BY_HAND.value}
    for run in instance.get_runs(RunsFilter(tags=by_hand, statuses=_IN_PROGRESS)):
        if others := _others_that_copy(instance, lane, run.run_id):
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
    runs = instance.get_runs(RunsFilter(statuses=_IN_PROGRESS))
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
    run, turn = next((pair for pair in doing if pair[1] in {Turn.COPYING, Turn.PAUSED}), doing[-1])
    silent = watcher.silent_seconds(run)
    if run.status not in _STARTED:
        what = "is about to start"
    elif silent > _SILENT_SECONDS:
        what = f"has not reported for {seconds(silent)}"
    else:
        remark = run.tags.get(naming.TAG_HEARTBEAT, "").partition(": ")[2]
        waits = run.tags.get(naming.TAG_WAITS)
        does = f"waits: {waits}" if waits else _DOING.get(turn, "copies")
        failures = run.tags.get(naming.TAG_FAILURES)
        fails = f"with failures: {failures}" if failures else ""
        what = ", ".join(filter(None, [does, remark, run.tags.get(naming.TAG_CHANGED), fails]))
    return f"run {run.run_id[:8]} {what}"


def let_session_copy(
    context: dg.OpExecutionContext, lane: Lane, clock: Clock, stop: Callable[[], bool]
) -> None:
    """Let a session that has paused copy what is new meanwhile, and take the lane again."""

    def is_awaited() -> bool:
        # it does not take its turn while another person's run waits for this one
        found = other_runs(context.instance, lane, context.run_id)
        return found.paused and not found.by_hand

    if is_awaited():
        tag(context.instance, lane, context.run_id, Turn.BETWEEN)
        # one that has died meanwhile is left to `fail_dead_runs`
        until = clock.monotonic() + DEAD_SECONDS
        while is_awaited() and not stop():
            if clock.monotonic() > until:
                break
            clock.sleep(LOOK_SECONDS / 4)
        wait_for_turn(context, lane, clock, stop)


def sessions(instance: DagsterInstance, lane: Lane) -> list[dg.DagsterRun]:
    """The runs of the lane's job that have not ended, newest first.

    Those that only check do not count: expectations never delay a copy.
    """
    runs = instance.get_runs(
        RunsFilter(
            job_name=naming.lane_job(lane.path, lane.name),
            statuses=[DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED, *_IN_PROGRESS],
        )
    )
    return [run for run in runs if run.tags.get(naming.TAG_TURN) != Turn.CHECKING]


def forbid_retries(context: dg.OpExecutionContext) -> None:
    """Keep Dagster from retrying the run if it fails."""
    add_tags(context.instance, context.run_id, {naming.TAG_MAX_RETRIES: "0"})


def final_failure(context: dg.OpExecutionContext, what: str) -> dg.Failure:
    """Return a failure that another attempt would only repeat, such as an operator's mistake."""
    forbid_retries(context)
    return dg.Failure(what, allow_retries=False)


STANDSTILL_SECONDS = 300.0
"""How long the thread of a run may do nothing at all before the run is ended."""
_BEAT_SECONDS = 15.0
_SOME_CPU_SECONDS = 0.0005  # a thread that only waits uses none at all
_WORTH_SAYING_SECONDS = 30.0
_LONGEST_LOOK_SECONDS = 30.0
_MOST_KNOWN = 100


def _cpu_of_this_thread() -> Callable[[], float]:
    """Return what returns the CPU time of the thread that calls this."""
    if not hasattr(time, "pthread_getcpuclockid"):  # nobody knows: it never stands still
        return time.monotonic
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


@dataclass(slots=True)
class Heartbeat:
    """When the copy of a run has last moved, and when its thread has last done anything.

    A thread that waits in a loop, for a cluster or for another run, uses a little CPU time; one
    that waits for an answer that never comes uses none.

    It observes the run's copies.

    Args:
        cpu_seconds: the CPU time of the run's thread.
    """

    clock: Clock = field(default_factory=SystemClock)
    cpu_seconds: Callable[[], float] = field(default_factory=_cpu_of_this_thread)
    _cpu: float = field(default=0.0, init=False)
    _ran: float = field(default=0.0, init=False)
    _moved: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.move()

    def move(self) -> None:
        """Note that the run has come further."""
        self._ran = self._moved = self.clock.monotonic()

    def begin(self, plan: RunPlan) -> None:  # noqa: ARG002 - the signature of an observer
        """Note that a copy begins."""
        self.move()

    def submitted(self, application: str) -> None:
        """Do nothing: a job that waits for executors has not come further."""

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Note that chunks were committed, if any were."""
        if entries:
            self.move()

    def end(self, result: RunResult) -> None:  # noqa: ARG002 - the signature of an observer
        """Note that a copy has ended."""
        self.move()

    def is_at_a_standstill(self) -> bool:
        """Whether the run's thread has done nothing for long: it hangs."""
        now, cpu = self.clock.monotonic(), self.cpu_seconds()
        if cpu - self._cpu > _SOME_CPU_SECONDS:
            self._cpu, self._ran = cpu, now
        return now - self._ran > STANDSTILL_SECONDS

    def __str__(self) -> str:
        now, rests = format_time(self.clock.now_ms()), self.clock.monotonic() - self._moved
        if rests < _WORTH_SAYING_SECONDS:
            return now
        return f"{now}: nothing has moved for {seconds(rests)}"


def beat(context: dg.OpExecutionContext) -> None:
    """Write the heartbeat of a run of this process now.

    Raises:
        SQLAlchemyError: Dagster's database does not answer, or takes no writes.
    """
    add_tags(context.instance, context.run_id, {TAG_HEARTBEAT: str(of(context.run_id))})


_beating: dict[str, Heartbeat] = {}


def of(run_id: str) -> Heartbeat:
    """The heartbeat of a run of this process."""
    return _beating.get(run_id) or Heartbeat()


@contextmanager
def beating(
    run_id: str, add_tags: Callable[[Mapping[str, str]], None], log: logging.Logger
) -> Iterator[Heartbeat]:
    """Write the heartbeat of a run into a tag, again and again, until it stands still.

    Args:
        add_tags: adds tags to the run.
        log: of the run.
    """
    ended = threading.Event()
    heart = _beating[run_id] = Heartbeat()

    def beat() -> None:
        while not ended.wait(_BEAT_SECONDS):
            if heart.is_at_a_standstill():
                _end_process(log)
                return
            with suppress(Exception):  # another beat follows
                add_tags({TAG_HEARTBEAT: str(heart)})

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield heart
    finally:
        ended.set()
        thread.join()
        del _beating[run_id]


def _end_process(log: logging.Logger) -> None:
    """End the process of a run that hangs, if it is one of its own; otherwise it falls silent."""
    line = (
        f"nothing has happened for {seconds(STANDSTILL_SECONDS)}: this run hangs, and ends; what is"
        " committed stays, and another run goes on"
    )
    # it may be Dagster's database that hangs
    saying = threading.Thread(target=log.error, args=(line,), daemon=True)
    saying.start()
    saying.join(_BEAT_SECONDS)
    if multiprocessing.parent_process() is not None:
        kill_jvm()
        os._exit(1)


@dataclass(slots=True)
class _Watched:
    """A heartbeat as it was at the last look, and for how long it was watched without a change."""

    beat: str
    looked: float
    silent_seconds: float = 0.0


class Watcher:
    """Counts for how long it has watched heartbeats that stay the same, by its own clock alone.

    A run is silent for as long as somebody watches, and not for as long as a tag is old: clocks
    jump, those of two machines differ, and a watcher may have been stopped itself.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()  # sensors are evaluated in threads

    def silent_seconds(self, run: dg.DagsterRun) -> float:
        """Look at a run, and return for how long it has been silent."""
        now, beat = self._clock.monotonic(), run.tags.get(TAG_HEARTBEAT, "")
        with self._lock:
            known = self._watched.pop(run.run_id, None)
            if known is None or known.beat != beat:
                known = _Watched(beat, now)
            known.silent_seconds += min(now - known.looked, _LONGEST_LOOK_SECONDS)
            known.looked = now
            self._watched[run.run_id] = known
            if len(self._watched) > _MOST_KNOWN:  # the first one was not looked at for longest
                del self._watched[next(iter(self._watched))]
        return known.silent_seconds

    def is_dead(self, run: dg.DagsterRun) -> bool:
        """Look at a run, and return whether it has been silent for too long."""
        return self.silent_seconds(run) > DEAD_SECONDS


watcher = Watcher(SystemClock())
"""That of this process: of a code server, or of a run."""

"""Who copies a lane now: a session, its successor, or a run that was started by hand.

Runs of a lane find each other by their tags. A run by hand goes first: a session pauses between
two windows while such a run is in progress. A successor starts up while the session still copies,
and takes over between two windows. Correctness does not depend on this: two runs that copy the same
topic-partition fence each other, and what the loser left out is in the next window.

Each run writes its own tag before it reads those of the others, so that of two runs at least one
sees the other.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.storage.runs import SqlRunStorage

from relay_pipelines.orchestration import heartbeat, naming, run_tags
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import plural, seconds
from relay_pipelines.protocol.clock import Clock

LOOK_SECONDS = 1.0
"""How often a run looks for others while it waits: each time is a query of Dagster's database."""
_SILENT_SECONDS = 30.0
_STARTED = [DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_IN_PROGRESS = [DagsterRunStatus.STARTING, *_STARTED]


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
    run_tags.add(
        instance, run_id, {**naming.tags(lane.path, lane.name), naming.TAG_TURN: turn.value}
    )


def deployment_of(instance: DagsterInstance) -> str:
    """Return what all runs of a Dagster share, and no other has; empty if it is not in SQL."""
    storage = instance.run_storage
    return storage.get_run_storage_id() if isinstance(storage, SqlRunStorage) else ""


def is_dead(run: dg.DagsterRun) -> bool:
    """Look at a run, and return whether it has started, and its heartbeat has ended."""
    copies = run.status in _STARTED and naming.TAG_TURN in run.tags
    return copies and heartbeat.watcher.is_dead(run)


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
        instance.report_run_failed(run, f"{heartbeat.GIVEN_UP}: another run takes over")
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
    silent = heartbeat.watcher.silent_seconds(run)
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
        until = clock.monotonic() + heartbeat.DEAD_SECONDS
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

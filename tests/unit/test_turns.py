"""Who copies a lane: sessions, their successors, and runs of people."""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core import remote_origin
from sqlalchemy.exc import OperationalError

from relay_pipelines.jobs import mirror_lane
from relay_pipelines.orchestration import heartbeat, naming, run_tags, stopping, turns
from relay_pipelines.orchestration.heartbeat import Watcher
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.stopping import forbid_retries
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.orchestration.turns import Turn
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import WindowSettings
from tests.support.independent import until
from tests.support.sleeping_clock import SleepingClock
from tests.support.tables import titled

LANE = Lane("m", "main", WindowSettings(), ("a",))
OTHER = Lane("m", "other", WindowSettings(), ("b",))
JOB = dg.job(name=naming.lane_job("m", "main"))(lambda: None)


def run(
    instance: DagsterInstance,
    turn: Turn | None,
    status: DagsterRunStatus = DagsterRunStatus.STARTED,
    lane: Lane = LANE,
) -> str:
    tags = naming.tags(lane.mirror, lane.name)
    run_id = instance.create_run_for_job(JOB, status=status, tags=tags).run_id
    if turn is not None:
        turns.tag(instance, lane, run_id, turn)
    return run_id


SEEN = ("by_hand", "successor", "predecessor", "before_person")
PREDECESSOR, FIRST_PERSON = "predecessor before_person", "by_hand before_person"
OTHERS = [
    # title, the runs from the oldest to the newest, what the one called "own" sees
    ("alone", [("own", Turn.COPYING)], ""),
    ("a person's run", [("own", Turn.COPYING), ("", Turn.BY_HAND)], "by_hand"),
    ("an earlier run of a person", [("", Turn.BY_HAND), ("own", Turn.COPYING)], FIRST_PERSON),
    ("a successor that starts Spark", [("own", Turn.COPYING), ("", Turn.STARTING)], ""),
    ("a successor without a tag yet", [("own", Turn.COPYING), ("", None)], ""),
    ("a successor that is ready", [("own", Turn.COPYING), ("", Turn.READY)], "successor"),
    ("a predecessor", [("", Turn.COPYING), ("own", Turn.READY)], PREDECESSOR),
    ("a predecessor that pauses", [("", Turn.PAUSED), ("own", Turn.READY)], "predecessor"),
    ("a person waits for a session", [("", Turn.COPYING), ("own", Turn.BY_HAND)], PREDECESSOR),
    ("... for a later session", [("own", Turn.BY_HAND), ("", Turn.COPYING)], "before_person"),
    ("... for nobody who pauses", [("", Turn.PAUSED), ("own", Turn.BY_HAND)], "predecessor"),
    ("nobody waits for a run that checks", [("", Turn.CHECKING), ("own", Turn.READY)], ""),
    ("of two people, the first", [("own", Turn.BY_HAND), ("", Turn.BY_HAND)], "by_hand"),
    ("of two people, the second", [("", Turn.BY_HAND), ("own", Turn.BY_HAND)], FIRST_PERSON),
    ("... between two windows", [("", Turn.BETWEEN), ("own", Turn.BY_HAND)], "before_person"),
]


def context_of(instance: DagsterInstance, run_id: str) -> Any:
    log = SimpleNamespace(info=lambda *_: None)
    return SimpleNamespace(instance=instance, run_id=run_id, log=log, run_tags={})


@titled("runs, expected", OTHERS)
def test_others(instance, runs, expected):
    ids = [(name, run(instance, turn)) for name, turn in runs]
    own = next(run_id for name, run_id in ids if name == "own")
    seen = turns.other_runs(instance, LANE, own)
    assert " ".join(name for name in SEEN if getattr(seen, name)) == expected


def test_a_backfill_lets_a_session_copy_between_its_windows(instance):
    """A session that pauses gets a turn before the next window; without one, nobody waits."""
    session, own = run(instance, Turn.PAUSED), run(instance, Turn.BY_HAND)
    context = context_of(instance, own)
    said = []

    class Turning(SystemClock):
        def sleep(self, _seconds: float) -> None:
            said.append(instance.get_run_by_id(own).tags[naming.TAG_TURN])
            seen = turns.other_runs(instance, LANE, session)
            turns.tag(instance, LANE, session, Turn.PAUSED if seen.by_hand else Turn.COPYING)

    turns.let_session_copy(context, LANE, Turning(), lambda: False)
    assert said == [Turn.BETWEEN, Turn.BY_HAND]
    assert instance.get_run_by_id(own).tags[naming.TAG_TURN] == Turn.BY_HAND
    instance.report_run_canceled(instance.get_run_by_id(session))
    turns.let_session_copy(context, LANE, Turning(), lambda: False)
    assert len(said) == 2


def test_a_backfill_gives_no_turn_to_a_session_that_waits_for_another_person(instance):
    """Else it waited for a turn that nobody takes, while the other person's run went first."""
    run(instance, Turn.PAUSED)
    own = run(instance, Turn.BY_HAND)
    context = context_of(instance, own)

    class Meanwhile(SleepingClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.waits) == 1:
                run(instance, Turn.BY_HAND)

    clock = Meanwhile()
    for _ in range(2):  # it comes while the session may take its turn, and has come before
        turns.let_session_copy(context, LANE, clock, lambda: False)
        assert len(clock.waits) == 1
    assert instance.get_run_by_id(own).tags[naming.TAG_TURN] == Turn.BY_HAND


@pytest.mark.parametrize("status", ["NOT_STARTED", "SUCCESS", "CANCELED"])
def test_runs_that_do_not_copy_now_do_not_count(instance, status):
    run(instance, Turn.COPYING, DagsterRunStatus[status])
    run(instance, Turn.COPYING, lane=OTHER)
    own = run(instance, Turn.READY)
    seen = turns.other_runs(instance, LANE, own)
    assert seen == turns.OtherRuns(**dict.fromkeys(SEEN, False))


class Clock(SleepingClock):
    """A clock that a test turns: both its times, or the wall clock alone."""

    jumped = 0.0

    def now_ms(self) -> int:
        return int(1000 * (1_800_000_000 + self.now + self.jumped))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock(0.0)
    monkeypatch.setattr(heartbeat, "watcher", Watcher(found))
    return found


def watch(instance: DagsterInstance, clock: Clock, seconds: int, beat: str = "") -> list[str]:
    """Look every ten seconds, as a planner does; return who was given up."""
    given_up = turns.fail_dead_runs(instance, LANE)
    for number in range(seconds // 10):
        for other in instance.get_runs() if beat else ():
            instance.add_run_tags(other.run_id, {naming.TAG_HEARTBEAT: f"{beat} {number}"})
        clock.now += 10
        given_up += turns.fail_dead_runs(instance, LANE)
    return given_up


def test_who_is_given_up(instance, clock, tmp_path):
    """Who has died, also before it spoke; not for a clock, or a watcher that was stopped."""
    dead, own = run(instance, Turn.COPYING), run(instance, Turn.BY_HAND)
    assert watch(instance, clock, 200, "alive") == []
    assert turns.other_runs(instance, LANE, own).before_person
    instance.add_run_tags(own, {naming.TAG_TURN: Turn.CHECKING.value})
    assert watch(instance, clock, 80) == []
    instance.add_run_tags(own, {naming.TAG_HEARTBEAT: "the last one"})
    assert watch(instance, clock, 20) == [dead]
    assert instance.get_run_by_id(dead).status is DagsterRunStatus.FAILURE
    assert turns.other_runs(instance, LANE, dead).was_ended
    assert not turns.other_runs(instance, LANE, own).before_person
    instance.wipe()
    run(instance, Turn.COPYING)
    assert watch(instance, clock, 60, "2001-01-01T00:00:00Z") == []
    clock.jumped += 3600.0
    assert watch(instance, clock, 60) == []
    clock.now += 3600.0
    assert turns.fail_dead_runs(instance, LANE) == []
    instance.wipe()
    job = mirror_lane.build(LANE, Catalog(tmp_path / "topics.json"))
    started = DagsterRunStatus.STARTED
    died = instance.create_run_for_job(job, status=started, tags=job.run_tags).run_id
    assert watch(instance, clock, 90) == []
    assert watch(instance, clock, 10) == [died]


def test_a_heartbeat_says_what_moves(monkeypatch):
    """A run that waits for its copy says so, and one whose thread does nothing ends."""
    monkeypatch.setattr(heartbeat, "_BEAT_SECONDS", 0.0)
    clock, cpu = Clock(0.0), [0.0]
    tags: dict[str, str] = {}
    said: list[str] = []

    def until_said(expected: str) -> None:
        until(lambda: tags.get(naming.TAG_HEARTBEAT) == expected, expected)

    log: Any = SimpleNamespace(error=said.append)
    entries: Any = [object()]
    made = partial(heartbeat.Heartbeat, clock, lambda: cpu[-1])
    monkeypatch.setattr(heartbeat, "Heartbeat", made)
    with heartbeat.beating("r", tags.update, log) as heart:
        until_said("2027-01-15T08:00:00Z")
        clock.now += 100
        heart.committed([])
        until_said("2027-01-15T08:01:40Z: nothing has moved for 1 min 40 s")
        heartbeat.of("r").committed(entries)
        until_said("2027-01-15T08:01:40Z")
        for _ in range(4):  # it waits for a cluster, again and again
            cpu.append(cpu[-1] + 1)
            clock.now += 100
            until_said(str(heart))
        clock.now += heartbeat.STANDSTILL_SECONDS + 1
        until(lambda: said, "the end")
    assert said[0].startswith("nothing has happened for 5 min 0 s: this run hangs, and ends;")


def test_the_time_of_a_thread_stands_still_while_it_waits_for_ever():
    """Not so while it asks again and again."""
    asks, ends = threading.Event(), threading.Event()
    found: queue.Queue[Callable[[], float]] = queue.Queue()

    def run() -> None:
        found.put(heartbeat.Heartbeat().cpu_seconds)
        while not asks.wait(0.001):
            pass
        ends.wait()

    with ThreadPoolExecutor(1) as aside:
        aside.submit(run)
        cpu_seconds = found.get()
        until(lambda: cpu_seconds() > 0.02, "some CPU time")
        asks.set()
        time.sleep(0.1)
        before = cpu_seconds()
        time.sleep(0.5)
        assert cpu_seconds() == before
        ends.set()


def test_no_tag_is_lost_to_a_heartbeat(instance, monkeypatch):
    """Dagster reads all tags of a run, and writes them back with those that are new."""
    monkeypatch.setattr(heartbeat, "_BEAT_SECONDS", 0.0)
    own = run(instance, Turn.COPYING)
    context = context_of(instance, own)
    has_read, is_written = threading.Event(), threading.Event()
    look_up = instance.run_storage._get_run_by_id

    def read(run_id: str) -> DagsterRun | None:
        """Let the heartbeat wait between reading and writing, for those who do not wait for it."""
        found = look_up(run_id)
        if threading.current_thread().name == "heartbeat" and not has_read.is_set():
            has_read.set()
            is_written.wait(0.2)
        return found

    monkeypatch.setattr(instance.run_storage, "_get_run_by_id", read)
    with heartbeat.beating(own, partial(run_tags.add, instance, own), context.log):
        assert has_read.wait(10)
        forbid_retries(context)
        is_written.set()
    assert naming.TAG_MAX_RETRIES in instance.get_run_by_id(own).tags


def test_a_tag_waits_while_another_process_writes(tmp_path, monkeypatch):
    """SQLite gives up after 5 s, which a busy disk takes longer than; a session would fail."""
    with DagsterInstance.local_temp(str(tmp_path)) as instance, ThreadPoolExecutor(1) as aside:
        storage: Any = instance.run_storage
        own, path = run(instance, Turn.COPYING), storage._conn_string
        with closing(sqlite3.connect(path.removeprefix("sqlite:///"))) as other:
            other.execute("BEGIN IMMEDIATE")
            monkeypatch.setattr(storage, "_conn_string", f"{path}?timeout=0.1")
            added = aside.submit(run_tags.add, instance, own, {"a": "b"})
            time.sleep(0.5)
            other.rollback()
            added.result(10)
        found = instance.get_run_by_id(own)
        assert found is not None
        assert found.tags["a"] == "b"


def test_a_run_that_was_deleted_does_not_wait_for_the_database(instance):
    """A person deletes it while the database fails: nobody stores any more that it has failed."""
    context: Any = SimpleNamespace(instance=instance, run_id="gone")
    clock = SleepingClock()
    with (
        pytest.raises(dg.Failure, match=r"Dagster's database fails: it is read-only; start it, or"),
        stopping._database_errors_in_one_line(context, clock),
    ):
        raise OperationalError("INSERT", None, Exception("it is read-only"))
    assert not clock.waits


def test_a_tick_says_what_the_run_that_copies_is_doing(instance, clock) -> None:
    """It names the one that copies, not its successor; one that does not move, or is silent."""

    def said() -> str:
        return turns.in_words(turns.sessions(instance, LANE))

    queued = run(instance, Turn.STARTING, DagsterRunStatus.NOT_STARTED)
    assert said() == f"run {queued[:8]} is about to start"
    instance.delete_run(queued)
    copying = run(instance, Turn.COPYING)
    run(instance, Turn.READY)
    assert said() == f"run {copying[:8]} copies"
    turns.tag(instance, LANE, copying, Turn.PAUSED)
    assert said() == f"run {copying[:8]} pauses for a run that was started by hand"
    turns.tag(instance, LANE, copying, Turn.COPYING)
    beat = "2026-11-25T02:14:00Z: nothing has moved for 45 s"
    instance.add_run_tags(copying, {naming.TAG_HEARTBEAT: beat})
    assert said() == f"run {copying[:8]} copies, nothing has moved for 45 s"
    clock.now += 20
    assert "nothing has moved" in said()
    clock.now += 20
    assert said() == f"run {copying[:8]} has not reported for 40 s"


def test_a_tick_says_for_whom_a_person_waits() -> None:
    """A run in the queue has no process that could; who is in progress says so in its log, too."""
    limit = {"concurrency": {"runs": {"max_concurrent_runs": 3}}}
    with dg.instance_for_test(overrides=limit) as instance:

        def said(later: float = 0.0) -> list[str]:
            return list(turns.waits_of_people(instance, LANE, time.time() + later))

        copying = run(instance, Turn.COPYING)
        run(instance, Turn.CHECKING)
        location = remote_origin.RegisteredCodeLocationOrigin("location")
        repository = remote_origin.RemoteRepositoryOrigin(location, "repository")
        origin = remote_origin.RemoteJobOrigin(repository, "__ASSET_JOB")
        selected = [frozenset([naming.mirrored_asset("m", topic)]) for topic in ("a", "b")]
        launched: dict[str, Any] = {"status": DagsterRunStatus.QUEUED, "remote_job_origin": origin}
        queued, _ = (  # the second one is of another lane
            instance.add_run(DagsterRun("__ASSET_JOB", **launched, asset_selection=some)).run_id
            for some in selected
        )
        assert said() == [], "it has just been launched"
        waits = f"run {queued[:8]}, which was started by hand, waits in Dagster's queue for "
        (line,) = said(60)
        assert line.startswith(waits)
        assert line.endswith("by a pool or a tag of dagster.yaml")
        person = run(instance, Turn.BY_HAND)
        for_turn, line = said(60)
        assert for_turn == (
            f"run {person[:8]}, which was started by hand, waits for its turn:"
            f" run {copying[:8]} copies a window"
        )
        assert line.endswith(
            ": dagster.yaml allows 3 runs at a time, and 3 of them copy lanes; raise"
            " `max_concurrent_runs`"
        )
        turns.tag(instance, LANE, copying, Turn.PAUSED)
        assert len(said(60)) == 1, "the session lets the person's run copy"


def test_which_sessions_count_for_the_planner(instance) -> None:
    """A queued one does; one that checks does not, and gives up if a later one checks, too."""

    def sessions(lane: Lane = LANE) -> list[str]:
        return [found.run_id for found in turns.sessions(instance, lane)]

    queued = run(instance, None, DagsterRunStatus.NOT_STARTED)
    run(instance, None, DagsterRunStatus.FAILURE)
    assert (sessions(), sessions(OTHER)) == ([queued], [])
    instance.delete_run(queued)
    first = run(instance, Turn.CHECKING)
    copying = run(instance, Turn.COPYING)
    assert sessions() == [copying]
    assert not turns.other_runs(instance, LANE, first).later_checks
    later = run(instance, Turn.CHECKING)
    assert sessions() == [copying]
    assert turns.other_runs(instance, LANE, first).later_checks
    assert not turns.other_runs(instance, LANE, later).later_checks

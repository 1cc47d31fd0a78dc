"""Who copies a lane: sessions, their successors, and runs by hand; and who has died."""

import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
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
from relay_pipelines.orchestration.turns import Place, Turn
from relay_pipelines.settings import WindowSettings
from tests.support.independent import until
from tests.support.sleeping_clock import SleepingClock
from tests.support.tables import titled

LANE = Lane("m", "main", WindowSettings(), ("a",))
OTHER = Lane("m", "other", WindowSettings(), ("b",))
JOB = dg.job(name=naming.lane_job("m", "main"))(lambda: None)
BY_HAND = dg.job(name="mirror_once")(lambda: None)


def run(
    instance: DagsterInstance,
    turn: str | None,
    status: DagsterRunStatus = DagsterRunStatus.STARTED,
    lane: Lane = LANE,
    job: dg.JobDefinition = JOB,
) -> str:
    tags = naming.tags(lane.mirror, lane.name) | (
        {} if turn is None else {naming.TAG_TURN: str(turn)}
    )
    return instance.create_run_for_job(job, status=status, tags=tags).run_id


def by_hand(instance: DagsterInstance, turn: str) -> str:
    return run(instance, turn, job=BY_HAND)


def say(instance: DagsterInstance, run_id: str, turn: str) -> None:
    instance.add_run_tags(run_id, {naming.TAG_TURN: str(turn)})


class Waiting:
    """A run that only waits for its turn: for so many looks at most."""

    def __init__(self, instance: DagsterInstance, run_id: str, most: int = 1) -> None:
        self.said: list[str] = []
        self.clock = SleepingClock()
        self._instance, self._run_id = instance, run_id
        context: Any = SimpleNamespace(
            instance=instance,
            run_id=run_id,
            job_name=instance.get_run_by_id(run_id).job_name,  # type: ignore[union-attr]
            log=SimpleNamespace(info=lambda line, *what: self.said.append(line % what)),
        )
        self.place = Place(context, LANE, self.clock, lambda: len(self.clock.waits) >= most)

    @property
    def turn(self) -> str:
        found = self._instance.get_run_by_id(self._run_id)
        assert found is not None
        return "is over" if self.place.is_over else found.tags[naming.TAG_TURN]


def created(instance: DagsterInstance, runs: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Create runs, from the oldest on; return the id of the own one, and what the others do."""
    jobs = {"session": JOB, "by hand": BY_HAND}
    own, turns_of_others = "", {}
    for line in runs:
        who, _, turn = line.partition(": ")
        found = run(instance, None, job=jobs[who.removeprefix("own ")])
        if who.startswith("own "):
            own = found
        elif turn:
            turns_of_others[found] = turn
    return own, turns_of_others


SESSION_WAITS, PERSON_WAITS = "waits since 1", "waits since 0"
BEGINNING = [
    # title, the runs from the oldest to the newest, what the own one does that has just come
    ("alone", ["own session"], "copies"),
    ("nobody waits for a run that starts", ["session: starts", "own session"], "copies"),
    ("... for one without a tag yet", ["session", "own by hand"], "copies"),
    ("... for one that checks", ["session: checks", "own session"], "copies"),
    ("a successor", ["session: copies", "own session"], SESSION_WAITS),
    ("... of one that waits, and ends", ["session: waits since 1", "own session"], "copies"),
    ("of three sessions, the second", ["own session", "session: waits since 1"], "is over"),
    ("a session that has started slowly", ["own session", "session: copies"], "is over"),
    ("a person waits for a session", ["session: copies", "own by hand"], PERSON_WAITS),
    ("... for a later session", ["own by hand", "session: copies"], PERSON_WAITS),
    ("... for no session that waits", ["session: waits since 1", "own by hand"], "copies"),
    ("... for no further windows", ["by hand: waits since 2", "own by hand"], "copies"),
    ("a session waits for a person", ["own session", "by hand: copies"], SESSION_WAITS),
    ("... who also waits", ["own session", "by hand: waits since 0"], SESSION_WAITS),
    ("... for no further windows", ["by hand: waits since 2", "own session"], "copies"),
    ("of two people, the first", ["own by hand", "by hand: waits since 0"], "copies"),
    ("of two people, the second", ["by hand: waits since 0", "own by hand"], PERSON_WAITS),
]


@titled("runs, expected", BEGINNING)
def test_who_begins_to_copy(instance, runs, expected):
    own, others = created(instance, runs)
    for other, turn in others.items():
        say(instance, other, turn)
    waiting = Waiting(instance, own)
    assert waiting.place.wait() == (expected == "copies")
    assert waiting.turn == expected


BETWEEN = [
    # title, the runs from the oldest to the newest, what the own one does after a window
    ("alone", ["own session"], "copies"),
    ("a successor starts Spark", ["own session", "session: starts"], "copies"),
    ("a successor is ready", ["own session", "session: waits since 1"], "is over"),
    ("a session that is over", ["session: waits since 1", "own session"], "copies"),
    ("a person comes", ["own session", "by hand: waits since 0"], "waits since 2"),
    ("a backfill has more windows", ["by hand: waits since 4", "own session"], "waits since 5"),
    ("a backfill lets a session copy", ["own by hand", "session: waits since 1"], "waits since 2"),
    ("... a person", ["own by hand", "by hand: waits since 0"], "waits since 2"),
    ("... another backfill", ["by hand: waits since 7", "own by hand"], "waits since 8"),
    ("a run that is repeated has its tags", ["own session", "session: copies"], "copies"),
]


@titled("runs, expected", BETWEEN)
def test_who_goes_on_to_copy(instance, runs, expected):
    own, others = created(instance, runs)
    waiting = Waiting(instance, own)
    assert waiting.place.wait()
    assert waiting.turn == "copies"
    for other, turn in others.items():
        say(instance, other, turn)
    assert waiting.place.is_awaited() == (expected != "copies")
    assert waiting.turn in {"copies", "is over"}, "before it has ended its window"
    assert waiting.place.wait() == (expected == "copies")
    assert waiting.turn == expected


def test_a_person_reads_for_whom_a_run_waits(instance):
    """Once, while the same one copies."""
    session, own = run(instance, "copies"), by_hand(instance, "starts")
    waiting = Waiting(instance, own, 3)
    assert not waiting.place.wait()
    assert waiting.said == [f"waiting for its turn in m/main: run {session[:8]} copies a window"]


@pytest.mark.parametrize("status", ["NOT_STARTED", "SUCCESS", "CANCELED"])
def test_runs_that_do_not_copy_now_do_not_count(instance, status):
    run(instance, Turn.COPIES, DagsterRunStatus[status])
    run(instance, Turn.COPIES, lane=OTHER)
    assert Waiting(instance, run(instance, None)).place.wait()


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
    dead, own = run(instance, Turn.COPIES), by_hand(instance, Turn.STARTS)
    assert watch(instance, clock, 200, "alive") == []
    assert not Waiting(instance, own).place.wait()
    instance.add_run_tags(own, {naming.TAG_TURN: Turn.CHECKS.value})
    assert watch(instance, clock, 80) == []
    instance.add_run_tags(own, {naming.TAG_HEARTBEAT: "the last one"})
    revived = Waiting(instance, dead)
    assert watch(instance, clock, 20) == [dead]
    assert instance.get_run_by_id(dead).status is DagsterRunStatus.FAILURE
    assert not revived.place.wait(), "another run goes on with its window"
    assert revived.turn == "is over"
    assert Waiting(instance, own).place.wait()
    instance.wipe()
    run(instance, Turn.COPIES)
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


def test_a_backfill_waits_once_for_a_session_that_died_while_it_waited(instance, monkeypatch):
    """Until its heartbeat has been the same for long; nobody else has to give it up."""
    own, session = by_hand(instance, Turn.STARTS), run(instance, Turn.STARTS)
    waiting = Waiting(instance, own, 1_000)
    monkeypatch.setattr(heartbeat, "watcher", Watcher(waiting.clock))
    assert waiting.place.wait()
    say(instance, session, SESSION_WAITS)
    assert waiting.place.is_awaited()
    assert waiting.place.wait()
    assert heartbeat.DEAD_SECONDS < len(waiting.clock.waits) < heartbeat.DEAD_SECONDS + 3
    assert not waiting.place.is_awaited()


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
    own = run(instance, Turn.COPIES)
    context: Any = SimpleNamespace(instance=instance, run_id=own, log=None, run_tags={})
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
        own, path = run(instance, Turn.COPIES), storage._conn_string
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

    queued = run(instance, Turn.STARTS, DagsterRunStatus.NOT_STARTED)
    assert said() == f"run {queued[:8]} is about to start"
    instance.delete_run(queued)
    copying = run(instance, Turn.COPIES)
    run(instance, SESSION_WAITS)
    assert said() == f"run {copying[:8]} copies"
    say(instance, copying, "waits since 2")
    assert said() == f"run {copying[:8]} waits for its turn"
    say(instance, copying, Turn.COPIES)
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

        copying = run(instance, Turn.COPIES)
        run(instance, Turn.CHECKS)
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
        person = by_hand(instance, PERSON_WAITS)
        for_turn, line = said(60)
        assert for_turn == (
            f"run {person[:8]}, which was started by hand, waits for its turn:"
            f" run {copying[:8]} copies a window"
        )
        assert line.endswith(
            ": dagster.yaml allows 3 runs at a time, and 3 of them copy lanes; raise"
            " `max_concurrent_runs`"
        )
        say(instance, copying, "waits since 2")
        assert len(said(60)) == 1, "the session lets the person's run copy"


def test_which_sessions_count_for_the_planner(instance) -> None:
    """A queued one does; one that checks does not, and gives up if a later one checks, too."""

    def sessions(lane: Lane = LANE) -> list[str]:
        return [found.run_id for found in turns.sessions(instance, lane)]

    queued = run(instance, None, DagsterRunStatus.NOT_STARTED)
    run(instance, None, DagsterRunStatus.FAILURE)
    assert (sessions(), sessions(OTHER)) == ([queued], [])
    instance.delete_run(queued)
    first = run(instance, Turn.CHECKS)
    copying = run(instance, Turn.COPIES)
    assert sessions() == [copying]
    assert not Waiting(instance, first).place.has_later_checks()
    later = run(instance, Turn.CHECKS)
    assert sessions() == [copying]
    assert Waiting(instance, first).place.has_later_checks()
    assert not Waiting(instance, later).place.has_later_checks()


def test_nobody_waits_for_a_run_that_starts_with_the_tags_of_another(
    instance: DagsterInstance,
) -> None:
    """Dagster gives a run that repeats another one the tags of that."""
    for tag in ("copies", "waits since 0"):
        run(instance, tag, DagsterRunStatus.STARTING, job=BY_HAND)
    assert Waiting(instance, run(instance, None), 5).place.wait()

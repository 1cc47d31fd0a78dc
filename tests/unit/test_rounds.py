"""Runs that go on: rounds and what lasts, signals, and a relay.yaml that changes."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay_pipelines import errors
from relay_pipelines.cli import main, rounds_command
from relay_pipelines.cli.rounds_command import LastingProblems, Problem, problem, problems
from relay_pipelines.invocation import Invocation, followed_mirrors
from relay_pipelines.model import OffsetRange, Outcome, Status, TopicPartition
from relay_pipelines.plan.run_ends import RunEnd
from relay_pipelines.run.other_writers import OtherWriters
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.session import StopSignal
from tests.support.config_files import MINIMAL
from tests.support.sleeping_clock import SleepingClock
from tests.support.tables import titled
from tests.support.wordings import Wordings

FIRST, SECOND = (TopicPartition("orders", partition) for partition in range(2))


class Rounds:
    """The lines that rounds with these problems print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.clock = SleepingClock()
        self.lasting = LastingProblems("m: ", self.clock)
        self._capsys = capsys

    def next(self, *found: Problem, complete: bool = True) -> list[str]:
        self.clock.sleep(10)
        self.lasting.update(found, complete=complete)
        return self._capsys.readouterr().err.splitlines()


@pytest.fixture
def rounds(capsys: pytest.CaptureFixture[str]) -> Rounds:
    return Rounds(capsys)


@pytest.mark.parametrize("text", ["0", "0s", "-1s", "999ms", "soon", "10", "", "1 week", "1e3s"])
def test_a_wrong_duration_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before relay.yaml is read, with the value and an example: exit code 2."""
    for command in (["run"], ["status", "--watch"]):
        assert main(["-c", "none.yaml", *command, f"--every={text}"]) == 2
        assert capsys.readouterr().err == (
            f"error: --every {text!r} is not a duration of 1s or more; write it as 1s, 10s or 5m\n"
        )
    for accepted in ("1s", "1000ms", "2.5s", "10S", "5m", "1h"):
        assert main(["-c", "none.yaml", "run", "--every", accepted]) == 2
        assert capsys.readouterr().err.startswith("error: none.yaml does not exist; ")


def test_problems_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong file ends it at once; errors and failed ranges are problems."""
    path = tmp_path / "relay.yaml"
    path.write_text("mirrors: {m: {source: 3}}")
    assert main(["-c", str(path), "run", "--every", "1s"]) == 2
    assert "mirrors.m.source: expected a mapping" in capsys.readouterr().err
    here = OffsetRange(FIRST, 0, 5)
    outcomes = [
        Outcome(here, FIRST, Status.FAILED, 0, error_kind="SourceError", error="away"),
        Outcome(here, FIRST, Status.DONE, 5),
    ]
    error = errors.RelayError("the Spark job failed")
    result = RunResult("m", "r", {}, outcomes, [error])
    assert list(problems(result)) == [
        Problem(errors.RelayError, None, "the Spark job failed"),
        Problem(errors.SourceError, FIRST, "away"),
    ]


def lost(at: TopicPartition, end: int) -> Problem:
    return problem(errors.RetentionPassedError(f"retention took [0, {end})", topic_partition=at))


def denied(topic: str, lag: int) -> Problem:
    return problem(errors.PermissionDeniedError(f"topic '{topic}' may not be read, {lag} are left"))


DOWN = problem(errors.SourceError("broker a cannot be reached", remedy="check that it runs"))
LATE = Problem(errors.SourceError, FIRST, "orders-0: no answer within 2 s")
AWAY = problem(errors.DestinationError("broker b cannot be reached"))
HUNG = [problem(errors.SourceError("no leader", topic_partition=at)) for at in (FIRST, SECOND)]
FENCED = [Problem(errors.FencedError, at, f"{at}: another run") for at in (FIRST, SECOND)]
DENIED, MORE, OTHER = denied("a1", 3), denied("a1", 4), denied("a2", 3)
SPARK, LOOP = problem(errors.RelayError("Spark failed")), problem(errors.ConfigError("a loop"))
JOB_FAILS = [*FENCED, SPARK]
MANY = [lost(TopicPartition(f"t{number}", 0), 5) for number in range(500)]
FOUND: dict[str, list[list[Problem]]] = {  # what each round finds
    "an outage, whatever it looks like": [[], [DOWN, LATE], [LATE], [], [], [DOWN], []],
    "nothing is over while the destination is away": [[lost(FIRST, 5)], [AWAY], [lost(FIRST, 5)]],
    "what fails after an outage has a round to recover": [[DOWN, *HUNG[:1]], *[HUNG[:1]] * 2, []],
    "many at once are few lines": [MANY, MANY[:3]],
    "losses by topic-partition; the offsets in them may grow": [
        [lost(FIRST, 5)],
        [lost(FIRST, 9), lost(SECOND, 5)],
        [lost(FIRST, 9)],
    ],
    "what no outage explains, while another one lasts": [HUNG[:1], HUNG, HUNG[1:], []],
    "errors of topics by their names, not by numbers": [[DENIED], [MORE, OTHER], [OTHER]],
    "a fight is one line; a job that fails hides nothing": [FENCED, JOB_FAILS, [*JOB_FAILS, LOOP]],
}


@pytest.mark.parametrize("title", FOUND)
def test_problems_are_told_apart(rounds: Rounds, wordings: Wordings, title: str) -> None:
    """Each has a line when it begins, and one when it is over; the worst is the exit code."""
    said = []
    for number, found in enumerate(FOUND[title], 1):
        lines = rounds.next(*found, complete=AWAY not in found)
        said += [f"round {number}, exit code {rounds.lasting.exit_code}", *lines]
    wordings.check(f"rounds: {title}", "\n".join(said))


class Others(SleepingClock):
    """A daemon's look at the checkpoints of one topic-partition, every second."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(now)
        self.said: list[str] = []
        self.writers = OtherWriters({"own"}.__contains__, 1.0, self, self.said.append, "ours")
        self.ends: dict[str, RunEnd] = {}

    def looks(self, run_id: str, committed: float, *, count: int = 1, news: bool = True) -> str:
        checkpoint = SimpleNamespace(run_id=run_id, committed_at_ms=1000 * committed)
        snapshot: Any = SimpleNamespace(
            checkpoints={FIRST: checkpoint},
            targets={FIRST.topic},
            state=SimpleNamespace(run_ends=self.ends),
            news=[FIRST] * news,
        )
        self.said.clear()
        for _ in range(count):
            self.now += 1
            assert self.writers.look(snapshot) is self.writers.waits
        return "".join(self.said)


def test_a_daemon_waits_for_another_one_that_moves() -> None:
    """It says so once, and takes over when that one has ended, or is idle for long enough."""
    others = Others()
    assert others.looks("own", 0) == ""
    who = "run other, which this deployment does not know, "
    assert others.looks("other", 2).startswith(f"{who}copies this mirror")
    for second in range(3, 100):
        assert others.looks("other", second) == ""
        assert others.writers.waits
    assert others.looks("other", 99, count=1000, news=False) == "", "nothing to copy"
    assert others.looks("other", 99, count=29) == ""
    assert others.writers.waits
    assert "run other has copied nothing for " in others.looks("other", 99, count=18)
    assert not others.writers.waits
    assert others.looks("other", 99) == ""
    assert others.looks("own", 1200) == ""
    others = Others()
    assert "this one waits" in others.looks("other", 2)
    others.ends = {"other": RunEnd("theirs", 3_000, goes_on=False)}
    assert others.looks("other", 2) == "the other deployment has ended: taking over"
    assert not others.writers.waits
    assert "this one waits" in others.looks("other", 5), "it had not ended"


THEIRS = RunEnd("theirs", 999_000, goes_on=True)
LAST, BEFORE = (RunEnd("theirs", at_ms, goes_on=False) for at_ms in (999_500, 900_000))
OURS = RunEnd("ours", 999_000, goes_on=True)
NOBODY: dict[str, RunEnd] = {}
STARTS = [  # title, who has committed last, when, the ends of runs that are known
    ("it was killed, or is at work", "other", 999, NOBODY, True),
    ("it has ended long ago", "other", 900, NOBODY, False),
    ("a decision of a person's command", "driver", 999, NOBODY, False),
    ("it has ended", "other", 999, {"other": replace(THEIRS, goes_on=False)}, False),
    ("it has committed since", "other", 999, {"other": replace(LAST, at_ms=998_999)}, True),
    ("another run follows", "other", 999, {"other": THEIRS}, True),
    ("... which has ended", "other", 999, {"other": THEIRS, "last": LAST}, False),
    ("... after a start of its deployment", "other", 999, {"other": THEIRS, "x": BEFORE}, True),
    ("a person has deleted it", "other", 999, {"other": OURS}, False),
]


@titled("run_id, committed, ends, waits", STARTS)
def test_whom_a_daemon_that_starts_waits_for(
    run_id: str, committed: int, ends: dict[str, RunEnd], *, waits: bool
) -> None:
    """The clean end of a deployment is known; without it, only time tells that nobody copies."""
    others = Others(1000.0)
    others.ends = ends
    assert bool(others.looks(run_id, committed)) == others.writers.waits == waits
    others = Others(1000.0)
    others.looks("other", 990)
    assert "taking over" in others.looks("other", 990, count=36), "the time before counts"


def test_who_waits_says_that_it_is_superseded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for a person, and would be silent after the other one has ended; losses can wait."""
    held = errors.PolicySupersededError("another configuration decides", topic_partition=FIRST)
    lost = errors.RetentionPassedError("gone", topic_partition=SECOND)
    snapshot = SimpleNamespace(held={FIRST: held, SECOND: lost})
    monkeypatch.setattr(OtherWriters, "prepared", lambda *_: (snapshot, True))
    unused: Any = None
    rounds = rounds_command._Rounds(unused, {}, None, unused, None, 1.0, as_json=False)
    for _ in range(2):
        rounds._copy_mirror("m", unused, print)
    assert capsys.readouterr().err == f"error: m: {held}\n"


SIGNALS = [signal.SIGINT, signal.SIGTERM]


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_at_once_or_is_noted(number: signal.Signals) -> None:
    """It is remembered, so that no other mirror starts; while a run copies, it stops by itself."""
    stop = StopSignal()
    with stop.heard():
        assert not stop()
        with pytest.raises(KeyboardInterrupt):
            send(number)
        assert stop()
    stop = StopSignal()
    with stop.heard(), stop.deferred():
        send(number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            send(number)


def test_a_shielded_signal_is_raised_after_the_block() -> None:
    """Even a second one does not interrupt; it replaces the error that it causes."""
    stop = StopSignal()
    finished = False
    with stop.heard(), stop.deferred():
        with pytest.raises(KeyboardInterrupt), stop.shielded():  # noqa: PT012 - raised at its end
            send(signal.SIGINT)
            send(signal.SIGTERM)
            finished = True
        assert finished
        with pytest.raises(KeyboardInterrupt), stop.shielded():
            raise AssertionError("the block must not run after a signal")
    stop = StopSignal()
    with stop.heard(), pytest.raises(KeyboardInterrupt), stop.shielded():  # noqa: PT012
        send(signal.SIGTERM)
        raise errors.RelayError("Spark does not start")


def test_a_signal_is_raised_on_the_thread_that_was_shielded() -> None:
    """Spark starts on a thread of its own; the main thread, which hears the signal, goes on."""
    stop = StopSignal()
    begun, heard = threading.Event(), threading.Event()

    def start() -> None:
        with stop.shielded():
            begun.set()
            heard.wait(10)

    with stop.heard(), stop.deferred(), ThreadPoolExecutor(1) as executor:
        starting = executor.submit(start)
        begun.wait(10)
        send(signal.SIGINT)
        send(signal.SIGINT)
        heard.set()
        assert isinstance(starting.exception(10), KeyboardInterrupt)
        assert signal.getsignal(signal.SIGINT) == stop._receive


def test_handlers_are_replaced_and_restored() -> None:
    """A new SparkContext sets its own; a process that calls the command line keeps its own."""
    stop = StopSignal()
    with stop.heard(), stop.deferred():
        with stop.shielded():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        send(signal.SIGINT)
        assert stop()
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignal().heard():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


TEXT = MINIMAL + "    topics: {allow: [orders]}\n"


def test_the_mirrors_follow_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be used changes nothing, and is said once until it can be used again."""
    path = tmp_path / "relay.yaml"
    path.write_text(TEXT)
    followed = followed_mirrors(Invocation(path), ["orders"])
    before = followed.part
    assert not followed.changed()
    for unusable in ("mirrors: {", TEXT.replace("  orders:", "  other:")):
        path.write_text(unusable)
        assert [followed.changed(), followed.changed()] == [False, False]
        assert followed.part == before
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("relay.yaml has changed, and its last version stays in use: ")
    path.write_text(TEXT.replace("[orders]", "[paid]"))
    assert [followed.changed(), followed.changed()] == [True, False]
    assert followed.part["orders"].topics.allow == ("paid",)
    assert capsys.readouterr().err == ""

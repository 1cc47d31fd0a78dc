"""Whether runs that copy are alive: their heartbeats, and those who watch them.

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

import dagster as dg

from relay_pipelines.model import LedgerEntry
from relay_pipelines.orchestration import run_tags
from relay_pipelines.orchestration.naming import TAG_HEARTBEAT
from relay_pipelines.output.formatting import format_time, seconds
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.spark.session import kill_jvm

DEAD_SECONDS = 90.0
"""How long somebody must have watched the same heartbeat before he gives the run up."""
GIVEN_UP = f"it was silent for {seconds(DEAD_SECONDS)}: its process has died, or hangs"
"""Why a run was reported as failed by another one."""
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
    run_tags.add(context.instance, context.run_id, {TAG_HEARTBEAT: str(of(context.run_id))})


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

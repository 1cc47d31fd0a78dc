"""What holds for the runs of a lane, in whatever order they look at each other."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, cycle, islice
from threading import Semaphore
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.turns import Place, Turn
from relay_pipelines.settings import WindowSettings

WINDOWS = {"session": 3, "by hand": 1, "backfill": 3}
MOST_STEPS = 1_000
LANES = count()


class Run(Place):
    """A run that goes on when the test says so: up to its next tag, look, or window."""

    def __init__(self, instance: DagsterInstance, lane: Lane, kind: str, others: "Runs") -> None:
        job = naming.lane_job("m", lane.name) if kind == "session" else "mirror_once"
        run_id = instance.add_run(DagsterRun(job, status=DagsterRunStatus.STARTED)).run_id
        log = SimpleNamespace(info=lambda *_: None)
        context: Any = SimpleNamespace(instance=instance, run_id=run_id, job_name=job, log=log)
        clock: Any = SimpleNamespace(sleep=lambda _: None)
        super().__init__(context, lane, clock, lambda: False)
        self.kind, self.copied, self.others = kind, 0, others
        self.has_ended = self.is_stopped = False
        self._may_go, self._rests = Semaphore(0), Semaphore(0)

    def say(self, turn: str) -> None:
        if turn != self._turn:
            self.pause()
            super().say(turn)
            self.others.has_said(self, turn)

    def _is_first(self, since: int) -> bool:
        self.pause()
        return super()._is_first(since)

    def pause(self) -> None:
        self._rests.release()
        self._may_go.acquire()
        assert not self.is_stopped

    def go_on(self) -> None:
        self._may_go.release()
        self._rests.acquire()

    def body(self) -> None:
        """Copy its windows, as the jobs do."""
        self._may_go.acquire()
        try:
            if self.kind == "session":
                self.say(Turn.STARTS)
            for number in range(WINDOWS[self.kind]):
                if number:
                    self.is_awaited()
                if not self.wait():
                    break
                self.others.copies(self)
                self.copied += 1
        finally:
            self._context.instance.delete_run(self._context.run_id)
            self.has_ended = True
            self.others.overtaken.pop(self, None)
            self._rests.release()

    def stop(self) -> None:
        self.is_stopped = True
        self._may_go.release()


class Runs(list[Run]):
    """Of the runs of a lane one copies at a time, and none copies on while another one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.copying: list[Run] = []
        self.overtaken: dict[Run, Counter[Run]] = {}

    def has_said(self, run: Run, turn: str) -> None:
        if turn.startswith(Turn.WAITS):
            self.overtaken.setdefault(run, Counter())

    def copies(self, run: Run) -> None:
        self.overtaken.pop(run, None)
        for other, windows in self.overtaken.items():
            windows[run] += 1
            # it was about to, or begins before all sessions
            assert windows[run] == 1 or self.is_replaced(other, run)
        self.copying.append(run)
        run.pause()
        assert self.copying == [run]
        self.copying.remove(run)

    def is_replaced(self, run: Run, by: Run) -> bool:
        return run.kind == by.kind == "session" and self.index(run) < self.index(by)


@pytest.fixture(scope="module")
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as found:
        yield found


@given(
    st.lists(st.sampled_from([*WINDOWS]), min_size=2, max_size=4),
    st.lists(st.integers(0, 3), max_size=100),
)
@settings(max_examples=25)  # each is a database, and hundreds of queries
@example(["by hand", "by hand"], [0, 1] * 10)
@example(["session", "session", "session"], [0, 1, 2] * 10)
@example(["session", "backfill", "by hand", "backfill"], [0] * 10)
def test_one_run_copies_at_a_time_and_none_waits_for_ever(instance, kinds, choices):
    """Two that begin at once, successors, and backfills: who waits is overtaken by no run twice."""
    lane = Lane("m", f"lane{next(LANES)}", WindowSettings(), ("a",))
    runs = Runs()
    runs += [Run(instance, lane, kind, runs) for kind in kinds]
    with ThreadPoolExecutor(len(runs)) as threads:
        bodies = [threads.submit(run.body) for run in runs]
        for choice in islice(chain(choices, cycle(range(len(runs)))), MOST_STEPS):
            if left := [run for run in runs if not run.has_ended]:
                left[choice % len(left)].go_on()
        for run in runs:
            run.stop()
        for body in bodies:
            body.result()
    last = [run for run in runs if run.kind == "session"][-1:]
    for run in runs:
        assert run.copied == WINDOWS[run.kind] or (run.kind == "session" and run not in last)

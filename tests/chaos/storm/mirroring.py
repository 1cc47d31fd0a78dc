"""Runs a mirror in a loop, like repeated `relay run --stop-at-end`, also after failed runs."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.errors import DivergedUpstreamError, RelayError
from relay_pipelines.model import LedgerEntry, Outcome, Status
from relay_pipelines.prepare.owners import set_quarantine
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import run
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.chaos.storm.faults import UPSTREAMS

NAME = "storm"
_RUN_SECONDS = 240.0
_REST_SECONDS = 1.5
"""The pause between two runs, so that the next run has enough records to be disturbed."""


@dataclass
class Tally:
    """The results of all runs.

    Args:
        failures: the number of failed runs, by error class.
        refusals: errors that need a person's decision; there must be none.
        moved: runs that failed over to the other upstream.
        switched: runs that began with another upstream than the last one ended with.
        split: ranges with committed records of more than one upstream.
    """

    runs: int = 0
    failed: int = 0
    records: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    refusals: list[str] = field(default_factory=list)
    moved: int = 0
    switched: int = 0
    split: int = 0

    @property
    def failovers(self) -> int:
        """How often the mirror continued with another upstream."""
        return self.moved + self.switched


class Watch:
    """Observes runs: the upstream that is read, whether a run copies now, and committed records."""

    def __init__(self, tally: Tally, tick: Callable[[], None]) -> None:
        self.copying = threading.Event()
        self.upstream = UPSTREAMS[0]
        self._tally = tally
        self._tick = tick

    def begin(self, plan: RunPlan) -> None:
        """Called when the plan of a run is known."""
        self.upstream = plan.snapshot.upstream.name
        if plan.planned:
            self.copying.set()

    def submitted(self, application: str) -> None:
        """Never called: Spark runs on this machine."""

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Called twice a second."""
        self._tally.records += sum(entry.records for entry in entries)
        self._tick()

    def end(self, _result: RunResult) -> None:
        """Called at the end of a run."""
        self.copying.clear()


class Mirroring:
    """Runs a mirror on this thread and counts the results.

    Args:
        session: returns the Spark session.
        say: receives a line for each failure, without immediate repetitions.
        tick: called at least twice a second while a run copies, and after every run.
    """

    def __init__(
        self,
        mirror: Mirror,
        session: Callable[[], Any],
        clock: Clock,
        say: Callable[[str], None],
        tick: Callable[[], None],
    ) -> None:
        self._mirror = mirror
        self._session = session
        self._clock = clock
        self._say = say
        self._tick = tick
        self._upstream = ""  # the upstream that the last run ended with
        self._said: list[str] = []
        self.tally = Tally()
        self.watch = Watch(self.tally, tick)

    def run_once(self) -> bool:
        """Pause, then copy everything; return whether nothing was left to copy."""
        self._clock.sleep(_REST_SECONDS)
        deadline = self._clock.monotonic() + _RUN_SECONDS
        self.tally.runs += 1
        try:
            planned = run_plan.plan(
                read_clusters.take_snapshot(Sides(NAME, self._mirror, self._clock))
            )
            result = run(
                planned,
                self._session,
                [self.watch],
                stop=lambda: self._clock.monotonic() > deadline,
            )
        except RelayError as error:
            self._failed([error], [])
            return False
        finally:
            self._tick()
        if result.interrupted:
            assert self._clock.monotonic() <= deadline, (
                f"a run did not end within {_RUN_SECONDS:g} s"
            )
            raise KeyboardInterrupt
        self._follow(planned, result)
        if result.exit_code:
            self._failed(result.errors, result.outcomes)
        return not planned.ranges and not result.exit_code

    def release_upstreams(self) -> None:
        """Release the upstreams from quarantine, like a person who believes that they are equal."""
        sides = Sides(NAME, self._mirror, self._clock)
        # the destination may be away for the moment
        with suppress(RelayError), sides.destination() as client:
            set_quarantine(client, dict.fromkeys(UPSTREAMS, ""))

    def begin(self, within_seconds: float) -> None:
        """Run until something was copied, so that Spark is warm."""
        deadline = self._clock.monotonic() + within_seconds
        while not self.tally.records:
            assert self._clock.monotonic() < deadline, (
                f"nothing was copied within {within_seconds:g} s"
            )
            self.run_once()

    def settle(self, within_seconds: float) -> None:
        """Run until nothing is left to copy."""
        deadline = self._clock.monotonic() + within_seconds
        while not self.run_once():
            # records at the end of a copy may lie where the upstreams differed, of one topic each
            # way
            self.release_upstreams()
            assert self._clock.monotonic() < deadline, (
                f"runs without faults still find records after {within_seconds:g} s"
            )

    def _follow(self, planned: RunPlan, result: RunResult) -> None:
        first = planned.snapshot.upstream.name
        if self._upstream not in {"", first}:
            self.tally.switched += 1
        self._upstream = first
        upstreams = [
            [segment.upstream for segment in outcome.segments] for outcome in result.outcomes
        ]
        self.tally.split += sum(len(set(names)) > 1 for names in upstreams)
        others = [names[-1] for names in upstreams if set(names) - {first}]
        if others:
            self.tally.moved += 1
            self._upstream = others[-1]

    def _failed(self, errors: Sequence[RelayError], outcomes: Sequence[Outcome]) -> None:
        self.tally.failed += 1
        bad = [outcome for outcome in outcomes if outcome.status is not Status.DONE]
        lines = [str(error) for error in errors] + [outcome.error for outcome in bad]
        codes = [error.exit_code for error in errors] + [outcome.exit_code for outcome in bad]
        told = [type(error).__name__ for error in errors] + [outcome.error_kind for outcome in bad]
        self.tally.failures.update(set(told))
        self.tally.refusals += [
            line
            for line, code, kind in zip(lines, codes, told, strict=True)
            # where the upstreams differ, a range waits for the one that it was copied from
            if code > 1 and kind != DivergedUpstreamError.__name__
        ]
        if lines != self._said:
            self._said = lines
            for line in dict.fromkeys(lines):
                self._say(f"run {self.tally.runs} failed: {line}")

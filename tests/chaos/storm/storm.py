"""A chaos run from the first broker to the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relay_pipelines.console.words import count
from relay_pipelines.copy import checkpoint, ledger
from relay_pipelines.copy.clock import Clock
from relay_pipelines.model import TopicPartition
from tests.chaos import compare
from tests.chaos.storm.beside import Beside
from tests.chaos.storm.faults import NODES, story
from tests.chaos.storm.mirroring import NAME, Mirroring, Tally
from tests.chaos.storm.report import Report
from tests.chaos.storm.scene import Scene, started
from tests.chaos.storm.striker import Striker
from tests.chaos.storm.verdict import judge, longest_stall
from tests.chaos.storm.writer import TOPICS, Writer
from tests.independent import Record

_PER_SECOND = 250
_TELL_SECONDS = 10.0
_BEGIN_SECONDS = 120.0
_FLUSH_SECONDS = 120.0
_SETTLE_SECONDS = 240.0


def storm(
    minutes: float, seed: int, session: Callable[[], Any], folder: Path, clock: Clock, tell: Callable[[str], None]
) -> Report:
    """Strike for so many minutes, let it settle, compare.

    Args:
        session: gives the Spark session.
        folder: for the brokers' data and logs, which are left there.
        tell: takes a line now and then.

    Raises:
        AssertionError: the chaos run itself went wrong, or something did not end in time.
    """
    with started(folder) as scene:
        told = _Told(clock, tell)
        writer = Writer({name: scene.clusters[name].cluster() for name in NODES}, seed, _PER_SECOND, clock)

        def tick() -> None:
            told.now_and_then(lambda: f"{count(writer.count)} records written, {_progress(mirroring.tally)}")

        mirroring = Mirroring(scene.mirror(), session, clock, told.line, tick)
        striker = Striker(scene.brokers, story(seed), mirroring.watch, told.line)
        with Beside("writer", writer.write_until) as writing:
            mirroring.begin(_BEGIN_SECONDS)
            began = clock.monotonic()
            with Beside("striker", striker.strike_until) as striking:
                while clock.monotonic() < began + minutes * 60:
                    mirroring.run_once()
                    writing.check()
                    striking.check()
                told.line("the storm is over")
                while not striking.ends():
                    mirroring.run_once()
            writing.end()
        writer.flush(_FLUSH_SECONDS)
        mirroring.settle(_SETTLE_SECONDS)
        seconds = clock.monotonic() - began
        told.line("all is copied; source and destination are compared")
        return _report(
            scene, scene.source(writer.written), seed=seed, seconds=seconds, struck=striker.kinds(), tally=mirroring.tally
        )


def _report(scene: Scene, source: Mapping[TopicPartition, list[Record]], **known: Any) -> Report:
    return Report(
        **known,
        stall=longest_stall(compare.ledger(scene.destination, NAME), source),
        verdicts={at: judge(records, scene.arrived(at)) for at, records in source.items()},
        ledger=scene.ledger_complaint(source),
        held_back=compare.held_back(scene.destination, [*TOPICS, checkpoint.TOPIC, ledger.TOPIC]),
    )


def _progress(tally: Tally) -> str:
    return f"{count(tally.records)} copied in {tally.runs} runs, {tally.failed} failed, {tally.failovers} failovers"


class _Told:
    """Lines with the time since the beginning."""

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._began = self._last = clock.monotonic()

    def line(self, text: str) -> None:
        """Tell something."""
        self._tell(f"{self._clock.monotonic() - self._began:6.1f} s  {text}")

    def now_and_then(self, text: Callable[[], str]) -> None:
        """Tell how far it has got, every few seconds."""
        if self._clock.monotonic() >= self._last + _TELL_SECONDS:
            self._last = self._clock.monotonic()
            self.line(text())

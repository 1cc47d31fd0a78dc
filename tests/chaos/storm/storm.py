"""A chaos run from the first broker to the report."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from relay_pipelines.console.formatting import count
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.state import checkpoint, ledger
from tests.chaos import compare
from tests.chaos.storm import record_policies
from tests.chaos.storm.beside import Beside
from tests.chaos.storm.faults import NODES, Kind, story
from tests.chaos.storm.mirroring import NAME, Mirroring, Tally
from tests.chaos.storm.record_policies import BOOKED
from tests.chaos.storm.report import Report
from tests.chaos.storm.scene import Scene, started
from tests.chaos.storm.striker import Striker
from tests.chaos.storm.tasks import Tasks
from tests.chaos.storm.transactions import Transactions
from tests.chaos.storm.verdict import judge, longest_stall
from tests.chaos.storm.workers import Workers
from tests.chaos.storm.writer import TOPICS, Writer
from tests.support.independent import Record

_PER_SECOND = 150
_TELL_SECONDS = 10.0
_BEGIN_SECONDS = 120.0
_FLUSH_SECONDS = 120.0
_SETTLE_SECONDS = 240.0
_TASKS_PER_RUN = 20
"""Tasks are killed twice a second, a run under Spark takes some seconds."""


def storm(
    minutes: float,
    kills: int,
    seed: int,
    session: Callable[[], Any],
    folder: Path,
    clock: Clock,
    tell: Callable[[str], None],
) -> Report:
    """Strike, let it settle, compare.

    Args:
        minutes: how long to strike at least.
        kills: how many processes to kill or freeze at least.
        session: gives the Spark session.
        folder: for the brokers' data and logs, which are left there.
        tell: takes a line now and then.

    Raises:
        AssertionError: the chaos run itself went wrong, or something did not end in time.
    """
    with started(folder) as scene, ExitStack() as stack:
        told = _Told(clock, tell)
        nodes = {name: scene.clusters[name].cluster() for name in NODES}
        writer, transactions = (
            Writer(nodes, seed, _PER_SECOND, clock),
            Transactions(nodes, seed, clock.now_ms()),
        )
        mirror, workers, stormy = scene.mirror(), Workers(seed), threading.Event()

        def tick() -> None:
            if stormy.is_set() and mirroring.watch.copying.is_set():
                workers.strike()
            told.now_and_then(
                lambda: (
                    f"{count(writer.count)} records written, {_progress(mirroring.tally)}, {count(struck().total())} strikes"
                )
            )

        mirroring = Mirroring(mirror, session, clock, told.line, tick)
        tasks = Tasks(mirror, seed, mirroring.watch, told.line)
        striker = Striker(scene.brokers, story(seed), mirroring.watch, told.line)

        def struck() -> Counter[str]:
            brokers = {f"broker {kind}": striker.kinds()[kind] for kind in Kind}
            return Counter(
                {"task killed": tasks.killed, "Spark worker killed": workers.killed, **brokers}
            )

        writing = [stack.enter_context(Beside("writer", writer.write_until))]
        writing += [
            stack.enter_context(Beside(f"bookings {node}", partial(transactions.write_until, node)))
            for node in NODES
        ]
        mirroring.begin(_BEGIN_SECONDS)
        stormy.set()
        began = clock.monotonic()
        with Beside("striker", striker.strike_until) as striking:
            while clock.monotonic() < began + minutes * 60 or struck().total() < kills:
                for _ in range(_TASKS_PER_RUN):
                    tasks.run_once()
                    tick()
                mirroring.run_once()
                for one in (*writing, striking):
                    one.check()
            stormy.clear()
            told.line("the storm is over")
            while not striking.ends():
                mirroring.run_once()
        for one in writing:
            one.end()
        writer.flush(_FLUSH_SECONDS)
        mirroring.settle(_SETTLE_SECONDS)
        seconds = clock.monotonic() - began
        told.line("all is copied; source and destination are compared")
        source = scene.source(writer.written)
        return _report(
            scene, source, seed=seed, seconds=seconds, struck=struck(), tally=mirroring.tally
        )


def _report(
    scene: Scene, source: Mapping[TopicPartition, list[tuple[int, Record]]], **known: Any
) -> Report:
    expected = {
        at: [
            made
            for _, one in records
            if (made := record_policies.expected(at.topic, one)) is not None
        ]
        for at, records in source.items()
    }
    timed = {at: dict(records) for at, records in source.items() if at.topic != BOOKED}
    return Report(
        **known,
        stall=longest_stall(compare.ledger(scene.destination, NAME), timed),
        verdicts={at: judge(records, scene.arrived(at)) for at, records in expected.items()},
        ledger=scene.ledger_complaint(expected),
        held_back=compare.held_back(
            scene.destination, [*TOPICS, BOOKED, checkpoint.TOPIC, ledger.TOPIC]
        ),
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

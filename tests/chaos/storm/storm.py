"""A chaos run, from the start of the brokers to the report."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from relay_pipelines.output.formatting import count
from relay_pipelines.protocol.clock import Clock
from tests.chaos import compare
from tests.chaos.storm import record_policies
from tests.chaos.storm.background import BackgroundThread
from tests.chaos.storm.environment import Environment, start_environment
from tests.chaos.storm.fault_injector import FaultInjector
from tests.chaos.storm.faults import UPSTREAMS, Kind, scenario
from tests.chaos.storm.mirroring import NAME, Mirroring, Tally
from tests.chaos.storm.record_policies import BOOKED
from tests.chaos.storm.report import Report
from tests.chaos.storm.tasks import Tasks
from tests.chaos.storm.transactions import Shifts, Transactions
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
"""Two tasks are killed per second; a run under Spark takes some seconds."""


def storm(
    minutes: float,
    kills: int,
    seed: int,
    session: Callable[[], Any],
    folder: Path,
    clock: Clock,
    tell: Callable[[str], None],
) -> Report:
    """Inject faults, wait until everything is copied, and compare source and destination.

    Args:
        minutes: the least duration of the faults.
        kills: the least number of processes to kill or freeze.
        session: returns the Spark session.
        folder: the folder for data and logs of the brokers, which stay there.
        tell: receives progress lines.

    Raises:
        AssertionError: the chaos run itself failed, or something did not end in time.
    """
    with start_environment(folder) as environment, ExitStack() as stack:
        told = _Told(clock, tell)
        upstreams = {name: environment.clusters[name].cluster() for name in UPSTREAMS}
        writer, transactions = (
            Writer(upstreams, seed, _PER_SECOND, clock),
            Transactions(upstreams, seed, clock.now_ms()),
        )
        shifts = Shifts(upstreams, transactions.ending)
        mirror, workers, stormy = environment.mirror(), Workers(seed), threading.Event()

        def tick() -> None:
            if stormy.is_set() and mirroring.watch.copying.is_set():
                workers.strike()
            told.now_and_then(
                lambda: (
                    f"{count(writer.count)} records written, {_progress(mirroring.tally)},"
                    f" {count(struck().total())} faults"
                )
            )

        mirroring = Mirroring(mirror, session, clock, told.line, tick)
        tasks = Tasks(mirror, seed, mirroring.watch, told.line)
        injector = FaultInjector(
            environment.brokers, scenario(seed), mirroring.watch, told.line, transactions.ending
        )

        def struck() -> Counter[str]:
            brokers = {f"broker {kind}": injector.kinds()[kind] for kind in Kind}
            return Counter(
                {"task killed": tasks.killed, "Spark worker killed": workers.killed, **brokers}
            )

        writing = [stack.enter_context(BackgroundThread("writer", writer.write_until))]
        writing += [
            stack.enter_context(
                BackgroundThread(f"{what} {upstream}", partial(writes.write_until, upstream))
            )
            for what, writes in (("bookings", transactions), ("shifts", shifts))
            for upstream in UPSTREAMS
        ]
        mirroring.begin(_BEGIN_SECONDS)
        stormy.set()
        began = clock.monotonic()
        with BackgroundThread("injector", injector.inject_until) as striking:
            while clock.monotonic() < began + minutes * 60 or struck().total() < kills:
                for _ in range(_TASKS_PER_RUN):
                    tasks.run_once()
                    tick()
                mirroring.run_once()
                mirroring.release_upstreams()
                for thread in (*writing, striking):
                    thread.check()
            stormy.clear()
            told.line("no more faults")
            while not striking.has_stopped():
                mirroring.run_once()
        for thread in writing:
            thread.stop()
        writer.flush(_FLUSH_SECONDS)
        mirroring.release_upstreams()
        mirroring.settle(_SETTLE_SECONDS)
        seconds = clock.monotonic() - began
        told.line("everything is copied; comparing source and destination")
        source = environment.source(writer.written)
        return _report(
            environment, source, seed=seed, seconds=seconds, struck=struck(), tally=mirroring.tally
        )


def _report(
    environment: Environment,
    source: Mapping[TopicPartition, list[tuple[int, Record]]],
    **known: Any,
) -> Report:
    expected = {
        at: [
            made
            for _, record in records
            if (made := record_policies.expected(at.topic, record)) is not None
        ]
        for at, records in source.items()
    }
    timed = {at: dict(records) for at, records in source.items() if at.topic != BOOKED}
    return Report(
        **known,
        stall=longest_stall(compare.ledger(environment.destination, NAME), timed),
        verdicts={at: judge(records, environment.arrived(at)) for at, records in expected.items()},
        ledger=environment.ledger_complaint(expected),
        held_back=compare.held_back(
            environment.destination, [*TOPICS, BOOKED, checkpoint.TOPIC, ledger_topic.TOPIC]
        ),
    )


def _progress(tally: Tally) -> str:
    runs = f"{tally.runs} runs, {tally.failed} failed, {tally.failovers} failovers"
    return f"{count(tally.records)} copied in {runs}"


class _Told:
    """Progress lines with the time since the start."""

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._began = self._last = clock.monotonic()

    def line(self, text: str) -> None:
        self._tell(f"{self._clock.monotonic() - self._began:6.1f} s  {text}")

    def now_and_then(self, text: Callable[[], str]) -> None:
        """Print the progress, every few seconds."""
        if self._clock.monotonic() >= self._last + _TELL_SECONDS:
            self._last = self._clock.monotonic()
            self.line(text())

"""A soak: `dagster dev` mirrors a topic in windows of 10 s while its processes are killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from threading import Event

from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.errors import RelayError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import TopicPartition
from tests.chaos import compare
from tests.chaos.storm.background import BackgroundThread
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.soak.faults import Planned, scenario, strike
from tests.orchestration.soak.limits import KEEP
from tests.orchestration.soak.report import Report
from tests.orchestration.soak.sampling import Deployment, Sample, Sampler
from tests.support.independent import create, records_of, until

WINDOW = {"every": "10s", "session": "5m", "keep": KEEP}
_TOPIC = "soak"
_RECORDS = 20  # per second and topic-partition
_ARRIVAL_SECONDS = 300.0
_STARTS = 3
_CHECK_SECONDS = 5.0
_UNHEALTHY_SECONDS = 30.0
# so that the brokers' cleaner is seen at work within the hour
_ROLLED = {"segment.ms": "60000"}
# a broker that is frozen for longer is fenced, see docs/chaos.md
_BROKER = {"broker.session.timeout.ms": "30000"}


def soak(minutes: float, seed: int, folder: Path, tell: Callable[[str], None]) -> Report:
    """Run, and compare source and destination at the end.

    In the first half, everything is killed. In the second half, Dagster's servers live on, so that
    what they accumulate shows.

    Args:
        folder: for the data of the brokers and of Dagster, which stay there.
        tell: receives progress lines.
    """
    with ExitStack() as stack:
        source, destination = (
            stack.enter_context(LocalCluster(name, folder=folder / name, config=_BROKER))
            for name in ("source", "destination")
        )
        dev = DevEnvironment(folder, source, destination, _TOPIC)
        dev.configure(window=WINDOW)
        create(
            destination.cluster(),
            checkpoint.TOPIC,
            checkpoint.PARTITIONS,
            checkpoint.CONFIGS | _ROLLED,
        )
        operator = Operator(dev)
        stack.callback(operator.stop)
        sampler = Sampler(dev, destination.folder)
        sampling = stack.enter_context(BackgroundThread("sampler", sampler.sample_until))
        writing = stack.enter_context(BackgroundThread("writer", _writer(dev)))
        storm = _Storm(seed, operator, sampler, source, destination, tell)

        def check() -> None:
            for thread in (sampling, writing):
                thread.check()

        storm.run(minutes * 60, check)
        writing.stop()
        records = sum(
            len(records_of(dev.source, TopicPartition(dev.topic, at.partition)))
            for at in dev.copies
        )
        tell(f"{records:,} records written; waiting for the last one")
        _wait_for(records, operator, dev)
        sampling.stop()
        tell("everything has arrived; comparing")
        operator.stop()
        return Report(
            seconds=sampler.seconds,
            seed=seed,
            samples=sampler.samples,
            faults=storm.struck,
            starts=operator.starts,
            records=records,
            stall=longest_stall(sampler.samples),
            complaints=complaints(dev, source, destination, operator.deployment),
            left=[path.stat().st_size for path in (folder / "tmp").rglob("*") if path.is_file()],
        )


class Operator:
    """Keeps `dagster dev` running, as an operator's service manager does.

    It also starts it again if it has not had its definitions for half a minute: `dagster dev` does
    not replace a code server that was killed.
    """

    def __init__(self, dev: DevEnvironment) -> None:
        self.deployment = Deployment(dev)
        self.starts = 0
        self._dev = dev
        self._port = free_ports(1)[0]
        self._stack = ExitStack()
        self._dagster: Dagster | None = None
        self._answered = 0.0
        (dev.folder / "tmp").mkdir()

    def keep_running(self) -> bool:
        """Start it if it does not run, with nothing left of the last one; return whether it did."""
        if self._dagster and self._dagster.process.poll() is None and self._serves(self._dagster):
            return False
        self.stop()
        self.deployment.kill()
        for attempt in range(1, _STARTS + 1):
            self.starts += 1
            try:
                self._dagster = self._stack.enter_context(self._running())
            except RelayError:
                if attempt == _STARTS:
                    raise
            else:
                break
        self._answered = time.monotonic()
        return True

    def stop(self) -> None:
        """End it."""
        self._dagster = None
        self._stack.close()

    def _serves(self, dagster: Dagster) -> bool:
        now = time.monotonic()
        if now >= self._answered + _CHECK_SECONDS:
            with suppress(RelayError, OSError):
                dagster.sensors()
                self._answered = now
        return now < self._answered + _UNHEALTHY_SECONDS

    def _running(self) -> AbstractContextManager[Dagster]:
        temporary = str(self._dev.folder / "tmp")
        variables = {"TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary}
        return running(self._dev.folder, self._port, variables)


class _Storm:
    """Injects the faults, and keeps Dagster running."""

    def __init__(
        self,
        seed: int,
        operator: Operator,
        sampler: Sampler,
        source: LocalCluster,
        destination: LocalCluster,
        tell: Callable[[str], None],
    ) -> None:
        self.struck: list[tuple[float, str]] = []
        self._operator = operator
        self._sampler = sampler
        self._brokers = source.brokers[0], destination.brokers[0]
        self._tell = tell
        self._decks = {servers: scenario(seed, servers=servers) for servers in (True, False)}

    def run(self, seconds: float, check: Callable[[], None]) -> None:
        """Inject faults for that long."""
        while True:
            planned = next(self._decks[self._sampler.seconds < seconds / 2])
            until_seconds = min(self._sampler.seconds + planned.quiet_seconds, seconds)
            while self._sampler.seconds < until_seconds:
                check()
                if self._operator.keep_running():
                    self._say("`dagster dev` started")
                time.sleep(1)
            if until_seconds == seconds:
                return
            self._strike(planned)

    def _strike(self, planned: Planned) -> None:
        source, destination = self._brokers
        at = self._sampler.seconds
        if strike(planned, self._operator.deployment, source, destination, time.sleep):
            self.struck.append((at, str(planned.fault)))
            self._say(f"{planned.fault}")

    def _say(self, what: str) -> None:
        windows = self._sampler.samples[-1].windows if self._sampler.samples else 0
        self._tell(f"{self._sampler.seconds:6.0f} s  {windows} windows  {what}")


def _writer(dev: DevEnvironment) -> Callable[[Event], None]:
    def write(over: Event) -> None:
        while not over.wait(1.0):
            with suppress(AssertionError):  # the broker is down for long; some may be written
                dev.produce(1, _RECORDS)

    return write


def _wait_for(records: int, operator: Operator, dev: DevEnvironment) -> None:
    def arrived() -> bool:
        operator.keep_running()
        return dev.copied() >= records

    with suppress(AssertionError):  # what is missing is reported below
        until(arrived, "the last record", _ARRIVAL_SECONDS, 2.0)


def longest_stall(samples: list[Sample]) -> float:
    """The longest time in seconds in which nothing was copied, from the first record on."""
    grown = [
        after.seconds
        for before, after in pairwise(samples)
        if after.copied_bytes > before.copied_bytes
    ]
    return max((after - before for before, after in pairwise(grown)), default=0.0)


def complaints(
    dev: DevEnvironment,
    source: LocalCluster,
    destination: LocalCluster,
    deployment: Deployment,
) -> list[str]:
    """What is wrong with the copy, the ledger, or what Dagster left; empty if nothing is."""
    partitions = [(dev.topic, at.partition) for at in dev.copies]
    ends = compare.ends(source, partitions)
    found = []
    checks: list[Callable[[], object]] = [
        dev.assert_equal,
        lambda: compare.assert_ledger_covers(
            destination,
            dev.name,
            ends,
            {at: len(records_of(source.cluster(), TopicPartition(*at))) for at in partitions},
        ),
    ]
    for check in checks:
        try:
            check()
        except Exception as error:  # noqa: BLE001 - the report says it
            found.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    found += compare.held_back(
        destination, [dev.copies[0].topic, checkpoint.TOPIC, ledger_topic.TOPIC]
    )
    with suppress(AssertionError):
        until(lambda: not list(deployment.processes()), "the end of all processes", 20.0, 1.0)
    found += [f"{role} is left: {process}" for role, process in deployment.processes()]
    return found

"""A soak: `dagster dev` mirrors topics in windows of 10 s while all kinds of things happen."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random

from relay_pipelines.ledger import checkpoint
from relay_pipelines.local_kafka import LocalCluster
from tests.chaos.storm.background import BackgroundThread
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.soak.events import LIMIT_SECONDS, STEADY, Mirror, Seen, happen
from tests.orchestration.soak.faults import OF_SERVERS, Fault, Planned, Strike, scenario, strike
from tests.orchestration.soak.judging import complaints
from tests.orchestration.soak.operator import Operator
from tests.orchestration.soak.report import Report
from tests.orchestration.soak.sampling import Sample, Sampler
from tests.orchestration.soak.topics import seconds_until_copied, writer
from tests.support.independent import create, records_of, until

_LONG_SECONDS = 1800.0
"""A shorter soak has shorter pauses, and kills no servers: each of them costs it minutes."""
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
        dev = DevEnvironment(folder, source, destination, STEADY)
        rolled = checkpoint.CONFIGS | _ROLLED
        create(destination.cluster(), checkpoint.TOPIC, checkpoint.PARTITIONS, rolled)
        (folder / "second").mkdir()
        operators = Operator(folder), Operator(folder / "second")
        for operator in operators:
            stack.callback(operator.stop)
        sampler = Sampler(dev, destination.folder)
        mirror = Mirror(dev, source, destination, *operators, sampler, Random(seed))
        sampling = stack.enter_context(BackgroundThread("sampler", sampler.sample_until))
        writing = stack.enter_context(BackgroundThread("writer", writer(mirror.topics)))
        storm = _Storm(seed, mirror, tell)

        def check() -> None:
            for thread in (sampling, writing):
                thread.check()

        storm.run(minutes * 60, check)
        writing.stop()
        topics = mirror.topics.values()
        tell("all is written; waiting for the last records")
        missing = _wait_for_all(mirror)
        sampling.stop()
        tell("comparing")
        copies = [at for topic in topics for at in topic.copies]
        for operator in operators:
            operator.stop()
        deployments = [operator.deployment for operator in operators]
        return Report(
            seconds=sampler.seconds,
            seed=seed,
            samples=sampler.samples,
            strikes=storm.strikes,
            starts=mirror.operator.starts,
            records=sum(len(records_of(dev.destination, at)) for at in copies),
            stall=longest_stall(sampler.samples),
            complaints=[
                *storm.complaints,
                *missing,
                *complaints(dev.name, topics, source, destination, deployments),
            ],
            left=[path.stat().st_size for path in (folder / "tmp").rglob("*") if path.is_file()],
        )


class _Storm:
    """Injects faults and events, and keeps Dagster running; complains of what is not seen."""

    def __init__(self, seed: int, mirror: Mirror, tell: Callable[[str], None]) -> None:
        self.strikes: list[Strike] = []
        self.complaints: list[str] = []
        self._mirror = mirror
        self._brokers = mirror.source.brokers[0], mirror.destination.brokers[0]
        self._tell = tell
        self._scenario = scenario(seed)

    def run(self, seconds: float, check: Callable[[], None]) -> None:
        """Inject for that long, and until all is as it was before the last one."""
        sampler, share = self._mirror.sampler, min(1.0, seconds / _LONG_SECONDS)
        servers_until = seconds / 2 if seconds >= _LONG_SECONDS else 0.0
        self._settle("the start", check)
        for planned in self._scenario:
            if planned.what in OF_SERVERS and sampler.seconds >= servers_until:
                continue
            end = min(sampler.seconds + planned.quiet_seconds * share, seconds)
            while sampler.seconds < end:
                check()
                self._keep_running()
                time.sleep(1)
            self._settle(f"`dagster dev` after {self._last}", check)
            if sampler.seconds >= seconds:
                return
            self._strike(planned)

    @property
    def _last(self) -> str:
        return self.strikes[-1].what if self.strikes else "its start"

    def _strike(self, planned: Planned) -> None:
        mirror, began = self._mirror, self._mirror.sampler.seconds
        self._say(planned.what)
        try:
            if isinstance(planned.what, Fault):
                seen = self._fault(planned.what, planned.hold_seconds)
            else:
                seen = happen(planned.what, mirror)
        except Exception as error:  # noqa: BLE001 - the report says it
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            self.complaints.append(f"{planned.what} at {began:.0f} s: {why}")
            self._say(self.complaints[-1])
            mirror.configure()
            return
        if seen is not None:
            self.strikes.append(Strike(began, str(planned.what), seen.went_on, seen.what))
            self._say(f"went on after {seen.went_on:.0f} s  {seen.what}")

    def _fault(self, fault: Fault, hold_seconds: float) -> Seen | None:
        operator = self._mirror.operator
        if not strike(fault, hold_seconds, operator.deployment, *self._brokers, time.sleep):
            return None
        return Seen(self._went_on(), "")

    def _went_on(self) -> float:
        """Wait until what is written from now on is copied; return the seconds."""
        steady = self._mirror.steady
        return seconds_until_copied(steady, LIMIT_SECONDS, meanwhile=self._keep_running)

    def _settle(self, what: str, check: Callable[[], None]) -> None:
        """Wait until Dagster serves and copies, also if it has just been started again."""
        operator = self._mirror.operator
        while True:
            check()
            starts = operator.starts
            until(self._serves, what, LIMIT_SECONDS, 1.0)
            self._went_on()
            if operator.starts == starts and operator.has_definitions():
                return

    def _serves(self) -> bool:
        self._keep_running()
        return self._mirror.operator.has_definitions()

    def _keep_running(self) -> None:
        if self._mirror.operator.keep_running():
            self._say("`dagster dev` started")

    def _say(self, what: str) -> None:
        sampler = self._mirror.sampler
        self._tell(f"{sampler.seconds:6.0f} s  {len(sampler.windows)} windows  {what}")


def _wait_for_all(mirror: Mirror) -> list[str]:
    """Wait until everything has arrived; return what has not."""
    found, keep_running = [], mirror.operator.keep_running
    for topic in mirror.topics.values():
        try:
            seconds_until_copied(topic, LIMIT_SECONDS, from_now=False, meanwhile=keep_running)
        except AssertionError as error:
            found.append(str(error))
    return found


def longest_stall(samples: list[Sample]) -> tuple[float, float]:
    """When nothing was copied for longest, from the first record on: from and until, in seconds."""
    grown = [
        after.seconds
        for before, after in pairwise(samples)
        if after.copied_bytes > before.copied_bytes
    ]
    return max(pairwise(grown), key=lambda stall: stall[1] - stall[0], default=(0.0, 0.0))

"""Groups move between two clusters that are mirrored to each other, while what copies is killed."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.output.formatting import count
from relay_pipelines.output.messages import Say
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from tests.chaos.groups import processes
from tests.chaos.groups.sides import (
    MOVING,
    OWN,
    SIDES,
    Sides,
    configure,
    copy_of,
    followed_at,
    mirror_from,
    other,
)
from tests.chaos.groups.verdict import Report, faults, verdicts
from tests.chaos.planned_copy import copy_planned
from tests.chaos.storm.background import BackgroundThread
from tests.chaos.storm.environment import LONG_SESSION
from tests.chaos.storm.fault_injector import recover, strike
from tests.chaos.storm.faults import Kind
from tests.copying import KEPT
from tests.support import independent
from tests.support.independent import until
from tests.support.moving_groups import process, transactions

_CONTEXT = get_context("forkserver")
# so that a process begins within milliseconds, and is killed at work
_CONTEXT.set_forkserver_preload([processes.__name__, "relay_pipelines.offsets.command"])
_LEAST_SECONDS, _MOST_SECONDS, _PATIENCE_SECONDS = 0.05, 0.8, 60.0
"""How long a process lives. The second grows until one ends well, or a busy machine lets none."""
_QUIET_SECONDS, _HOLD_SECONDS = (3.0, 12.0), (0.5, 4.0)
"""Between two faults of brokers, and of one."""
_REST_SECONDS = 0.4
_LEAST_RECORDS, _MOST_RECORDS = 1, 150
_TOLD_EVERY = 5
_NUMBERS = 50_000_000  # of records, for each side its own


class Storm:
    """Writers, processes that are killed, and groups; `say` gets progress lines."""

    def __init__(self, sides: Sides, seed: int, say: Say) -> None:
        self._sides = sides
        self._seed = seed
        self._say = say
        self._random = random.Random(seed)
        self._calm = {side: threading.Lock() for side in SIDES}
        self._committed: dict[str, list[bytes]] = {side: [] for side in SIDES}
        self._processed: dict[str, list[bytes]] = {
            group: [] for group in (MOVING, *map(followed_at, SIDES))
        }
        self.killed: Counter[str] = Counter()
        self.moves = 0

    def run(self, kills: int, minutes: float) -> Report:
        """Kill until there are so many kills, or the time is over; return what is true then."""
        deadline = time.monotonic() + minutes * 60
        writers = {side: self._writer(side) for side in SIDES}
        self._begin(writers)
        config = self._sides.config
        work: dict[str, Callable[[threading.Event], None]] = {
            f"writer {side}": partial(self._write, writers[side], side) for side in SIDES
        }
        work |= {
            f"copy {side}": self._killed_again_and_again("copy", processes.copy, config, side)
            for side in SIDES
        }
        work["follow"] = self._killed_again_and_again("follow", processes.follow_groups, config)
        work["brokers"] = self._disturb
        with ExitStack() as stack:
            threads = [stack.enter_context(BackgroundThread(*each)) for each in work.items()]
            at = itertools.cycle(SIDES)
            try:
                while self._goes_on(kills) and time.monotonic() < deadline:
                    self._process_and_move(next(at))
                    for thread in threads:
                        thread.check()
            except KeyboardInterrupt:
                self._say("interrupted: what was done so far is compared")
            for thread in threads:
                thread.stop()
        return self._report()

    def _goes_on(self, kills: int) -> bool:
        """Whether there were too few kills, or no way there and back, or no fault of a broker."""
        struck = any(self.killed[f"broker {kind}"] for kind in Kind)
        return self.killed.total() < kills or self.moves < len(SIDES) or not struck

    def _writer(self, side: str) -> Callable[[], list[bytes]]:
        independent.create(self._sides.at(side), OWN.topic, 1, KEPT)
        first = _NUMBERS * SIDES.index(side)
        calm = self._calm[side]
        return transactions(self._sides.at(side), OWN, self._seed, first, time.sleep, calm)

    def _begin(self, writers: Mapping[str, Callable[[], list[bytes]]]) -> None:
        """Let each side have something, and its copy: members subscribe to both."""
        for side, write in writers.items():
            while not self._committed[side]:
                self._committed[side] += write()
            # a topic without any copy is not known to be one: the other mirror would take it on
            self._copy_all(side)

    def _copy_all(self, side: str) -> None:
        name = mirror_from(side)
        settings = load(self._sides.config).mirror(name)
        until(lambda: copy_planned(name, settings, SystemClock())[1], f"all copies of {name}")

    def _write(self, write: Callable[[], list[bytes]], side: str, over: threading.Event) -> None:
        while not over.wait(self._random.uniform(0, _REST_SECONDS)):
            self._committed[side] += write()

    def _process_and_move(self, at: str) -> None:
        stays = self._random.choice(SIDES)
        least = self._random.randint(_LEAST_RECORDS, _MOST_RECORDS)
        self._process(followed_at(stays), stays, [OWN.topic], least)
        self._process(MOVING, at, [OWN.topic, copy_of(other(at)).topic], least)
        self._kill_until_done("move", processes.move, self._sides.config, other(at))
        self.moves += 1
        if self.moves % _TOLD_EVERY == 0:
            done = count(len(self._processed[MOVING]))
            self._say(f"{self.moves} moves, {done} records processed, killed: {dict(self.killed)}")

    def _process(self, group: str, at: str, topics: list[str], least: int) -> None:
        done = self._processed[group]
        process(self._sides.at(at), group, topics, done, least, self._calm[at])

    def _disturb(self, over: threading.Event) -> None:
        """Kill, freeze and restart the brokers of both sides, one after the other."""
        # what takes least time comes first, so that a short storm has it
        kinds = itertools.cycle((Kind.STOP, Kind.KILL, Kind.RESTART))
        while not over.wait(self._random.uniform(*_QUIET_SECONDS)):
            kind = next(kinds)
            side = self._random.choice(SIDES)
            (broker,) = self._sides.clusters[side].brokers
            with self._calm[side]:
                strike(broker, kind)
                over.wait(self._random.uniform(*_HOLD_SECONDS))
                recover([broker])
            self.killed[f"broker {kind}"] += 1

    def _killed_again_and_again(
        self, what: str, *work: object
    ) -> Callable[[threading.Event], None]:
        def kill(over: threading.Event) -> None:
            while not over.is_set():
                self._kill_until_done(what, *work, over=over)

        return kill

    def _kill_until_done(
        self, what: str, *work: object, over: threading.Event | None = None
    ) -> None:
        """Begin something again and again until it ends well, or all is over."""
        over = over or threading.Event()
        most = _MOST_SECONDS
        while not self._killed(what, most, *work) and not over.wait(_LEAST_SECONDS):
            most = min(most * 1.3, _PATIENCE_SECONDS)

    def _killed(self, what: str, most_seconds: float, *work: object) -> bool:
        """Let a process work until it is killed; return whether it has ended well before."""
        working: BaseProcess = _CONTEXT.Process(target=processes.ends_well, args=work, daemon=True)
        working.start()
        working.join(self._random.uniform(_LEAST_SECONDS, most_seconds))
        if working.is_alive():
            working.kill()
            self.killed[what] += 1
        working.join()
        return working.exitcode == 0

    def _report(self) -> Report:
        """Copy and follow to the end, process what is left, and compare."""
        for side in SIDES:
            self._copy_all(side)
        processes.follow_groups(self._sides.config)
        last = SIDES[self.moves % 2]
        self._process_rest(MOVING, last, [OWN.topic, copy_of(other(last)).topic], SIDES)
        for side in SIDES:
            self._process_rest(followed_at(side), other(side), [copy_of(side).topic], [side])
        found = verdicts(self._sides, self._committed, self._processed)
        return Report(self.killed, self.moves, found, faults(self._sides))

    def _process_rest(
        self, group: str, at: str, topics: list[str], of: tuple[str, ...] | list[str]
    ) -> None:
        left = sum(len(self._committed[side]) for side in of) - len(self._processed[group])
        with suppress(AssertionError):  # they do not come: the verdict says which
            self._process(group, at, topics, left)


def storm(kills: int, minutes: float, seed: int, folder: Path, say: Say) -> Report:
    """Run two brokers, mirrored to each other, for so many kills or minutes; say what is true."""
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(LocalCluster(name, folder=folder / name, config=LONG_SESSION))
            for name in SIDES
        }
        report = Storm(configure(clusters, folder), seed, say).run(kills, minutes)
    for line in report.lines():
        say(line)
    return report

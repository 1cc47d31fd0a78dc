"""Groups move back and forth while what copies, moves and follows is killed: see `--help`.

One topic gets transactions, some of them aborted. A process copies it, one follows a group, and one
moves another group; each is killed at a random moment, again and again. At the end, members of each
group have processed every committed record once, wherever they were. Runs add up: stop one at any
time, it still says what it has found, and the next one has another seed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.offsets.following import follow
from relay_pipelines.offsets.group_look import GroupLooker
from relay_pipelines.output.formatting import count
from relay_pipelines.output.messages import Say, line
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from tests.chaos.storm.background import BackgroundThread
from tests.copying import Mirror
from tests.support import commands
from tests.support.commands import configured, relay_here
from tests.support.independent import until
from tests.support.moving_groups import process, transactions

MOVING, FOLLOWED = "moving", "followed"
_TOPIC = "orders"
_CONTEXT = get_context("forkserver")
# so that a process begins within milliseconds, and is killed at work
_CONTEXT.set_forkserver_preload(["tests.copying", "relay_pipelines.offsets.command"])
_LEAST_SECONDS, _MOST_SECONDS = 0.05, 2.0
_PAUSE_SECONDS = 0.05
_RECORDS = 20
_TOLD_EVERY = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What members of a group have processed, beside what was committed at the source."""

    group: str
    records: int
    lost: int
    doubled: int
    foreign: int

    @property
    def good(self) -> bool:
        """Whether each record was processed once."""
        return not (self.lost or self.doubled or self.foreign)

    def __str__(self) -> str:
        return (
            f"{self.group}: {count(self.records)} records, {self.lost} lost,"
            f" {self.doubled} doubled, {self.foreign} foreign"
        )


@dataclass
class Groups:
    """A mirror, its groups, and the processes that are killed.

    Args:
        say: gets progress lines.
    """

    mirror: Mirror
    config: Path
    seed: int
    say: Say
    killed: Counter[str] = field(default_factory=Counter)
    moves: int = 0
    processed: dict[str, list[bytes]] = field(default_factory=lambda: {MOVING: [], FOLLOWED: []})

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(self, kills: int, minutes: float) -> list[Verdict]:
        """Kill until there are so many kills, or the time is over; return the verdicts."""
        deadline = time.monotonic() + minutes * 60
        work = {
            "writer": self._again_and_again(
                transactions(self.mirror.source, self.mirror.at, self.seed)
            ),
            "copies": self._killed_again_and_again("copy", copy, self.mirror),
            "follows": self._killed_again_and_again("follow", follow_groups, self.config),
        }
        with ExitStack() as stack:
            threads = [stack.enter_context(BackgroundThread(*each)) for each in work.items()]
            sides = self._sides()
            try:
                while self.killed.total() < kills and time.monotonic() < deadline:
                    self._process_and_move(*next(sides))
                    for thread in threads:
                        thread.check()
            except KeyboardInterrupt:
                self.say("interrupted: what was done so far is compared")
            for thread in threads:
                thread.stop()
        return self._verdicts()

    def _sides(self) -> Iterator[tuple[str, str]]:
        return itertools.cycle([("source", "destination"), ("destination", "source")])

    def _process_and_move(self, at: str, to: str) -> None:
        process(self.mirror.source, FOLLOWED, _TOPIC, self.processed[FOLLOWED], _RECORDS)
        process(getattr(self.mirror, at), MOVING, _TOPIC, self.processed[MOVING], _RECORDS)
        # longer and longer, or a busy machine would never let it end
        limits = (_MOST_SECONDS * 1.3**tries for tries in itertools.count())
        until(
            lambda: self._killed("move", next(limits), move, self.config, to),
            f"a position at the {to}",
        )
        self.moves += 1
        if self.moves % _TOLD_EVERY == 0:
            done = count(len(self.processed[MOVING]))
            self.say(f"{self.moves} moves, {done} records processed, killed: {dict(self.killed)}")

    def _verdicts(self) -> list[Verdict]:
        """Copy and follow to the end, process what is left, and compare."""
        self.mirror.copy()
        follow_once(self.config)
        expected = Counter(record.value or b"" for record in self.mirror.original())
        last = self.mirror.destination if self.moves % 2 else self.mirror.source
        found = []
        for group, cluster in ((MOVING, last), (FOLLOWED, self.mirror.destination)):
            done = self.processed[group]
            if left := expected.total() - len(done):
                with suppress(AssertionError):  # they do not come: the verdict says which
                    process(cluster, group, _TOPIC, done, left)
            arrived = Counter(done)
            twice = sum(number - 1 for value, number in arrived.items() if value in expected)
            lost, foreign = len(expected - arrived), len(set(arrived) - set(expected))
            found.append(Verdict(group, expected.total(), lost, twice, foreign))
        return found

    def _again_and_again(self, step: Callable[[], object]) -> Callable[[threading.Event], None]:
        def work(over: threading.Event) -> None:
            while not over.wait(_PAUSE_SECONDS):
                step()

        return work

    def _killed_again_and_again(
        self, what: str, target: Callable[..., None], *arguments: object
    ) -> Callable[[threading.Event], None]:
        return self._again_and_again(lambda: self._killed(what, _MOST_SECONDS, target, *arguments))

    def _killed(
        self, what: str, most_seconds: float, target: Callable[..., None], *arguments: object
    ) -> bool:
        """Let a process work until it is killed; return whether it has ended well before."""
        working: BaseProcess = _CONTEXT.Process(target=target, args=arguments, daemon=True)
        working.start()
        working.join(self._random.uniform(_LEAST_SECONDS, most_seconds))
        if working.is_alive():
            working.kill()
            self.killed[what] += 1
        working.join()
        return working.exitcode == 0


def copy(mirror: Mirror) -> None:
    """Copy what comes, for ever. In a process that is killed."""
    while True:
        mirror.try_copy()


def move(config: Path, to: str) -> None:
    """Move the group; exit code 0 if it is there. In a process that is killed."""
    done = relay_here(
        config, *("offsets", "apply", "--group", MOVING, "--to", to, "--execute", "--json")
    )
    sys.exit(done.returncode)


def follow_groups(config: Path) -> None:
    """Follow the group, for ever. In a process that is killed."""
    settings = load(config).mirror(_TOPIC)
    with closing(GroupLooker(_TOPIC, settings, SystemClock())) as looker:
        while True:
            follow(looker)


def follow_once(config: Path) -> None:
    """Bring the group up to date."""
    settings = load(config).mirror(_TOPIC)
    with closing(GroupLooker(_TOPIC, settings, SystemClock())) as looker:
        follow(looker)


def storm(kills: int, minutes: float, seed: int, folder: Path, say: Say) -> tuple[Groups, bool]:
    """Start two brokers and let groups move; return what was done, and whether all is well."""
    with ExitStack() as stack:
        source, destination = (
            stack.enter_context(LocalCluster(name, folder=folder / name)).cluster()
            for name in ("source", "destination")
        )
        mirror = Mirror(source, destination, _TOPIC, name=_TOPIC)
        section = commands.mirror(source, destination, _TOPIC, node=source.name)
        section["groups"] = {"allow": [FOLLOWED]}
        groups = Groups(mirror, configured(folder, {_TOPIC: section}), seed, say)
        verdicts = groups.run(kills, minutes)
    for verdict in verdicts:
        say(str(verdict))
    return groups, all(verdict.good for verdict in verdicts)


def main() -> int:
    """Return 0 if each record was processed once by each group."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.groups", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=100, help="how many processes to kill: 100")
    parser.add_argument("--minutes", type=float, default=30.0, help="the longest duration: 30")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="random")
    arguments = parser.parse_args()
    line(f"{arguments.kills} kills with --seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="relay-chaos-groups-") as folder:
        began = time.monotonic()
        groups, good = storm(arguments.kills, arguments.minutes, arguments.seed, Path(folder), line)
        line(
            f"{count(groups.killed.total())} killed {dict(groups.killed)}, {groups.moves} moves,"
            f" {(time.monotonic() - began) / 60:.0f} minutes: {'good' if good else 'NOT good'}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

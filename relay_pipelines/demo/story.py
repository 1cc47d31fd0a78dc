"""The demo from beginning to end. `main` is what `relay demo` calls."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from relay_pipelines.console.words import count, size, stdout
from relay_pipelines.copy.clock import Clock, SystemClock
from relay_pipelines.demo import reading, scene
from relay_pipelines.demo.command import Command
from relay_pipelines.demo.crash import check, run_and_kill
from relay_pipelines.demo.events import EVENTS as EVENTS_TOPIC
from relay_pipelines.demo.events import PARTITIONS, PAYMENTS, STATUS, Shop, orders_for
from relay_pipelines.demo.progress import Ledger, rate
from relay_pipelines.demo.proof import compare_all, identical
from relay_pipelines.demo.scene import TOPIC_PARTITIONS, Scene
from relay_pipelines.demo.telling import Teller, table
from relay_pipelines.demo.upstream import Arrivals, Upstream
from relay_pipelines.driver.result import INTERRUPTED
from relay_pipelines.embedded.jars import KAFKA_VERSION
from relay_pipelines.errors import RelayError

EVENTS = 360_000
_DIFFERENCE = 4
_OPENING = """\
Two identical upstream Kafka clusters are mirrored to a third, while events keep
arriving and the mirror is killed. Then all are read anew and compared."""
_TOPICS = {
    EVENTS_TOPIC: "JSON, headers, lz4",
    PAYMENTS: "JSON, null keys and tombstones, zstd",
    STATUS: "JSON, tombstones, compacted",
}
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RUN = ["run", "--stop-at-end"]
_NIGHT_MS = 4 * 3600 * 1000
_COMPACTION_SECONDS = 60
_POLL_SECONDS = 0.1


def main(keep: bool = False, events: int = EVENTS) -> int:  # noqa: FBT001, FBT002 - the option --keep
    """Mirror two upstream clusters to a destination, kill the mirror half-way, and prove that nothing is lost or doubled.

    Args:
        keep: leave the folder with relay.yaml, logs and data; the clusters are stopped all the same.
        events: how many there are before the mirror starts.

    Returns:
        0 if both sides are equal, 4 if they are not, 130 after Ctrl-C.

    Raises:
        RelayError: something could not be started, or failed.
    """
    clock = SystemClock()
    teller = Teller(stdout(), clock)
    try:
        with _signals(), scene.folder(keep=keep) as folder:
            try:
                return _tell(folder, events, teller, clock)
            finally:
                if keep:
                    teller.say(f"kept in {folder}: relay.yaml, what each command said (*.log), and every broker's data and log")
    except KeyboardInterrupt:
        teller.say("interrupted; nothing is left running", style="yellow")
        return INTERRUPTED


def _tell(folder: Path, events: int, teller: Teller, clock: Clock) -> int:
    teller.console.print(_OPENING, style="bold")
    with ExitStack() as open_until_the_end:
        title = f"Start three clusters of Kafka {KAFKA_VERSION}: upstream-a, upstream-b, destination"
        with teller.step(title), teller.busy("brokers start (the very first time Kafka is downloaded, about 100 MB)"):
            stage = open_until_the_end.enter_context(scene.clusters(folder))
            stage.create_topics()
        ledger = open_until_the_end.enter_context(Ledger(stage.destination, clock))
        return _Play(stage, events, ledger, teller, clock).perform()


class _Play:
    """What happens once the clusters serve."""

    def __init__(self, stage: Scene, events: int, ledger: Ledger, teller: Teller, clock: Clock) -> None:
        self._stage = stage
        self._events = events
        self._ledger = ledger
        self._teller = teller
        self._clock = clock
        self._per_second = max(1, events // 200)
        self._shop = Shop(orders_for(events))
        self._upstream = Upstream(stage.nodes)

    def perform(self) -> int:
        self._fill()
        self._compact()
        with Arrivals(self._shop, self._upstream, self._per_second, self._clock) as arrivals:
            killed = self._kill(arrivals)
            self._go_on(killed=killed)
        self._finish(arrivals.count)
        return self._prove()

    def _fill(self) -> None:
        with self._teller.step(f"Write {count(self._events)} events of a web shop to both upstream clusters"):
            with self._teller.busy("writing"):
                self._upstream.write(self._shop.history(self._events, self._clock.now_ms() - _NIGHT_MS))
                self._upstream.flush()
            for topic, what in _TOPICS.items():
                records = sum(number for at, number in self._upstream.written.items() if at.topic == topic)
                self._teller.say(f"{topic:<15} {PARTITIONS[topic]} partitions {count(records):>8} records  {what}")

    def _compact(self) -> None:
        """Let the cleaners of both nodes do all they can, so that the nodes stay identical while they are read."""
        with self._teller.step(f"Let Kafka compact {STATUS} on both"):
            compacted = [one for one in TOPIC_PARTITIONS if one.topic == STATUS]
            before = sum(self._upstream.written[one] for one in compacted)
            # of every order's states the last, and the first event of a new day: the newest segment is never compacted
            wanted = self._upstream.distinct_keys + len(compacted)
            self._upstream.write(self._shop.status(one.partition, self._clock.now_ms()) for one in compacted)
            self._upstream.flush()
            deadline = self._clock.monotonic() + _COMPACTION_SECONDS
            while any(sum(map(len, side.values())) != wanted for side in reading.read_all(self._stage.nodes, compacted)):
                if self._clock.monotonic() > deadline:
                    raise RelayError("Kafka's log cleaner has not finished in a minute", remedy="see broker.log with --keep")
                time.sleep(_POLL_SECONDS)
            removed = before + len(compacted) - wanted
            self._teller.say(f"{count(removed)} of {count(before)} records removed: only the last state of an order is kept")

    def _kill(self, arrivals: Arrivals) -> bool:
        with self._teller.step(f"Mirror, while {count(self._per_second)} more events a second arrive, and be killed"):
            # about 100 commits, however much is copied
            chunk = f"{max(16, min(1024, self._events // 1000))}KiB"
            self._teller.say("relay.yaml:")
            self._teller.quote(self._stage.write_relay_yaml(chunk).splitlines())
            return run_and_kill(self._stage, _RUN, self._ledger, arrivals, self._events, self._teller)

    def _go_on(self, *, killed: bool) -> None:
        title = "Start it again; events still arrive" if killed else "Run it again; events still arrive"
        with self._teller.step(title):
            self._run(_RUN, "run-again.log", "copying what is left")

    def _finish(self, arrived: int) -> None:
        with self._teller.step(f"No more events: {count(arrived)} arrived meanwhile; copy the rest"):
            self._upstream.flush()
            self._run(_RUN, "run-rest.log", "copying the rest")

    def _run(self, arguments: list[str], log: str, doing: str) -> None:
        command = Command(self._stage.folder, arguments, log, self._teller.quoted_width)
        try:
            self._teller.say(f"$ {command.shown}", style="cyan")
            with self._teller.busy(doing):
                check(command)
            self._teller.quote(command.output)
        finally:
            command.end()

    def _prove(self) -> int:
        with self._teller.step("Read all three clusters with another client and compare every record"):
            with self._teller.busy("reading and comparing"):
                *nodes, destination = reading.read_all(self._stage.clusters, TOPIC_PARTITIONS)
                verdicts, same_nodes = compare_all(nodes[0], destination), identical(*nodes)
                self._ledger.poll()
            self._teller.show(table(verdicts))
            records_per_second, bytes_per_second = rate(self._ledger.entries)
            self._teller.say(f"upstream nodes identical, offsets included: {'yes' if same_nodes else 'NO'}")
            self._teller.say(
                f"{count(records_per_second)} records/s, {size(bytes_per_second)}/s, while copying;"
                f" {count(len(self._ledger.entries))} commits"
            )
        equal = same_nodes and all(one.equal for one in verdicts)
        self._teller.conclude(equal=equal)
        return 0 if equal else _DIFFERENCE


@contextmanager
def _signals() -> Iterator[None]:
    """Make the end of the terminal and SIGTERM what Ctrl-C is, and let nothing disturb the cleaning up afterwards."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        for one in _INTERRUPTING:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in _INTERRUPTING}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)

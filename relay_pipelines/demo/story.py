"""The demo from beginning to end. `main` is what `relay demo` calls."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from relay_pipelines.console.formatting import count, size, stdout
from relay_pipelines.demo import history, reading, scene
from relay_pipelines.demo.command import Command
from relay_pipelines.demo.crash import run_and_kill
from relay_pipelines.demo.events import Shop, orders_for
from relay_pipelines.demo.failover import Death, run_and_kill_node
from relay_pipelines.demo.middle import insist
from relay_pipelines.demo.origin import shares, unexplained
from relay_pipelines.demo.progress import Ledger, rate
from relay_pipelines.demo.proof import compare_all, identical
from relay_pipelines.demo.scene import TOPIC_PARTITIONS, Scene
from relay_pipelines.demo.telling import Reporter, shares_table, table
from relay_pipelines.demo.upstream import Arrivals, Upstream
from relay_pipelines.embedded.jars import KAFKA_VERSION
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.run.result import INTERRUPTED

EVENTS = 240_000
_DIFFERENCE = 4
_OPENING = """\
Two identical upstream Kafka clusters are mirrored to a third, while events keep
arriving. First the mirror is killed, then the upstream node that it reads. In the
end all are read anew and compared."""
_FETCHES = """\
      fetch_max: {size}   # little at once: many fetches to die between
"""
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RUN = ["run", "--stop-at-end"]


def main(keep: bool = False, events: int = EVENTS) -> int:  # noqa: FBT001, FBT002 - the option --keep
    """Mirror two identical nodes to a destination, kill the mirror and a node, and prove that nothing is lost or doubled.

    Args:
        keep: leave the folder with relay.yaml, logs and data; the clusters are stopped all the
        same.
        events: how many there are before the mirror starts.

    Returns:
        0 if both sides are equal, 4 if they are not, 130 after Ctrl-C.

    Raises:
        RelayError: something could not be started, or failed.
    """
    clock = SystemClock()
    teller = Reporter(stdout(), clock)
    try:
        with _signals(), scene.folder(keep=keep) as folder:
            try:
                return _tell(folder, events, teller, clock)
            finally:
                if keep:
                    teller.say(
                        f"kept in {folder}: relay.yaml, what each command said (*.log), and every broker's data and log"
                    )
    except KeyboardInterrupt:
        teller.say("interrupted; nothing is left running", style="yellow")
        return INTERRUPTED


def _tell(folder: Path, events: int, teller: Reporter, clock: Clock) -> int:
    teller.console.print(_OPENING, style="bold")
    with ExitStack() as open_until_the_end:
        title = (
            f"Start three clusters of Kafka {KAFKA_VERSION}: upstream-a, upstream-b, destination"
        )
        with (
            teller.step(title),
            teller.busy("brokers start (the very first time Kafka is downloaded, about 100 MB)"),
        ):
            stage = open_until_the_end.enter_context(scene.clusters(folder))
            stage.create_topics()
        ledger = open_until_the_end.enter_context(Ledger(stage.destination, clock))
        return _Play(stage, events, ledger, teller, clock).perform()


class _Play:
    """What happens once the clusters serve."""

    def __init__(
        self, stage: Scene, events: int, ledger: Ledger, teller: Reporter, clock: Clock
    ) -> None:
        self._stage = stage
        self._events = events
        self._ledger = ledger
        self._teller = teller
        self._clock = clock
        self._per_second = max(1, events // 200)
        self._shop = Shop(orders_for(events))
        self._upstream = Upstream(stage.nodes)

    def perform(self) -> int:
        history.write(self._shop, self._upstream, self._events, self._teller, self._clock)
        history.compact(self._stage, self._shop, self._upstream, self._teller, self._clock)
        with Arrivals(self._shop, self._upstream, self._per_second, self._clock) as arrivals:
            killed = self._kill_mirror(arrivals)
            death = self._kill_node(arrivals, killed=killed)
        if death:
            self._revive(death.node)
        self._finish(arrivals.count)
        equal = self._prove()
        self._teller.conclude(equal=equal)
        return 0 if equal else _DIFFERENCE

    def _kill_mirror(self, arrivals: Arrivals) -> bool:
        with self._teller.step(
            f"Mirror, while {count(self._per_second)} more events a second arrive, and kill the mirror"
        ):
            # about 100 commits, however much is copied
            chunk = f"{max(16, min(1024, self._events // 1000))}KiB"
            self._teller.say("relay.yaml:")
            self._teller.quote(
                self._stage.write_relay_yaml(chunk, _FETCHES.format(size=chunk)).splitlines()
            )
            return insist(
                lambda number: run_and_kill(
                    _RUN, f"run-killed-{number}.log", self._stage, self._ledger, self._teller
                ),
                *(arrivals, self._events, self._teller),
            )

    def _kill_node(self, arrivals: Arrivals, *, killed: bool) -> Death | None:
        again = "Start it again" if killed else "Run it again"
        with self._teller.step(
            f"{again}; events still arrive; now kill the upstream node that it reads"
        ):
            play = self._stage, self._ledger, self._teller, self._clock
            return insist(
                lambda number: run_and_kill_node(_RUN, f"run-failover-{number}.log", *play),
                *(arrivals, self._events, self._teller),
            )

    def _revive(self, node: str) -> None:
        with (
            self._teller.step(f"Start {node} again: it gets the events that it missed"),
            self._teller.busy("the broker starts"),
        ):
            self._stage.start_again(node)
            self._upstream.flush()

    def _finish(self, arrived: int) -> None:
        with self._teller.step(
            f"No more events: {count(arrived)} arrived meanwhile; copy the rest"
        ):
            self._upstream.flush()
            command = Command(self._stage.folder, _RUN, "run-rest.log", self._teller.quoted_width)
            try:
                self._teller.say(f"$ {command.shown}", style="cyan")
                with self._teller.busy("copying the rest"):
                    command.check()
                self._teller.quote(command.output)
            finally:
                command.end()

    def _prove(self) -> bool:
        """Compare everything with everything; whether it is as it must be."""
        with self._teller.step(
            "Read all three clusters with another client and compare every record"
        ):
            with self._teller.busy("reading and comparing"):
                *nodes, destination = reading.read_all(self._stage.clusters, TOPIC_PARTITIONS)
                verdicts, same_nodes = compare_all(nodes[0], destination), identical(*nodes)
                self._ledger.poll()
            self._teller.show(table(verdicts))
            records_per_second, bytes_per_second = rate(self._ledger.entries)
            self._teller.say(
                f"upstream nodes identical, offsets included: {'yes' if same_nodes else 'NO'}"
            )
            self._teller.say(
                f"{count(records_per_second)} records/s, {size(bytes_per_second)}/s, while copying;"
                f" {count(len(self._ledger.entries))} commits"
            )
        with self._teller.step("Ask the ledger which records came from which node"):
            given = shares(self._ledger.entries)
            self._teller.show(shares_table(given))
            open_questions = unexplained(
                given, {at: len(content) for at, content in destination.items()}
            )
            says = f"NO: {', '.join(map(str, open_questions))}" if open_questions else "yes"
            self._teller.say(
                f"every offset once, and as many records as were read at the destination: {says}"
            )
        return same_nodes and not open_questions and all(one.equal for one in verdicts)


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

"""The demo from beginning to end. `main` is what `relay demo` calls."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines.console.formatting import count, plural, seconds, stdout
from relay_pipelines.demo.environment import (
    TOPIC_PARTITIONS,
    Environment,
    start_clusters,
    temporary_folder,
)
from relay_pipelines.demo.kill_timing import retry_until_killed, wait_for_middle
from relay_pipelines.demo.proof import compare_all, read_all
from relay_pipelines.demo.provenance import Ledger, shares, unexplained
from relay_pipelines.demo.relay_process import RelayProcess
from relay_pipelines.demo.reporter import Reporter, comparison_table, shares_table
from relay_pipelines.demo.shop import PARTITIONS, Arrivals, NodeWriters, Shop
from relay_pipelines.embedded.jars import KAFKA_VERSION
from relay_pipelines.errors import INTERRUPTED, DestinationError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock, SystemClock

EVENTS = 240_000
_DIFFERENCE = 4
_NIGHT_MS = 4 * 3600 * 1000
_OPENING = """\
Two identical upstream Kafka clusters are mirrored to a third while events keep
arriving. First the mirror is killed, then the upstream node that it reads. In the
end all three are read and compared."""
_COPY_YAML = """\
    copy:
      chunk: {size}       # commit often: many commits to be killed between
      fetch_max: {size}   # fetch little at once: many fetches to be killed in
"""


def main(*, keep: bool = False, events: int = EVENTS) -> int:
    """Mirror two identical nodes, kill the mirror and a node, and prove that nothing is lost.

    Args:
        keep: leave the folder with relay.yaml, logs and data.
        events: how many there are before the mirror starts.

    Returns:
        0 if both sides are equal, 4 if they differ, 130 after Ctrl-C.

    Raises:
        RelayError: something could not be started, or failed.
    """
    clock = SystemClock()
    reporter = Reporter(stdout(), clock)
    try:
        with temporary_folder(keep=keep) as folder:
            try:
                return _run(folder, events, reporter, clock)
            finally:
                if keep:
                    reporter.say(f"kept in {folder}: relay.yaml, all logs and the brokers' data")
    except KeyboardInterrupt:
        reporter.say("interrupted; nothing is left running", style="yellow")
        return INTERRUPTED


def _run(folder: Path, events: int, reporter: Reporter, clock: Clock) -> int:
    reporter.console.print(_OPENING, style="bold")
    with ExitStack() as until_the_end:
        title = (
            f"Start three clusters of Kafka {KAFKA_VERSION}: upstream-a, upstream-b, destination"
        )
        with reporter.step(title, "brokers start (the first start downloads Kafka, about 100 MB)"):
            environment = until_the_end.enter_context(start_clusters(folder))
        ledger = until_the_end.enter_context(closing(Ledger(environment.destination, clock)))
        writers = NodeWriters(environment.nodes)
        scenario = _Scenario(environment, ledger, reporter, clock, Shop(events), writers, events)
        scenario.write_history()
        with closing(Arrivals(scenario.shop, writers, scenario.per_second, clock)) as arrivals:
            killed = scenario.kill_mirror(arrivals)
            dead = scenario.kill_node(arrivals, again=killed)
        if dead:
            scenario.restart_node(dead)
        scenario.copy_rest(arrivals.count)
        equal = scenario.prove()
        reporter.conclude(equal=equal)
        return 0 if equal else _DIFFERENCE


@dataclass(frozen=True, slots=True)
class _Scenario:
    """The steps after the start of the clusters."""

    environment: Environment
    ledger: Ledger
    reporter: Reporter
    clock: Clock
    shop: Shop
    writers: NodeWriters
    events: int

    @property
    def per_second(self) -> int:
        """How many events arrive while the mirror runs."""
        return max(1, self.events // 200)

    def write_history(self) -> None:
        """Write a day of events to both nodes."""
        with self.reporter.step(
            f"Write {count(self.events)} events of a web shop to both upstream clusters"
        ):
            self.writers.write(self.shop.history(self.events, self.clock.now_ms() - _NIGHT_MS))
            self.writers.flush()
            for topic, partitions in PARTITIONS.items():
                records = count(self.writers.written[topic])
                self.reporter.say(f"{topic:<15} {partitions} partitions {records:>8} records")

    def kill_mirror(self, arrivals: Arrivals) -> bool:
        """Start the mirror and kill it in the middle; False if it was always too fast."""
        more = count(self.per_second)
        with self.reporter.step(
            f"Mirror while {more} more events a second arrive, and kill the mirror"
        ) as show:
            # about 100 commits, however much is copied
            size = f"{max(16, min(1024, self.events // 1000))}KiB"
            self.reporter.say("relay.yaml:")
            text = self.environment.write_relay_yaml(_COPY_YAML.format(size=size))
            self.reporter.quote(text.splitlines())

            def attempt(number: int) -> bool:
                known, end = self.ledger.poll(), self.writers.written.total()
                with closing(self._start_run(f"run-killed-{number}.log")) as process:
                    if not wait_for_middle(process, self.ledger, end, show):
                        process.check()
                        return False
                return self._report_kill(known, end)

            return retry_until_killed(attempt, arrivals, self.events, self.reporter)

    def kill_node(self, arrivals: Arrivals, *, again: bool) -> str | None:
        """Run the mirror to its end, kill the node that it reads in the middle, and return it.

        None if no attempt needed the other node; then all nodes are alive.
        """
        with self.reporter.step(
            f"{'Start' if again else 'Run'} it again while events arrive,"
            " and kill the upstream node that it reads"
        ) as show:

            def attempt(number: int) -> str | None:
                known, end = self.ledger.poll(), self.writers.written.total()
                node, killed_ms, run_id = None, 0, ""
                with closing(self._start_run(f"run-failover-{number}.log")) as process:
                    if wait_for_middle(process, self.ledger, end, show):
                        newest = self.ledger.entries[-1]
                        node, killed_ms, run_id = newest.node, self.clock.now_ms(), newest.run_id
                        self.environment.kill(node)
                        self._say_killed(f"{node}, the node it reads", known, end)
                        show(f"{node} is dead, the copy continues")
                    process.check()
                self.reporter.quote(process.output)
                self.ledger.poll()
                if node and not self._report_failover(node, killed_ms, run_id):
                    self.environment.restart(node)
                    return None
                return node

            return retry_until_killed(attempt, arrivals, self.events, self.reporter)

    def restart_node(self, node: str) -> None:
        """Bring the killed node back and let the producers catch up."""
        with self.reporter.step(f"Start {node} again: it gets the events that it missed"):
            self.environment.restart(node)
            self.writers.flush()

    def copy_rest(self, arrived: int) -> None:
        """Copy what arrived since."""
        with self.reporter.step(f"No more events: {count(arrived)} arrived; copy the rest"):
            self.writers.flush()
            with closing(self._start_run("run-rest.log")) as process:
                process.check()
            self.reporter.quote(process.output)

    def prove(self) -> bool:
        """Compare all clusters and the ledger; True if they agree."""
        with self.reporter.step("Read all clusters with another client and compare every record"):
            clusters = [*self.environment.nodes, self.environment.destination]
            one, other, destination = read_all(clusters, TOPIC_PARTITIONS)
            comparisons = compare_all(one, destination)
            self.reporter.show(comparison_table(comparisons))
            identical = "yes" if one == other else "NO"
            self.reporter.say(f"upstream nodes identical, offsets included: {identical}")
        with self.reporter.step("Ask the ledger which records came from which node"):
            self.ledger.poll()
            given = shares(self.ledger.entries)
            self.reporter.show(shares_table(given))
            found = {name: len(content) for name, content in destination.items()}
            wrong = unexplained(given, found)
            says = f"NO: {', '.join(map(str, wrong))}" if wrong else "yes"
            self.reporter.say(
                f"every offset once, and as many records as at the destination: {says}"
            )
        return one == other and not wrong and all(each.equal for each in comparisons)

    def _start_run(self, log: str) -> RelayProcess:
        folder, width = self.environment.folder, self.reporter.quoted_width
        process = RelayProcess(folder, ["run", "--stop-at-end"], log, width)
        self.reporter.say(f"$ {process.shown}", style="cyan")
        return process

    def _say_killed(self, what: str, known: int, end: int) -> None:
        self.reporter.say(
            f"kill -9 of {what}: {self.ledger.poll() - known} chunks committed,"
            f" {count(self.ledger.offsets)} of {count(end)} offsets",
            style="red",
        )

    def _report_kill(self, known: int, end: int) -> bool:
        """Print what the killed run left; False if it had copied everything."""
        self.ledger.poll()
        transactions, unread = _open_transactions(self.environment.destination)
        if not transactions and self.ledger.offsets >= end:
            return False
        self._say_killed("relay, its Spark and its workers", known, end)
        if transactions:
            self.reporter.say(
                f"it left {plural(transactions, 'open transaction')} with"
                f" {plural(unread, 'record')} that consumers cannot read"
            )
        return True

    def _report_failover(self, node: str, killed_ms: int, run_id: str) -> bool:
        """Print by the ledger's times when another node took over; False if none did."""
        entries = [entry for entry in self.ledger.entries if entry.run_id == run_id]
        others = [entry for entry in entries if entry.node != node]
        if not others:
            return False
        began_ms = min(entry.committed_at_ms for entry in entries)
        next_one = min(others, key=lambda entry: entry.committed_at_ms)
        lived = seconds((killed_ms - began_ms) / 1000)
        gap = seconds((next_one.committed_at_ms - killed_ms) / 1000)
        self.reporter.say(
            f"{node} was killed {lived} after the first commit of this run;"
            f" {gap} later came the first one from {next_one.node}"
        )
        return True


def _open_transactions(destination: Cluster) -> tuple[int, int]:
    """The topic-partitions with an open transaction, and the records that it hides."""
    with ClusterClient(destination, DestinationError, "relay-demo") as client:
        stable = client.list_offsets(TOPIC_PARTITIONS, LATEST, READ_COMMITTED)
        written = client.list_offsets(TOPIC_PARTITIONS, LATEST, READ_UNCOMMITTED)
    hidden = [written[one] - stable[one] for one in TOPIC_PARTITIONS if written[one] > stable[one]]
    return len(hidden), sum(hidden)

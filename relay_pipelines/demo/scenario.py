"""The demo from beginning to end. `main` is what `relay demo` calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from relay_pipelines.audit.window_recount import recount
from relay_pipelines.demo import spark_cluster
from relay_pipelines.demo.dagster import RelayProcess
from relay_pipelines.demo.proof import Ledger, compare_all, read_all, shares
from relay_pipelines.demo.reporter import (
    Reporter,
    comparison_table,
    executors_table,
    run_in_folder,
    shares_table,
)
from relay_pipelines.demo.shop import (
    MANY_PARTITIONS,
    MIRROR,
    PARTITIONS,
    Arrivals,
    Environment,
    Shop,
    UpstreamWriters,
    start_clusters,
)
from relay_pipelines.demo.spark_cluster import SparkCluster
from relay_pipelines.errors import DIFFERENCE, DestinationError, RelayError
from relay_pipelines.local_kafka.jars import KAFKA_VERSION
from relay_pipelines.model import CopyOptions, LedgerEntry, OffsetRange
from relay_pipelines.output.formatting import count, plural, seconds, stdout
from relay_pipelines.protocol.client import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    destination_client,
)
from relay_pipelines.protocol.clock import Clock, SystemClock

EVENTS = 240_000
_NIGHT_MS = 4 * 3600 * 1000
_CHUNKS = 8
_SHARE = 5
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 0.5
_APPLICATION = re.compile(r"(?P<id>app-\S+) at (?P<page>http\S+)")
_OPENING = """\
Two identical upstream Kafka clusters are mirrored to a third while events keep
arriving. First the mirror is killed, then the upstream that it reads. In the
end all three are read and compared."""
_OPENING_ON_CLUSTER = """\
Two identical upstream Kafka clusters are mirrored to a third by a Spark cluster. In
the middle one of its workers dies, as with its machine. In the end the clusters are
read and compared."""
_COPY_YAML = """\
    copy:
      # commit often, fetch little at once, and slowly, so that kills hit the middle
      chunk: {size}KiB
      fetch_max: {size}KiB
      max_bytes_per_second: {rate}KiB
"""
_SPARK_YAML = """\
spark:
  master: {address}
  conf: {{spark.executor.memory: 512m, spark.cores.max: {workers}, spark.driver.host: 127.0.0.1}}
"""


def main(*, keep: bool = False, events: int = EVENTS, cluster: bool = False) -> int:
    """Mirror two upstreams, kill the mirror and one of them, and prove that nothing is lost.

    Args:
        keep: leave the folder with relay.yaml, logs and data.
        events: how many there are before the mirror starts.
        cluster: copy on a Spark cluster instead, and kill one of its workers.

    Returns:
        0 if both sides are equal, 4 if they differ, 130 after Ctrl-C.

    Raises:
        RelayError: something could not be started, or failed.
    """
    clock = SystemClock()
    reporter = Reporter(stdout(), clock)
    run = _run_on_cluster if cluster else _run
    return run_in_folder(lambda folder: run(folder, events, reporter, clock), reporter, keep=keep)


def _run(folder: Path, events: int, reporter: Reporter, clock: Clock) -> int:
    reporter.console.print(_OPENING, style="bold")
    with (
        open_shop(folder, events, reporter, clock) as (environment, shop, writers),
        closing(Ledger(environment.destination, clock)) as ledger,
    ):
        scenario = _Scenario(environment, writers, ledger, reporter, clock)
        per_second = max(1, events // 200)
        with closing(Arrivals(shop, writers, per_second, clock)) as arrivals:
            scenario.kill_mirror(events, per_second)
            dead = scenario.kill_upstream()
        scenario.restart_upstream(dead)
        scenario.copy_rest(arrivals.count)
        equal = scenario.prove()
        reporter.conclude(equal=equal)
        return 0 if equal else DIFFERENCE


def _run_on_cluster(folder: Path, events: int, reporter: Reporter, clock: Clock) -> int:
    reporter.console.print(_OPENING_ON_CLUSTER, style="bold")
    with (
        open_shop(folder, events, reporter, clock, MANY_PARTITIONS) as (environment, _, writers),
        closing(Ledger(environment.destination, clock)) as ledger,
    ):
        scenario = _Scenario(environment, writers, ledger, reporter, clock)
        with (
            reporter.step(f"Start a Spark master and {spark_cluster.WORKERS} workers"),
            spark_cluster.running(folder / "spark") as cluster,
        ):
            reporter.say(f"{cluster.address}, its page {cluster.page}")
            scenario.kill_worker(events, cluster)
        equal = scenario.prove()
        reporter.conclude(equal=equal)
        return 0 if equal else DIFFERENCE


@contextmanager
def open_shop(
    folder: Path,
    events: int,
    reporter: Reporter,
    clock: Clock,
    partitions: Mapping[str, int] = PARTITIONS,
) -> Iterator[tuple[Environment, Shop, UpstreamWriters]]:
    """Start the clusters and write a day of events to both upstreams."""
    clusters = f"three clusters of Kafka {KAFKA_VERSION}: upstream-a, upstream-b, destination"
    with ExitStack() as until_the_end:
        doing = "brokers start (the first start downloads Kafka, about 100 MB)"
        with reporter.step(f"Start {clusters}", doing):
            environment = until_the_end.enter_context(start_clusters(folder, partitions))
        shop, writers = Shop(events, partitions), UpstreamWriters(environment.upstreams)
        with reporter.step(f"Write {count(events)} events of a web shop to both upstream clusters"):
            writers.write(shop.history(events, clock.now_ms() - _NIGHT_MS))
            writers.flush()
            for topic, number in partitions.items():
                records = count(writers.written[topic])
                reporter.say(f"{topic:<15} {number} partitions {records:>8} records")
        yield environment, shop, writers


@dataclass(frozen=True, slots=True)
class _Scenario:
    """The steps after the shop has opened."""

    environment: Environment
    writers: UpstreamWriters
    ledger: Ledger
    reporter: Reporter
    clock: Clock

    def kill_mirror(self, events: int, per_second: int) -> None:
        """Start the mirror and kill it in the middle."""
        more = count(per_second)
        with self.reporter.step(
            f"Mirror while {more} more events a second arrive, and kill the mirror"
        ) as show:
            self._write_relay_yaml(events, 20)
            known, end = self.ledger.poll(), self.writers.written.total()
            with closing(self._start_run("run-killed.log")) as process:
                self._wait_for_middle(process, end, show)
            self.ledger.poll()
            self._say_killed("relay, its Spark and its workers", known, end)
            transactions, unread = _open_transactions(self.environment)
            if transactions:
                self.reporter.say(
                    f"it left {plural(transactions, 'open transaction')} with"
                    f" {plural(unread, 'record')} that consumers cannot read"
                )

    def kill_worker(self, events: int, cluster: SparkCluster) -> None:
        """Copy on a Spark cluster and kill one of its workers in the middle."""
        with self.reporter.step("Mirror, and kill a worker with its executor") as show:
            spark = _SPARK_YAML.format(address=cluster.address, workers=len(cluster.workers))
            self._write_relay_yaml(events, 8, spark)
            known, end = self.ledger.poll(), self.writers.written.total()
            with closing(self._start_run("run-cluster.log")) as process:
                page, application = _wait_for_application(process)
                self.reporter.say(f"Spark shows it at {page}")
                spark_cluster.executors(page, application, cluster)  # its first answer is slow
                self._wait_for_middle(process, end, show)
                executors = spark_cluster.executors(page, application, cluster)
                victim = max(executors, key=attrgetter("started")).worker
                victim.kill_with_children()
                self._say_killed(f"{victim.name} and its executor", known, end)
                show(f"{victim.name} is dead, the copy continues")
                while process.running:
                    with suppress(OSError):  # it has just ended
                        executors = spark_cluster.executors(page, application, cluster)
                    time.sleep(_LOOK_SECONDS)
                process.check()
            self.reporter.quote(process.output)
            self.ledger.poll()
            self.reporter.show(executors_table(executors))

    def kill_upstream(self) -> str:
        """Run the mirror to its end, kill the upstream that it reads midway, and return it."""
        with self.reporter.step(
            "Start it again while events arrive, and kill the upstream that it reads"
        ) as show:
            known, end = self.ledger.poll(), self.writers.written.total()
            with closing(self._start_run("run-failover.log")) as process:
                self._wait_for_middle(process, end, show)
                newest, killed_ms = self.ledger.entries[-1], self.clock.now_ms()
                self.environment.kill(newest.upstream)
                self._say_killed(f"{newest.upstream}, the upstream it reads", known, end)
                show(f"{newest.upstream} is dead, the copy continues")
                process.check()
            self.reporter.quote(process.output)
            self.ledger.poll()
            self._report_failover(newest, killed_ms)
            return newest.upstream

    def restart_upstream(self, upstream: str) -> None:
        """Bring the killed upstream back and let the producers catch up."""
        with self.reporter.step(f"Start {upstream} again: it gets the events that it missed"):
            self.environment.restart(upstream)
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
            clusters = [*self.environment.upstreams, self.environment.destination]
            first, second, destination = read_all(clusters, self.environment.topic_partitions)
            comparisons = compare_all(first, destination)
            self.reporter.show(comparison_table(comparisons))
            identical = "yes" if first == second else "NO"
            self.reporter.say(f"upstreams identical, offsets included: {identical}")
        with self.reporter.step("Ask the ledger which records came from which upstream"):
            self.ledger.poll()
            self.reporter.show(shares_table(shares(self.ledger.entries)))
            ranges = [
                OffsetRange(tp, 0, content[-1].offset + 1)
                for tp, content in first.items()
                if content
            ]
            there = self.environment.destination
            with destination_client(MIRROR, there, CopyOptions(), self.clock, "recount") as client:
                recounts = recount(client, ranges, 0)
            wrong = [*recounts.problems, *map(str, recounts.errors.values())]
            says = f"NO: {'; '.join(wrong)}" if wrong else "yes"
            self.reporter.say(
                f"every offset once, and as many records as at the destination: {says}"
            )
        return first == second and not wrong and all(comparison.equal for comparison in comparisons)

    def _write_relay_yaml(self, events: int, chunks_per_second: int, more: str = "") -> None:
        """Write and show a configuration by which a copy takes about 100 commits."""
        size = max(16, min(1024, events // 1000))
        copy = _COPY_YAML.format(size=size, rate=chunks_per_second * size)
        text = self.environment.write_relay_yaml(copy + more)
        self.reporter.say("relay.yaml:")
        self.reporter.quote(text.splitlines())

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

    def _wait_for_middle(
        self, process: RelayProcess, end: int, show: Callable[[str], None]
    ) -> None:
        """Wait until a few chunks and a fifth of the offsets are copied.

        Args:
            end: how many offsets the ledger will cover.
            show: shows the progress.

        Raises:
            RelayError: the run failed, or ended before.
        """
        known, before = self.ledger.poll(), self.ledger.offsets
        while process.running:
            chunks = self.ledger.poll() - known
            if chunks >= _CHUNKS and self.ledger.offsets - before >= (end - before) // _SHARE:
                return
            if chunks:
                show(f"{chunks} chunks committed")
            time.sleep(_POLL_SECONDS)
        process.check()
        raise RelayError(
            f"`{process.shown}` ended before it could be killed", remedy="run the demo again"
        )

    def _report_failover(self, last: LedgerEntry, killed_ms: int) -> None:
        """Print by the ledger's times when another upstream than the last entry's took over."""
        entries = [entry for entry in self.ledger.entries if entry.run_id == last.run_id]
        first_ms = min(entry.committed_at_ms for entry in entries)
        others = [entry for entry in entries if entry.upstream != last.upstream]
        following = min(others, key=lambda entry: entry.committed_at_ms)
        lived = seconds((killed_ms - first_ms) / 1000)
        gap = seconds((following.committed_at_ms - killed_ms) / 1000)
        self.reporter.say(
            f"{last.upstream} was killed {lived} after the first commit of this run;"
            f" {gap} later came the first one from {following.upstream}"
        )


def _wait_for_application(process: RelayProcess) -> tuple[str, str]:
    """Wait for a run's Spark application; return the address of its page, and its id.

    Raises:
        RelayError: the run failed, or ended before.
    """
    while process.running:
        for match in filter(None, map(_APPLICATION.search, process.output)):
            return match["page"], match["id"]
        time.sleep(_POLL_SECONDS)
    process.check()
    raise RelayError(f"`{process.shown}` ended without Spark", remedy="run the demo again")


def _open_transactions(environment: Environment) -> tuple[int, int]:
    """The topic-partitions with an open transaction, and the records that it hides."""
    with ClusterClient(environment.destination, DestinationError, purpose="demo") as client:
        stable, written = (
            client.list_offsets(environment.topic_partitions, LATEST, isolation)
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED)
        )
    hidden = [end - stable[tp] for tp, end in written.items() if end > stable[tp]]
    return len(hidden), sum(hidden)

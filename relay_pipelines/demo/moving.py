"""`relay demo --move`: a producer and a consumer group go to another cluster, and come back.

Brokers are killed meanwhile. In the end the consumer must have read each record once, and those of
each key in the order in which they were written.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer

from relay_pipelines.demo.dagster import RelayProcess
from relay_pipelines.demo.reporter import Reporter, run_in_folder
from relay_pipelines.demo.shop import create_topics, start
from relay_pipelines.errors import DIFFERENCE, RelayError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.local_kafka.jars import KAFKA_VERSION
from relay_pipelines.model import Cluster
from relay_pipelines.output.formatting import count, plural, stdout
from relay_pipelines.protocol.clock import Clock, SystemClock

RECORDS = 2_000
_TOPIC, _GROUP, _PARTITIONS, _KEYS = "orders", "invoicing", 4, 50
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 120.0
_SHOWN = 5
_BY_HAND = ("--by", "hand", "--still", "3s", "--execute")
_OPENING = """\
A producer and a consumer group move from one Kafka cluster to another, work there,
and move back with what was written there, while brokers are killed. In the end we
count what the consumer has read."""
_RELAY_YAML = """\
mirrors:
  shop:
    source: {{upstreams: [{{name: old, bootstrap_servers: ["{old}"]}}]}}
    destination: {{bootstrap_servers: ["{new}"]}}
    topics: {{allow: [orders]}}
    give_up_after: 5m
"""


class Written(NamedTuple):
    """A record: its key, and its number among all."""

    key: str
    number: int


def main(*, keep: bool = False, records: int = RECORDS) -> int:
    """Move an application over and back, and count what its consumer has read.

    Args:
        keep: leave the folder with relay.yaml, logs and data.
        records: how many are written at least in each of three phases.

    Returns:
        0 if the consumer has read each record once and in order, 4 if not, 130 after Ctrl-C.

    Raises:
        RelayError: something could not be started, or failed.
    """
    clock = SystemClock()
    reporter = Reporter(stdout(), clock)
    return run_in_folder(lambda folder: _run(folder, records, reporter, clock), reporter, keep=keep)


def problems(written: Sequence[Written], read: Sequence[Written]) -> list[str]:
    """Say what a consumer has missed, read twice, or read in another order than it was written."""
    times = Counter(read)
    lines = [
        *(f"{each} was not read" for each in written if not times[each]),
        *(f"{each} was read {number} times" for each, number in times.items() if number > 1),
    ]
    last: defaultdict[str, int] = defaultdict(lambda: -1)
    for key, number in read:
        if number < last[key]:
            lines.append(f"{key}: {number} was read after {last[key]}")
        last[key] = max(last[key], number)
    return lines


def _run(folder: Path, records: int, reporter: Reporter, clock: Clock) -> int:
    reporter.console.print(_OPENING, style="bold")
    with ExitStack() as until_the_end:
        with reporter.step(f"Start two clusters of Kafka {KAFKA_VERSION}: old and new"):
            old, new = until_the_end.enter_context(start(folder, ("old", "new")))
        create_topics(old.cluster(), {_TOPIC: _PARTITIONS})
        text = _RELAY_YAML.format(**{each.name: each.bootstrap_servers[0] for each in (old, new)})
        (folder / "relay.yaml").write_text(text)
        application = _Application(clock)
        # if it fails, the threads end with the process: their broker may be dead
        _Scenario(folder, old, new, application, records, reporter).play()
        wrong = problems(application.written, application.read)
        reporter.say(f"{count(len(application.written))} records written")
        reporter.say(f"{count(len(application.read))} records read")
        for problem in wrong[:_SHOWN]:
            reporter.say(problem, style="red")
        reporter.conclude(equal=not wrong, wrong=f"{plural(len(wrong), 'record')} NOT as written.")
        return DIFFERENCE if wrong else 0


@dataclass(slots=True)
class _Application:
    """A producer and a consumer group, each a thread, at one cluster at a time."""

    clock: Clock
    written: list[Written] = field(default_factory=list)
    read: list[Written] = field(default_factory=list)
    _ends: dict[str, Callable[[], None]] = field(default_factory=dict)

    def produce_at(self, cluster: Cluster) -> None:
        """Write until `stop`."""
        producer = Producer(_client(cluster) | {"enable.idempotence": True, "linger.ms": 5})

        def write(over: threading.Event) -> None:
            while not over.wait(_POLL_SECONDS):
                for _ in range(_KEYS):
                    record = Written(f"order-{len(self.written) % _KEYS}", len(self.written))
                    producer.produce(_TOPIC, str(record.number), record.key)
                    self.written.append(record)
                producer.poll(0)
            if producer.flush(_PATIENCE_SECONDS):
                raise RelayError("the producer could not write all records")

        self._start("producer", write)

    def consume_at(self, cluster: Cluster) -> None:
        """Read until `stop`; the position is committed with each look."""
        settings = {
            "group.id": _GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(_client(cluster) | settings | {"isolation.level": "read_committed"})

        def consume(over: threading.Event) -> None:
            with closing(consumer):
                consumer.subscribe([_TOPIC])
                while not over.is_set():
                    if records := [r for r in consumer.consume(100, 0.2) if r.error() is None]:
                        consumer.commit(asynchronous=False)
                        self.read += [Written(r.key().decode(), int(r.value())) for r in records]

        self._start("consumer", consume)

    def stop(self, *names: str) -> None:
        """End these threads, or all."""
        for name in names or [*self._ends]:
            self._ends.pop(name, lambda: None)()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait; what does not come is found in the end."""
        until = self.clock.monotonic() + _PATIENCE_SECONDS
        while not is_so() and self.clock.monotonic() < until:
            self.clock.sleep(_POLL_SECONDS)

    def _start(self, name: str, work: Callable[[threading.Event], None]) -> None:
        over, errors = threading.Event(), []

        def body() -> None:
            try:
                work(over)
            except Exception as error:  # noqa: BLE001 - raised where the thread is awaited
                errors.append(error)

        def end() -> None:
            over.set()
            thread.join()
            for error in errors:
                raise RelayError(f"the {name} failed: {error}") from error

        thread = threading.Thread(target=body, name=f"demo-{name}", daemon=True)
        thread.start()
        self._ends[name] = end


@dataclass(frozen=True, slots=True)
class _Scenario:
    """The story."""

    folder: Path
    old: LocalCluster
    new: LocalCluster
    application: _Application
    records: int
    reporter: Reporter

    def play(self) -> None:
        """Move over, and back."""
        app = self.application
        with self.reporter.step(
            "A producer writes to old, a consumer group reads, a mirror copies"
        ):
            self._live(self.old)
            self._relay("run", "--stop-at-end")
            self._await_more()
        with self.reporter.step("Stop consumer and producer, and see that none writes to old"):
            self._stop_with_records_left("old")
            self._relay("move", "fence", *_BY_HAND, kill=self.old, when="waiting")
        with self.reporter.step(
            "Cut: copy the rest, take the topic from the mirror, move the group"
        ):
            self._relay("move", "cut", "--execute", kill=self.new, when="looking at groups")
        with self.reporter.step("Consumer and producer go on at new, where they were"):
            self._live(self.new)
            self._await_more()
            self._relay("move", "verify")
        with self.reporter.step(
            "Something is wrong with new: take back also what was written there"
        ):
            self._stop_with_records_left("new")
            self._relay("move", "back", *_BY_HAND, kill=self.new, when="waiting")
        with self.reporter.step("Consumer and producer go on at old"):
            self._live(self.old)
            self._await_more()
            app.stop("producer")
            app.wait_for(lambda: len(app.read) >= len(app.written))
            app.stop()

    def _stop_with_records_left(self, where: str) -> None:
        app = self.application
        app.stop("consumer")
        left = len(app.written) + self.records // 10
        app.wait_for(lambda: len(app.written) >= left)  # what the consumer has still to read
        app.stop("producer")
        self._say_read(where)

    def _live(self, cluster: LocalCluster) -> None:
        self.application.produce_at(cluster.cluster())
        self.application.consume_at(cluster.cluster())

    def _await_more(self) -> None:
        """Wait until more records are written and read."""
        app = self.application
        written, read = len(app.written) + self.records, len(app.read) + self.records
        app.wait_for(lambda: len(app.written) >= written and len(app.read) >= read)

    def _say_read(self, where: str) -> None:
        app = self.application
        self.reporter.say(
            f"{count(len(app.read))} of {count(len(app.written))} records read, the last at {where}"
        )

    def _relay(self, *arguments: str, kill: LocalCluster | None = None, when: str = "") -> None:
        """Run a command; kill a broker once its output says something, and start it again."""
        log, width = f"{'-'.join(arguments[:2])}.log", self.reporter.quoted_width
        with closing(RelayProcess(self.folder, [*arguments], log, width)) as process:
            self.reporter.say(f"$ {process.shown}", style="cyan")
            if kill is not None:
                self.application.wait_for(
                    lambda: not process.running or any(when in line for line in process.output)
                )
                for broker in kill.brokers:
                    broker.kill()
                self.reporter.say(f"kill -9 of the broker of {kill.name}", style="red")
                for broker in kill.brokers:
                    broker.start()
            process.check()
            self.reporter.quote(process.output)


def _client(cluster: Cluster) -> dict[str, object]:
    servers = ",".join(cluster.bootstrap_servers)
    return {"bootstrap.servers": servers, "reconnect.backoff.max.ms": 500, "log_level": 0}

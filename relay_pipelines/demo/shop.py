"""The events of a made-up web shop, the same for every seed, and the producers that write them.

Every record has a `trace-id` header of its own, by which the proof counts losses and duplicates.

The environment of the demo: a folder, three clusters, their topics, and relay.yaml.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from relay_pipelines.errors import RelayError
from relay_pipelines.local_kafka import LocalCluster, jars
from relay_pipelines.local_kafka.cluster import JVM_OPTIONS
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.clock import Clock

EVENTS, PAYMENTS, STATUS = "orders.events", "orders.payments", "orders.status"
PARTITIONS = {EVENTS: 4, PAYMENTS: 2, STATUS: 2}
MANY_PARTITIONS = {EVENTS: 24, PAYMENTS: 12, STATUS: 12}
"""For a Spark cluster."""
TRACE_ID = "trace-id"

_COMPRESSION = {EVENTS: "lz4", PAYMENTS: "zstd", STATUS: "none"}
_TOPICS = [EVENTS] * 7 + [PAYMENTS] * 2 + [STATUS] * 3
_STATES = ("placed", "changed", "packed", "handed-over", "delivered", "returned")
_NOTE = " ".join(f"article A-{number * 7919 % 100_000:05}, quantity 1," for number in range(28))
_HISTORY_MS = 20 * 3600 * 1000
_EVENTS_PER_ORDER = 12
# an odd number: its multiples modulo 2^64 never repeat
_GOLDEN = 0x9E3779B97F4A7C15
_FLUSH_SECONDS = 60
_TICK_SECONDS = 0.05


class Event(NamedTuple):
    """One record to write."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


class Shop:
    """Makes events, always the same ones for a seed.

    Args:
        events: about how many, which decides the number of orders.
        partitions: how many each topic has.
        seed: of the random numbers.
    """

    def __init__(
        self,
        events: int,
        partitions: Mapping[str, int] = PARTITIONS,
        seed: int = 20_240_229,
    ) -> None:
        self._partitions = partitions
        self._random = random.Random(seed)  # noqa: S311 - order data, not secrets
        self._orders = max(1, events // _EVENTS_PER_ORDER)
        self._count = 0

    def history(self, count: int, until_ms: int) -> Iterator[Event]:
        """Make `count` events, spread evenly over the 20 hours before `until_ms`."""
        for number in range(count):
            yield self.event(until_ms - _HISTORY_MS + number * _HISTORY_MS // count)

    def event(self, timestamp_ms: int) -> Event:
        """Make the next event; payments may have no key, payments and states may be tombstones."""
        self._count += 1
        topic = self._random.choice(_TOPICS)
        # squared: a few orders have many events
        order = f"order-{int(self._random.random() ** 2 * self._orders):07}"
        value = {
            "order": order,
            "state": self._random.choice(_STATES),
            "at_ms": timestamp_ms,
            "sequence": self._count,
            "note": _NOTE[: self._random.randrange(150, len(_NOTE))],
        }
        tombstone = topic != EVENTS and self._count % 50 == 0
        trace_id = b"%016x" % (self._count * _GOLDEN & 0xFFFFFFFFFFFFFFFF)
        return Event(
            topic,
            zlib.crc32(order.encode()) % self._partitions[topic],
            None if topic == PAYMENTS and self._count % 40 == 0 else order.encode(),
            None if tombstone else json.dumps(value).encode(),
            [(TRACE_ID, trace_id), ("source", b"web-shop"), ("schema-version", b"3")],
            timestamp_ms,
        )


class UpstreamWriters:
    """Write the same events in the same order to every upstream; for one thread at a time.

    Args:
        upstreams: clusters in which the topics exist.
    """

    def __init__(self, upstreams: Sequence[Cluster]) -> None:
        self._producers = {
            topic: [Producer(_config(upstream, compression)) for upstream in upstreams]
            for topic, compression in _COMPRESSION.items()
        }
        self.written: Counter[str] = Counter()

    def write(self, events: Iterable[Event]) -> None:
        """Queue events; the producers send them in the background."""
        for event in events:
            self.written[event.topic] += 1
            for producer in self._producers[event.topic]:
                _produce(producer, event)

    def flush(self) -> None:
        """Wait until every upstream has every event.

        Raises:
            RelayError: an upstream does not have them in time.
        """
        producers = [producer for upstreams in self._producers.values() for producer in upstreams]
        if sum(producer.flush(_FLUSH_SECONDS) for producer in producers):
            raise RelayError(
                f"an upstream did not take all events within {_FLUSH_SECONDS} s",
                remedy="run the demo with --keep and see its broker.log",
            )


class Arrivals:
    """A thread that writes events until `close`."""

    def __init__(self, shop: Shop, writers: UpstreamWriters, per_second: int, clock: Clock) -> None:
        self._shop = shop
        self._writers = writers
        self._per_second = per_second
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="demo-arrivals", daemon=True)
        self.count = 0
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        started = self._clock.monotonic()
        while not self._over.wait(_TICK_SECONDS):
            due = int((self._clock.monotonic() - started) * self._per_second)
            self._writers.write(
                self._shop.event(self._clock.now_ms()) for _ in range(due - self.count)
            )
            self.count = due


def _config(upstream: Cluster, compression: str) -> dict[str, object]:
    return {
        "bootstrap.servers": ",".join(upstream.bootstrap_servers),
        # keeps the order of records that are retried
        "enable.idempotence": True,
        # an upstream that was killed gets what it missed soon after it is back
        "reconnect.backoff.max.ms": 500,
        "compression.type": compression,
        "linger.ms": 20,
        "batch.size": 128 << 10,
        "queue.buffering.max.kbytes": 64 << 10,
        "log_level": 0,
    }


def _produce(producer: Producer, event: Event) -> None:
    topic, partition, key, value, headers, timestamp_ms = event
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=timestamp_ms, headers=headers)
        except BufferError:
            producer.poll(0.05)  # the queue is full
        else:
            return


MIRROR = "shop"
_NAMES = ("upstream-a", "upstream-b", "destination")
_TIMEOUT_SECONDS = 30
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RELAY_YAML = """\
mirrors:
  {mirror}:
    source:
      upstreams:
        - name: {upstreams[0].name}
          bootstrap_servers: [{upstreams[0].bootstrap_servers[0]}]
        - name: {upstreams[1].name}
          bootstrap_servers: [{upstreams[1].bootstrap_servers[0]}]
    destination:
      bootstrap_servers: [{destination.bootstrap_servers[0]}]
    topics:
      allow: ['orders\\..*']
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """Running clusters and the folder of everything that the demo writes.

    Args:
        upstreams: the two identical upstream clusters.
        processes: the embedded clusters by name.
        partitions: how many each topic has.
    """

    folder: Path
    upstreams: tuple[Cluster, Cluster]
    destination: Cluster
    processes: Mapping[str, LocalCluster]
    partitions: Mapping[str, int]

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """Those of all topics."""
        return [
            TopicPartition(topic, partition)
            for topic, count in self.partitions.items()
            for partition in range(count)
        ]

    def write_relay_yaml(self, options: str) -> str:
        """Write the configuration and return its text.

        Args:
            options: the mirror's remaining keys.
        """
        places = {"upstreams": self.upstreams, "destination": self.destination}
        text = _RELAY_YAML.format(mirror=MIRROR, **places) + options
        (self.folder / "relay.yaml").write_text(text)
        return text

    def kill(self, upstream: str) -> None:
        """Kill an upstream's broker with SIGKILL; its data stays."""
        _kill(self.processes[upstream])

    def restart(self, upstream: str) -> None:
        """Start a killed upstream with the data it had, and wait until it serves."""
        for broker in self.processes[upstream].brokers:
            broker.start()


@contextmanager
def temporary_folder(*, keep: bool) -> Iterator[Path]:
    """Make a folder and remove it at the end; meanwhile all ending signals act as Ctrl-C does.

    After the first signal the cleanup ignores the others.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        for ignored in _SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    folder = Path(tempfile.mkdtemp(prefix="relay-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def start_clusters(
    folder: Path, partitions: Mapping[str, int] = PARTITIONS
) -> Iterator[Environment]:
    """Start three clusters in parallel and create the upstream topics.

    Args:
        partitions: how many each topic has.

    Raises:
        RelayError: no Java, no network for the first download, or a broker does not start.
    """
    with start(folder, _NAMES) as made:
        a, b, destination = (cluster.cluster() for cluster in made)
        create_topics(a, partitions)
        create_topics(b, partitions)
        processes = {cluster.name: cluster for cluster in made}
        yield Environment(folder, (a, b), destination, processes, partitions)


@contextmanager
def start(folder: Path, names: Sequence[str]) -> Iterator[list[LocalCluster]]:
    """Start clusters in parallel.

    Raises:
        RelayError: no Java, no network for the first download, or a broker does not start.
    """
    jars.broker_classpath()
    temporary = folder / "tmp"
    temporary.mkdir()
    options = (*JVM_OPTIONS, f"-Djava.io.tmpdir={temporary}")
    made = [LocalCluster(name, folder=folder / name, jvm_options=options) for name in names]
    with ExitStack() as running:
        for cluster in made:
            # a kill is faster than a shutdown, and nobody needs the data afterwards
            running.callback(_kill, cluster)
        with ThreadPoolExecutor(len(made)) as pool:
            for started in [pool.submit(cluster.start) for cluster in made]:
                started.result()
        yield made


def create_topics(upstream: Cluster, partitions: Mapping[str, int]) -> None:
    """Create the shop's topics; the mirror creates those at the destination."""
    compacted = {"cleanup.policy": "compact"}
    topics = [
        NewTopic(topic, count, config=compacted if topic == STATUS else {})
        for topic, count in partitions.items()
    ]
    admin = AdminClient({"bootstrap.servers": ",".join(upstream.bootstrap_servers), "log_level": 0})
    for created in admin.create_topics(topics).values():
        created.result(_TIMEOUT_SECONDS)


def _kill(cluster: LocalCluster) -> None:
    for broker in cluster.brokers:
        broker.kill()

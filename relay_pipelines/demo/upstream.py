"""Writes the shop's events to all upstream nodes: the same records in the same order, so the nodes are identical."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from relay_pipelines.demo.events import EVENTS, PARTITIONS, PAYMENTS, STATUS, Event, Shop
from relay_pipelines.errors import RelayError
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.clock import Clock

_COMPRESSION = {EVENTS: "lz4", PAYMENTS: "zstd", STATUS: "none"}
_FLUSH_SECONDS = 60
_TICK_SECONDS = 0.05


class Upstream:
    """Writers to every node; for one thread at a time.

    Args:
        nodes: identical clusters whose topics exist.
    """

    def __init__(self, nodes: Sequence[Cluster]) -> None:
        self._nodes = nodes
        self._producers = {
            topic: [Producer(_config(node, compression)) for node in nodes]
            for topic, compression in _COMPRESSION.items()
        }
        self.written: Counter[TopicPartition] = Counter()
        self._compacted_keys: set[bytes | None] = set()

    def write(self, events: Iterable[Event]) -> None:
        """Hand events to the producers, which send them in the background."""
        for event in events:
            self.written[TopicPartition(event.topic, event.partition)] += 1
            if event.topic == STATUS:
                self._compacted_keys.add(event.key)
            for producer in self._producers[event.topic]:
                _produce(producer, event)

    @property
    def distinct_keys(self) -> int:
        """How many records of the compacted topic a thorough cleaner keeps."""
        return len(self._compacted_keys)

    def flush(self) -> None:
        """Wait until every node has all that was written.

        Raises:
            RelayError: a node has not.
        """
        for producers in self._producers.values():
            for producer in producers:
                producer.flush(_FLUSH_SECONDS)
        for node in self._nodes:
            ends = end_offsets(node)
            missing = sum(self.written.values()) - sum(ends.values())
            if missing:
                raise RelayError(
                    f"{node} lacks {missing:,} of the demo's events",
                    remedy="see its broker.log with --keep",
                )


class Arrivals:
    """A thread that goes on writing events until it is stopped: the upstream is never at rest, as in life."""

    def __init__(self, shop: Shop, upstream: Upstream, per_second: int, clock: Clock) -> None:
        self._shop = shop
        self._upstream = upstream
        self._per_second = per_second
        self._clock = clock
        self._over = threading.Event()
        self._more = 0
        self._thread = threading.Thread(target=self._arrive, name="demo-arrivals", daemon=True)
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def add(self, count: int) -> None:
        """Have so many more arrive at once; returns when they have been written."""
        self._more = count
        while self._more and self._thread.is_alive():
            time.sleep(_TICK_SECONDS)

    def _arrive(self) -> None:
        started = self._clock.monotonic()
        due = 0
        while not self._over.wait(_TICK_SECONDS):
            due += self._more
            wanted = due + int((self._clock.monotonic() - started) * self._per_second)
            self._upstream.write(
                self._shop.event(self._clock.now_ms()) for _ in range(wanted - self.count)
            )
            self.count = wanted
            self._more = 0


def end_offsets(node: Cluster) -> dict[TopicPartition, int]:
    """The high watermark of every topic-partition of the shop."""
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(node.bootstrap_servers),
            "group.id": "relay-demo",
            "log_level": 0,
        }
    )
    try:
        return {
            TopicPartition(topic, partition): consumer.get_watermark_offsets(
                KafkaTopicPartition(topic, partition), timeout=30
            )[1]
            for topic, partitions in PARTITIONS.items()
            for partition in range(partitions)
        }
    finally:
        consumer.close()


def _config(node: Cluster, compression: str) -> dict[str, object]:
    return {
        "bootstrap.servers": ",".join(node.bootstrap_servers),
        # with it, order is kept whatever is retried
        "enable.idempotence": True,
        # a node that was killed and is back gets what it missed at once
        "reconnect.backoff.max.ms": 500,
        "compression.type": compression,
        "linger.ms": 20,
        "batch.size": 128 << 10,
        "queue.buffering.max.kbytes": 64 << 10,
        "log_level": 0,
    }


def _produce(producer: Producer, event: Event) -> None:
    while True:
        try:
            producer.produce(
                event.topic,
                event.value,
                event.key,
                event.partition,
                timestamp=event.timestamp_ms,
                headers=event.headers,
            )
        except BufferError:
            # as much as is allowed waits for the broker
            producer.poll(0.05)
        else:
            return

"""Writes the same records in the same order to both upstreams, so that offsets are equal."""

import random
import threading
from collections import Counter
from collections.abc import Mapping

from confluent_kafka import KafkaError, Producer

from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.clock import Clock
from tests.chaos.storm.record_policies import FILTERED, PLAIN, SELECTED, STAMPED, WHERE
from tests.support.independent import CREATE_TIME, Record, client

TOPICS = {PLAIN: 2, FILTERED: 1, WHERE: 1, SELECTED: 2, STAMPED: 1}
"""The number of partitions of each topic."""
_ALL = [
    TopicPartition(topic, partition)
    for topic, partitions in TOPICS.items()
    for partition in range(partitions)
]
_TICK_SECONDS = 0.05
_VALUE_BYTES = 1_200


class Writer:
    """An idempotent producer per upstream; records for an upstream that is down wait in order."""

    def __init__(
        self, upstreams: Mapping[str, Cluster], seed: int, per_second: int, clock: Clock
    ) -> None:
        self._failed: list[str] = []
        self._producers = {
            name: Producer(client(upstream, **_CONFIG) | {"error_cb": self._note})
            for name, upstream in upstreams.items()
        }
        self._chance = random.Random(seed)
        self._per_second = per_second
        self._clock = clock
        self._refused: list[str] = []
        self.written: Counter[TopicPartition] = Counter()

    @property
    def count(self) -> int:
        """The number of records so far, each counted once."""
        return self.written.total()

    def write_until(self, over: threading.Event) -> None:
        """Write at a steady rate."""
        began = self._clock.monotonic()
        while not over.wait(_TICK_SECONDS):
            due = int((self._clock.monotonic() - began) * self._per_second)
            for number in range(self.count, due):
                self._write(
                    self._chance.choice(_ALL), record(number, self._clock.now_ms(), self._chance)
                )
            for producer in self._producers.values():
                producer.poll(0)

    def flush(self, within_seconds: float) -> None:
        """Wait until both upstreams have all records."""
        for name, producer in self._producers.items():
            left = producer.flush(within_seconds)
            assert not left, (
                f"upstream {name} still misses {left} records after {within_seconds:g} s;"
                f" {'; '.join(self._failed) or 'its producer reports no fatal error'}"
            )
        assert not self._refused, (
            f"an upstream refused {len(self._refused)} records, the first with: {self._refused[0]}"
        )

    def _write(self, at: TopicPartition, sent: Record) -> None:
        for producer in self._producers.values():
            while True:
                try:
                    producer.produce(
                        at.topic,
                        sent.value,
                        sent.key,
                        at.partition,
                        self._delivered,
                        timestamp=sent.timestamp[1],
                        headers=list(sent.headers),
                    )
                    break
                except BufferError:
                    producer.poll(_TICK_SECONDS)
        self.written[at] += 1

    def _note(self, error: KafkaError) -> None:
        if error.fatal():
            self._failed.append(error.str())

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self._refused.append(str(error))


_CONFIG: dict[str, object] = {
    "enable_idempotence": True,
    "acks": "all",
    # retry for any time: a record that only one upstream has would make the upstreams differ
    "message_timeout_ms": 0,
    "retries": 2**31 - 1,
    "linger_ms": 50,
    "compression_type": "lz4",
    "queue_buffering_max_messages": 1_000_000,
    "reconnect_backoff_max_ms": 500,
    # discover the leaders of a restarted upstream soon; the default is five minutes
    "topic_metadata_refresh_interval_ms": 1_000,
    "retry_backoff_max_ms": 500,
}


def record(number: int, now_ms: int, chance: random.Random) -> Record:
    """Make a unique record: its number is in its key, its header or its value."""
    name = b"%d" % number
    match chance.randrange(4):
        case 0:
            return Record(name, None, (), (CREATE_TIME, now_ms))
        case 1:
            return Record(None, None, (("number", name), ("empty", None)), (CREATE_TIME, now_ms))
        case 2:
            return Record(
                None,
                name.ljust(chance.randrange(20, _VALUE_BYTES), b"."),
                (),
                (CREATE_TIME, now_ms),
            )
        case _:
            noise = chance.randbytes(chance.randrange(_VALUE_BYTES))
            return Record(
                b"key", noise, (("number", name), ("number", b"again")), (CREATE_TIME, now_ms)
            )

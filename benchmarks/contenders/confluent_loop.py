"""A loop of confluent-kafka's consumer and producer, with librdkafka's batching defaults."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as Position

from benchmarks.values import Case, Cost
from benchmarks.workers import run_together
from relay_pipelines.model import OffsetRange, TopicPartition

_CONSUMED_AT_ONCE = 10_000
_WAIT_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoopWork:
    """One topic-partition."""

    source_servers: str
    destination_servers: str
    source: OffsetRange
    destination: TopicPartition
    codec: str

    def run(self) -> None:
        """Consume to the end of the range, produce, flush."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.source_servers,
                "group.id": f"loop-{self.destination}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        producer = Producer(
            {"bootstrap.servers": self.destination_servers, "compression.type": self.codec}
        )
        consumer.assign(
            [
                Position(
                    self.source.topic_partition.topic,
                    self.source.topic_partition.partition,
                    self.source.start,
                )
            ]
        )
        try:
            self._copy(consumer, producer)
            producer.flush(_PATIENCE_SECONDS)
        finally:
            consumer.close()

    def _copy(self, consumer: Consumer, producer: Producer) -> None:
        topic, partition = self.destination.topic, self.destination.partition
        position = self.source.start
        heard = time.monotonic()
        while position < self.source.end:
            # `consume` waits for the full number of messages, at the end no longer than this
            messages = consumer.consume(
                min(_CONSUMED_AT_ONCE, self.source.end - position), _WAIT_SECONDS
            )
            if not messages and time.monotonic() - heard > _PATIENCE_SECONDS:
                raise TimeoutError(f"nothing to consume at offset {position}")
            for message in messages:
                if message.error():
                    raise RuntimeError(str(message.error()))
                _produce(producer, topic, partition, message)
                position = message.offset() + 1
            heard = time.monotonic() if messages else heard
            producer.poll(0)


def _produce(producer: Producer, topic: str, partition: int, message: Message) -> None:
    kind, timestamp = message.timestamp()
    while True:
        try:
            producer.produce(
                topic,
                message.value(),
                message.key(),
                partition,
                timestamp=timestamp if kind else 0,
                headers=message.headers(),
            )
        except BufferError:
            # the queue is full: wait for deliveries
            producer.poll(1.0)
        else:
            return


class ConfluentLoop:
    """One process per topic-partition."""

    name = "confluent-kafka loop"
    guarantee = "at least once"
    inputs: tuple[str, ...] = ()
    copies = True

    def copy(self, case: Case) -> Cost:
        """Run one loop per topic-partition."""
        servers = [
            ",".join(cluster.bootstrap_servers) for cluster in (case.source, case.destination)
        ]
        works = [
            LoopWork(servers[0], servers[1], source, destination, case.codec)
            for source, destination in case.pairs
        ]
        return run_together(works, case.limit_seconds)

    def close(self) -> None:
        """Do nothing: no process remains after a copy."""

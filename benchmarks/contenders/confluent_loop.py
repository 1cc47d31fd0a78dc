"""A loop of confluent-kafka's consumer and producer, with librdkafka's batching defaults."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as Position

from benchmarks.contenders.contract import Contender
from benchmarks.values import TASKS, Case, Cost
from benchmarks.workers import run_together
from relay_pipelines.model import OffsetRange

_CONSUMED_AT_ONCE = 10_000
_WAIT_SECONDS = 0.1
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoopWork:
    """One process.

    Args:
        group: the consumer's group, in which nothing is committed.
        topics: the destination topic of each source topic.
    """

    source_servers: str
    destination_servers: str
    group: str
    ranges: list[OffsetRange]
    topics: dict[str, str]
    codec: str
    max_message_bytes: int

    def run(self) -> None:
        """Consume to the end of the ranges, produce, flush."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.source_servers,
                "group.id": self.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        producer = Producer(
            {
                "bootstrap.servers": self.destination_servers,
                "compression.type": self.codec,
                "message.max.bytes": self.max_message_bytes,
            }
        )
        consumer.assign(
            [
                Position(
                    offset_range.topic_partition.topic,
                    offset_range.topic_partition.partition,
                    offset_range.start,
                )
                for offset_range in self.ranges
            ]
        )
        try:
            self._copy(consumer, producer)
            producer.flush(_PATIENCE_SECONDS)
        finally:
            consumer.close()

    def _copy(self, consumer: Consumer, producer: Producer) -> None:
        topics = self.topics
        at = [
            (offset_range.topic_partition.topic, offset_range.topic_partition.partition)
            for offset_range in self.ranges
        ]
        ends = dict(zip(at, (offset_range.end for offset_range in self.ranges), strict=True))
        positions = dict(zip(at, (offset_range.start for offset_range in self.ranges), strict=True))
        heard = time.monotonic()
        while remaining := sum(ends.values()) - sum(positions.values()):
            # `consume` waits for the full number of messages, at the end no longer than this
            messages = consumer.consume(min(_CONSUMED_AT_ONCE, remaining), _WAIT_SECONDS)
            if not messages and time.monotonic() - heard > _PATIENCE_SECONDS:
                raise TimeoutError(f"nothing to consume, {remaining} offsets before the end")
            for message in messages:
                if message.error():
                    raise RuntimeError(str(message.error()))
                topic, partition = message.topic(), message.partition()
                _produce(producer, topics[topic], partition, message)
                positions[topic, partition] = message.offset() + 1
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


class ConfluentLoop(Contender):
    """Two processes, each with a consumer and a producer."""

    name = "confluent-kafka loop"
    guarantee = "at least once"

    def copy(self, case: Case) -> Cost:
        """Run the loops, each for every second topic-partition."""
        source, destination = (
            ",".join(cluster.bootstrap_servers) for cluster in (case.source, case.destination)
        )
        ranges = [extent.range for extent in case.extents]
        works = [
            LoopWork(
                source,
                destination,
                f"loop-{case.attempt}-{number}",
                ranges[number::TASKS],
                case.topics,
                case.codec,
                case.input.max_message_bytes,
            )
            for number in range(TASKS)
        ]
        return run_together(works, case.limit_seconds)

"""The source data: two partitions with every kind of batch, about 100 batches each."""

import random
from collections.abc import Callable, Mapping

from confluent_kafka import Producer

from relay_pipelines.local_kafka import LocalCluster

PARTITIONS = 2
LARGE_BATCHES = {"compression.type": "lz4", "batch.num.messages": 200, "linger.ms": 50}
ONE_RECORD_BATCHES = {"batch.num.messages": 1}
_VALUE_BYTES = 300
_TIMESTAMP_MS = 1_700_000_000_000


def fill(cluster: LocalCluster, topic: str) -> None:
    """Write 40,000 records that a reader of committed records sees, and 2,000 that were aborted."""
    append(cluster, topic, 8_000, LARGE_BATCHES)
    append(cluster, topic, 1_000, ONE_RECORD_BATCHES)
    _append_transactions(cluster, topic)
    append(cluster, topic, 7_000, LARGE_BATCHES | {"compression.type": "none"})


def append(cluster: LocalCluster, topic: str, records: int, settings: Mapping[str, object]) -> None:
    """Write that many records to each partition, with a producer of these settings."""
    producer = _producer(cluster, settings)
    _produce(producer, topic, records)
    producer.flush()


def _append_transactions(cluster: LocalCluster, topic: str) -> None:
    producer = _producer(cluster, LARGE_BATCHES | {"transactional.id": f"seed-{topic}"})
    producer.init_transactions(60)
    ends: list[Callable[[float], object]] = [
        producer.commit_transaction,
        producer.abort_transaction,
    ] * 2
    for end, records in zip(ends, [2_000, 500, 2_000, 500], strict=True):
        producer.begin_transaction()
        _produce(producer, topic, records)
        producer.flush()
        end(60)


def _producer(cluster: LocalCluster, settings: Mapping[str, object]) -> Producer:
    return Producer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "enable.idempotence": True,
            "log_level": 0,
            **settings,
        }
    )


def _produce(producer: Producer, topic: str, records: int) -> None:
    noise = random.Random(records)
    for number in range(records):
        key = None if number % 7 == 0 else b"key-%d" % number
        value = None if number % 11 == 0 else noise.randbytes(_VALUE_BYTES)
        headers = [("number", b"%d" % number), ("number", b"again")] if number % 5 == 0 else None
        for partition in range(PARTITIONS):
            while True:
                try:
                    producer.produce(
                        topic,
                        value,
                        key,
                        partition,
                        headers=headers,
                        timestamp=_TIMESTAMP_MS + 7 * number - number % 3,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        if number % 500 == 0:
            producer.poll(0)

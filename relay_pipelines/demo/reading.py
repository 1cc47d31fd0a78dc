"""Reads topics from end to end with a Kafka client that shares no code with the mirror."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from relay_pipelines.demo.events import TRACE_ID
from relay_pipelines.demo.proof import Content, Side
from relay_pipelines.model import Cluster, TopicPartition

_MESSAGES = 5_000
_NULL = -1


def read_all(clusters: Sequence[Cluster], wanted: Sequence[TopicPartition]) -> list[Side]:
    """Read topic-partitions of several clusters at the same time, a thread each; only what was committed."""
    over = threading.Event()
    with ThreadPoolExecutor(len(clusters)) as pool:
        try:
            sides = [pool.submit(_read, cluster, wanted, over) for cluster in clusters]
            return [side.result() for side in sides]
        finally:
            # also after Ctrl-C: leaving the pool waits for its threads
            over.set()


def _read(cluster: Cluster, wanted: Sequence[TopicPartition], over: threading.Event) -> Side:
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "group.id": "relay-demo",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    content = {(one.topic, one.partition): Content() for one in wanted}
    consumer.assign(
        [KafkaTopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in content]
    )
    unread = set(content)
    try:
        while unread and not over.is_set():
            for message in consumer.consume(_MESSAGES, 0.2):
                at = message.topic(), message.partition()
                if not message.error():
                    content[at].add(message.offset(), *_identity_and_digest(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name of it
                    unread.discard(at)
                else:
                    raise KafkaException(message.error())
    finally:
        consumer.close()
    return {TopicPartition(*at): held for at, held in content.items()}


def _identity_and_digest(message: Message) -> tuple[bytes, bytes]:
    headers = message.headers() or []
    parts = [message.key(), message.value()]
    identity = b""
    for name, value in headers:
        parts += (name.encode(), value)
        if name == TRACE_ID:
            identity = value or b""
    # with every length written before, no two records have the same bytes
    lengths = [_NULL if part is None else len(part) for part in parts]
    head = struct.pack(f">iq{len(parts)}i", *message.timestamp(), *lengths)
    return identity, hashlib.blake2b(
        b"".join([head, *(part or b"" for part in parts)]), digest_size=16
    ).digest()

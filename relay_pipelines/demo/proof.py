"""Reads clusters with a Kafka client that shares no code with the mirror, and compares them."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from relay_pipelines.demo.shop import TRACE_ID
from relay_pipelines.model import Cluster, TopicPartition

_MESSAGES = 5_000


class Record(NamedTuple):
    """A record as the proof sees it.

    Args:
        identity: the trace id.
        digest: of key, value, headers and timestamp.
    """

    offset: int
    identity: bytes
    digest: bytes


Content = list[Record]
"""All records of one topic-partition, in order."""

Side = Mapping[TopicPartition, Content]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one topic-partition at the destination differs from the source.

    Args:
        lost: records of the source that are missing at the destination.
        duplicates: additional copies of records at the destination.
        foreign: records at the destination that the source never had.
        changed: records on both sides with another key, value, header or timestamp.
        same_order: both sides have the same records in the same order.
    """

    topic_partition: TopicPartition
    source_records: int
    destination_records: int
    lost: int
    duplicates: int
    foreign: int
    changed: int
    same_order: bool

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        differences = self.lost or self.duplicates or self.foreign or self.changed
        return self.same_order and not differences


def compare(topic_partition: TopicPartition, source: Content, destination: Content) -> Comparison:
    """Count differences by identity, so that a loss and a duplicate do not cancel out."""
    wanted = Counter(record.identity for record in source)
    found = Counter(record.identity for record in destination)
    surplus = found - wanted
    foreign = sum(count for identity, count in surplus.items() if identity not in wanted)
    contents, copies = ([record[1:] for record in side] for side in (source, destination))
    return Comparison(
        topic_partition=topic_partition,
        source_records=len(source),
        destination_records=len(destination),
        lost=(wanted - found).total(),
        duplicates=surplus.total() - foreign,
        foreign=foreign,
        changed=(wanted & found).total() - (Counter(contents) & Counter(copies)).total(),
        same_order=contents == copies,
    )


def compare_all(source: Side, destination: Side) -> list[Comparison]:
    """Compare every topic-partition that either side has."""
    return [
        compare(at, source.get(at, []), destination.get(at, []))
        for at in sorted({*source, *destination})
    ]


def read_all(clusters: Sequence[Cluster], wanted: Sequence[TopicPartition]) -> list[Side]:
    """Read the committed records of several clusters in parallel."""
    over = threading.Event()
    with ThreadPoolExecutor(len(clusters)) as pool:
        try:
            sides = [pool.submit(_read, cluster, wanted, over) for cluster in clusters]
            return [side.result() for side in sides]
        finally:
            # after Ctrl-C, too, the pool waits for its threads
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
    content: dict[TopicPartition, Content] = {at: [] for at in wanted}
    consumer.assign(
        [KafkaTopicPartition(at.topic, at.partition, OFFSET_BEGINNING) for at in wanted]
    )
    unread = set(content)
    try:
        while unread and not over.is_set():
            for message in consumer.consume(_MESSAGES, 0.2):
                source = TopicPartition(message.topic(), message.partition())
                if not message.error():
                    content[source].append(_record(message))
                elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                    unread.discard(source)
                else:
                    raise KafkaException(message.error())
    finally:
        consumer.close()
    return content


def _record(message: Message) -> Record:
    headers = message.headers() or []
    parts = [message.key(), message.value()]
    for name, value in headers:
        parts += (name.encode(), value)
    # the lengths come first, so different records never have the same bytes
    lengths = [-1 if part is None else len(part) for part in parts]
    head = struct.pack(f">iq{len(parts)}i", *message.timestamp(), *lengths)
    content = b"".join([head, *(part or b"" for part in parts)])
    digest = hashlib.blake2b(content, digest_size=16).digest()
    return Record(message.offset(), dict(headers).get(TRACE_ID) or b"", digest)

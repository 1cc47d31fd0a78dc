"""Reads clusters with a Kafka client that shares no code with the mirror, and compares them.

Which upstream delivered which records, as the ledger at the destination says.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from relay_pipelines.demo.shop import MIRROR, TRACE_ID
from relay_pipelines.ledger.reader import LedgerReader
from relay_pipelines.model import Cluster, CopyOptions, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock

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
    expected = Counter(record.identity for record in source)
    copied = Counter(record.identity for record in destination)
    surplus = copied - expected
    foreign = sum(count for identity, count in surplus.items() if identity not in expected)
    contents, copies = ([record[1:] for record in side] for side in (source, destination))
    return Comparison(
        topic_partition=topic_partition,
        source_records=len(source),
        destination_records=len(destination),
        lost=(expected - copied).total(),
        duplicates=surplus.total() - foreign,
        foreign=foreign,
        changed=(expected & copied).total() - (Counter(contents) & Counter(copies)).total(),
        same_order=contents == copies,
    )


def compare_all(source: Side, destination: Side) -> list[Comparison]:
    """Compare every topic-partition that either side has."""
    return [
        compare(tp, source.get(tp, []), destination.get(tp, []))
        for tp in sorted({*source, *destination})
    ]


def read_all(clusters: Sequence[Cluster], partitions: Sequence[TopicPartition]) -> list[Side]:
    """Read the committed records of several clusters in parallel."""
    over = threading.Event()
    with ThreadPoolExecutor(len(clusters)) as pool:
        try:
            sides = [pool.submit(_read, cluster, partitions, over) for cluster in clusters]
            return [side.result() for side in sides]
        finally:
            # after Ctrl-C, too, the pool waits for its threads
            over.set()


def _read(cluster: Cluster, partitions: Sequence[TopicPartition], over: threading.Event) -> Side:
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
    content: dict[TopicPartition, Content] = {tp: [] for tp in partitions}
    consumer.assign(
        [KafkaTopicPartition(tp.topic, tp.partition, OFFSET_BEGINNING) for tp in partitions]
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


class Ledger:
    """All entries that the mirror has committed."""

    def __init__(self, destination: Cluster, clock: Clock) -> None:
        client = destination_client(MIRROR, destination, CopyOptions(), clock)
        self._reader = LedgerReader(client)
        self.entries: list[LedgerEntry] = []
        self.close = client.end

    def poll(self) -> int:
        """Read the new entries and return the number of all entries."""
        if self.entries:
            self.entries += self._reader.poll()
        else:  # the first run may have yet to create the topic
            self.entries += [record.entry for record in self._reader.forward()]
        return len(self.entries)

    @property
    def offsets(self) -> int:
        """How many source offsets the entries cover."""
        return sum(len(entry.source) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Share:
    """Consecutive offsets of one topic-partition that one upstream delivered.

    Args:
        records: at the destination; fewer than offsets where the source was compacted.
        chunks: how many commits it took.
    """

    source: OffsetRange
    upstream: str
    records: int
    chunks: int


def shares(entries: Iterable[LedgerEntry]) -> list[Share]:
    """Join consecutive entries of the same upstream, sorted by topic-partition and offset."""
    made: list[Share] = []
    for entry in sorted(entries, key=lambda entry: entry.source):
        start = entry.tp, entry.source.start, entry.upstream
        last = made[-1] if made else None
        if last and start == (last.source.topic_partition, last.source.end, last.upstream):
            source = replace(last.source, end=entry.source.end)
            made[-1] = Share(source, last.upstream, last.records + entry.records, last.chunks + 1)
        else:
            made.append(Share(entry.source, entry.upstream, entry.records, 1))
    return made

"""Creates, deletes and counts topics of the two clusters; counts come from batch headers."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka.admin import AdminClient

from benchmarks.inputs import Input
from benchmarks.seeding import seed
from benchmarks.values import Case, Extent
from relay_pipelines.errors import SourceError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import Listener, LocalCluster
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.protocol import admin
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.fetch import FetchResponse
from relay_pipelines.protocol.reader import fetch_first, read
from tests.support.certificates import make_certificates

BROKER_HEAP = "1g"
_BROKER_CONFIG = {
    # never: the records are years older than the markers of transactions, so that every topic-
    # partition that is copied in a transaction would get a second segment, with an fsync
    "log.roll.ms": 100 * 365 * 24 * 3_600_000,
    "log.cleaner.backoff.ms": 500,
    # delete the records of one contender before the next one writes
    "log.segment.delete.delay.ms": 0,
    # as large as Kafka's own default: the embedded one is too small to clean millions of keys in
    # one pass
    "log.cleaner.dedupe.buffer.size": 128 << 20,
}
_EAGER_CLEANING = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.bytes": str(32 << 20),
    # by the records' own timestamps
    "segment.ms": "600000",
}
# the records are years old
_RETAINED = {"retention.ms": "-1"}
_TIMEOUT_SECONDS = 60.0
_SECONDS_A_TOPIC = 0.1  # on a machine with other work
_CLEANING_SECONDS = 180.0
_SETTLING_SECONDS = 10.0
_SCAN_BYTES = 4 << 20
_AT_ONCE = 200


@contextmanager
def embedded(name: str) -> Iterator[LocalCluster]:
    """Start a broker with the heap of a real one, a plain listener and a TLS listener."""
    options = (f"-Xms{BROKER_HEAP}", f"-Xmx{BROKER_HEAP}", "-XX:+UseG1GC")
    with (
        TemporaryDirectory(prefix="relay-tls-") as tls,
        LocalCluster(
            name,
            listeners=(Listener.PLAINTEXT, Listener.SSL),
            certificates=make_certificates(Path(tls)),
            config=_BROKER_CONFIG,
            jvm_options=options,
        ) as cluster,
    ):
        yield cluster


def create_topics(
    cluster: Cluster, topics: Collection[str], partitions: int, configs: Mapping[str, str]
) -> None:
    """Create topics unless they exist, and wait until they accept records."""
    with ClusterClient(cluster, SourceError) as client:
        # a KRaft controller limits how many topics and topic-partitions one request may create
        wanted = [admin.NewTopic(topic, partitions, {**_RETAINED, **configs}) for topic in topics]
        for first in range(0, len(wanted), _AT_ONCE):
            admin.create_topics(client, wanted[first : first + _AT_ONCE], None)
        limit_seconds = max(_TIMEOUT_SECONDS, _SECONDS_A_TOPIC * len(wanted))
        deadline = time.monotonic() + limit_seconds
        while not _serves(client, topics):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"topics such as {next(iter(topics))} have no leaders after {limit_seconds:g} s"
                )
            time.sleep(0.05)


def create_destinations(cluster: Cluster, case: Case) -> None:
    """Create the topics to copy to."""
    create_topics(cluster, case.topics.values(), case.input.partitions, case.input.configs)


def delete_topics(cluster: Cluster, *parts: str) -> None:
    """Delete every topic whose name contains one of the parts."""
    admin = AdminClient({"bootstrap.servers": ",".join(cluster.bootstrap_servers), "log_level": 3})
    names = [
        name
        for name in admin.list_topics(timeout=_TIMEOUT_SECONDS).topics
        if any(part in name for part in parts)
    ]
    if names:
        for done in admin.delete_topics(names, operation_timeout=_TIMEOUT_SECONDS).values():
            done.result(_TIMEOUT_SECONDS)


def create_own_topics(cluster: Cluster) -> None:
    """Create the state topics: `relay run` creates them itself, tasks alone do not."""
    create_topics(cluster, [checkpoint.TOPIC], checkpoint.PARTITIONS, checkpoint.CONFIGS)
    create_topics(cluster, [ledger_topic.TOPIC], checkpoint.PARTITIONS, ledger_topic.CONFIGS)


def make_input(cluster: Cluster, topic: str, spec: Input) -> tuple[Extent, ...]:
    """Create and fill the topics, wait for the cleaner, and return what a consumer would find."""
    partitions = spec.topic_partitions(topic)
    configs = spec.configs | (_EAGER_CLEANING if spec.compacted else {})
    create_topics(cluster, {partition.topic for partition in partitions}, spec.partitions, configs)
    seed(cluster, topic, spec)
    extents = scan(cluster, partitions)
    # one record per key stays, and the sentinel
    each = spec.records_each // 2 + 1 if spec.compacted else spec.records_each
    expected = each * len(partitions)
    deadline = time.monotonic() + _CLEANING_SECONDS
    while sum(extent.records for extent in extents) != expected:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{topic} has {sum(extent.records for extent in extents)} records instead of"
                f" {expected}"
            )
        time.sleep(1.0)
        extents = scan(cluster, partitions)
    return extents


def scan(cluster: Cluster, partitions: Sequence[TopicPartition]) -> tuple[Extent, ...]:
    """Count what a read_committed consumer would find, from batch headers."""
    with ClusterClient(cluster, SourceError, purpose="counting") as client:
        starts = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
        ends = _settled_ends(client, partitions)
        extents: list[Extent] = []
        for first in range(0, len(partitions), _AT_ONCE):
            topic_partitions = partitions[first : first + _AT_ONCE]
            firsts, _ = fetch_first(
                client, {partition: starts[partition] for partition in topic_partitions}
            )
            extents += (
                _extent(
                    client,
                    OffsetRange(partition, starts[partition], ends[partition]),
                    firsts.get(partition),
                )
                for partition in topic_partitions
            )
        return tuple(extents)


def _settled_ends(
    client: ClusterClient, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The last stable offsets, without open transactions: EndTxn returns before its markers."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    while True:
        written = client.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
        stable = client.list_offsets(partitions, LATEST, READ_COMMITTED)
        if stable == written or time.monotonic() > deadline:
            return stable
        time.sleep(0.05)


def _extent(
    client: ClusterClient, offset_range: OffsetRange, first: FetchResponse | None
) -> Extent:
    records = size_bytes = batches = 0
    for spans in read(client, offset_range, _SCAN_BYTES, first=first):
        for span in spans:
            if span.run is not None:
                records += span.run.first.records
                size_bytes += len(span.run.data)
                batches += 1
    return Extent(offset_range, records, size_bytes, batches)


def _serves(client: ClusterClient, topics: Collection[str]) -> bool:
    """Whether the leaders answer: metadata names a leader before it knows that it leads."""
    found = client.metadata(list(topics)).topics.values()
    if any(
        topic.error_code or any(leader < 0 for leader in topic.leaders.values()) for topic in found
    ):
        return False
    partitions = [tp for topic in found for tp in topic.topic_partitions]
    try:
        client.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
    except SourceError:
        return False
    return True

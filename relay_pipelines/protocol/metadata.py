"""The Metadata request, as fixed structs: each look at a cluster asks about thousands of topics.

Version 12 (Kafka 3.0) is read here; the older ones as kafka-python reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from kafka.protocol.metadata import MetadataRequest

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import compact

API_KEY = 3
VERSION = 12
_NO_ID = bytes(16)
# no topic is created, and no permissions are listed
_REQUEST_END = b"\0\0" + compact.NO_TAGS
_INT32 = struct.Struct(">i")
_ERROR = struct.Struct(">h")
# error, partition, leader, leader epoch
_PARTITION = struct.Struct(">hiii")


@dataclass(frozen=True)  # without slots, for the cached property
class TopicMetadata:
    """A topic.

    Args:
        topic_id: empty before Kafka 2.8.
        leaders: the leading broker's id per partition; -1 for none.
        replicas: how many each partition has, in sync or not.
        in_sync: how many of them are in sync.
    """

    name: str
    topic_id: str
    leaders: dict[int, int]
    leader_epochs: dict[int, int] = field(default_factory=dict)
    replicas: dict[int, int] = field(default_factory=dict)
    in_sync: dict[int, int] = field(default_factory=dict)
    is_internal: bool = False
    error_code: int = 0

    @cached_property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """All its topic-partitions, in order."""
        return tuple(TopicPartition(self.name, partition) for partition in sorted(self.leaders))

    def has_leader(self, partition: int) -> bool:
        """Whether a partition has a leader."""
        return self.leaders.get(partition, -1) >= 0


@dataclass(slots=True)
class Metadata:
    """What a cluster reports about itself."""

    cluster_id: str = ""
    controller_id: int = -1
    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)


def encode(topics: Sequence[str] | None) -> bytes:
    """Return a request about these topics, or all, in version 12; with the tags of its header."""
    if topics is None:
        return b"".join((compact.NO_TAGS, compact.size(0), _REQUEST_END))
    parts = [compact.NO_TAGS, compact.size(len(topics) + 1)]
    for topic in topics:
        name = topic.encode()
        parts += (_NO_ID, compact.size(len(name) + 1), name, compact.NO_TAGS)
    return b"".join((*parts, _REQUEST_END))


def decode(body: memoryview) -> Metadata:
    """Read the answer to `encode`, with the tags of its header."""
    data = bytes(body)
    found = _decoded(data[compact.after_tags(data, 0) + _INT32.size :])  # the throttle time
    return replace(found, brokers=dict(found.brokers), topics=dict(found.topics))


@lru_cache(maxsize=8)
def _decoded(data: bytes) -> Metadata:
    """Read it once: from one look at a cluster to the next, it seldom changes."""
    brokers, at = _brokers(data, 0)
    cluster_id, at = compact.string(data, at)
    (controller_id,) = _INT32.unpack_from(data, at)
    topics: dict[str, TopicMetadata] = {}
    count, at = compact.unsigned(data, at + _INT32.size)
    for _ in range(count - 1):
        topic, at = _topic(data, at)
        topics[topic.name] = topic
    return Metadata(cluster_id, controller_id, brokers, topics)


def _brokers(data: bytes, at: int) -> tuple[dict[int, tuple[str, int]], int]:
    brokers = {}
    count, at = compact.unsigned(data, at)
    for _ in range(count - 1):
        (node_id,) = _INT32.unpack_from(data, at)
        host, at = compact.string(data, at + _INT32.size)
        (port,) = _INT32.unpack_from(data, at)
        _, at = compact.string(data, at + _INT32.size)  # its rack
        brokers[node_id] = host, port
        at = compact.after_tags(data, at)
    return brokers, at


def _topic(data: bytes, at: int) -> tuple[TopicMetadata, int]:
    (error_code,) = _ERROR.unpack_from(data, at)
    name, at = compact.string(data, at + _ERROR.size)
    topic_id, is_internal = data[at : at + 16], bool(data[at + 16])
    leaders: dict[int, int] = {}
    leader_epochs: dict[int, int] = {}
    replicas: dict[int, int] = {}
    in_sync: dict[int, int] = {}
    count, at = compact.unsigned(data, at + 17)
    for _ in range(count - 1):
        _, partition, leader, epoch = _PARTITION.unpack_from(data, at)
        leaders[partition], leader_epochs[partition] = leader, epoch
        replicas[partition], at = _length(data, at + _PARTITION.size)
        in_sync[partition], at = _length(data, at)
        _, at = _length(data, at)  # offline replicas
        at = compact.after_tags(data, at)
    at = compact.after_tags(data, at + _INT32.size)  # the permissions
    found = TopicMetadata(
        name,
        _uuid(topic_id),
        leaders,
        leader_epochs,
        replicas,
        in_sync,
        is_internal,
        error_code,
    )
    return found, at


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return how many brokers an array names, and where it ends."""
    count, at = compact.unsigned(data, at)
    return count - 1, at + (count - 1) * _INT32.size


def _uuid(value: bytes) -> str:
    if value == _NO_ID:
        return ""
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def request(topics: Sequence[str] | None) -> MetadataRequest:
    """Return the request for brokers before Kafka 3.0."""
    return MetadataRequest(
        topics=None
        if topics is None
        else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def of_answer(answer: Any) -> Metadata:
    """Return what kafka-python has read of the answer to `request`."""
    topics = {
        topic.name: TopicMetadata(
            name=topic.name,
            topic_id=str(topic.topic_id or ""),
            leaders={found.partition_index: found.leader_id for found in topic.partitions},
            # before version 7 brokers do not say
            leader_epochs={
                found.partition_index: found.leader_epoch
                for found in topic.partitions
                if found.leader_epoch is not None
            },
            replicas={
                found.partition_index: len(found.replica_nodes) for found in topic.partitions
            },
            in_sync={found.partition_index: len(found.isr_nodes) for found in topic.partitions},
            is_internal=topic.is_internal,
            error_code=topic.error_code,
        )
        for topic in answer.topics
    }
    brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
    return Metadata(answer.cluster_id or "", answer.controller_id, brokers, topics)

"""The Metadata request, and what it says of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import error_codes

API_KEY = 3
VERSION = 12
_NO_ID = UUID(int=0)


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

    @property
    def is_hidden(self) -> bool:
        """Whether the user may not describe it: brokers refuse a name whether or not it exists."""
        return self.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED

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

    def has_leader(self, topic_partition: TopicPartition) -> bool:
        """Whether a topic-partition is known, and has a leader."""
        topic = self.topics.get(topic_partition.topic)
        return topic is not None and topic.has_leader(topic_partition.partition)


def read(response_class: Any, version: int, body: bytes) -> Metadata:
    """Read the answer to `request`."""
    answer = _read(response_class, version, body)
    return replace(answer, brokers=dict(answer.brokers), topics=dict(answer.topics))


@lru_cache(maxsize=8)
def _read(response_class: Any, version: int, body: bytes) -> Metadata:
    """Read it once: from one look at a cluster to the next, it seldom changes."""
    return _of_answer(response_class.decode(body, version=version))


def request(topics: Sequence[str] | None) -> MetadataRequest:
    """Return a request about these topics, or all; it creates none."""
    return MetadataRequest(
        topics=None
        if topics is None
        else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def _of_answer(answer: Any) -> Metadata:
    topics = {
        topic.name: TopicMetadata(
            name=topic.name,
            topic_id="" if topic.topic_id in {None, _NO_ID} else str(topic.topic_id),
            leaders={
                partition.partition_index: partition.leader_id for partition in topic.partitions
            },
            # before version 7 brokers do not say
            leader_epochs={
                partition.partition_index: partition.leader_epoch
                for partition in topic.partitions
                if partition.leader_epoch is not None
            },
            replicas={
                partition.partition_index: len(partition.replica_nodes)
                for partition in topic.partitions
            },
            in_sync={
                partition.partition_index: len(partition.isr_nodes)
                for partition in topic.partitions
            },
            is_internal=topic.is_internal,
            error_code=topic.error_code,
        )
        for topic in answer.topics
    }
    brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
    return Metadata(answer.cluster_id or "", answer.controller_id, brokers, topics)

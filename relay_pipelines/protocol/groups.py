"""Consumer groups: what they have committed. On the driver."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.protocol.consumer import OffsetFetchRequest

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import GROUP, ClusterClient


def committed_offsets(
    client: ClusterClient, group: str, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed; topic-partitions without a commit are absent.

    Raises:
        PermissionDeniedError: the user may not describe the group.
    """
    topics: dict[str, list[int]] = {}
    for topic_partition in wanted:
        topics.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    asked = [
        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=partitions)
        for name, partitions in topics.items()
    ]
    request = OffsetFetchRequest(group_id=group, topics=asked, require_stable=True)
    answer = client.call(client.coordinator(group, GROUP), request, 7)
    doing = f"OffsetFetch of group {group}"
    client.raise_for_error(answer, doing)
    offsets: dict[TopicPartition, int] = {}
    for topic in answer.topics:
        for found in topic.partitions:
            client.raise_for_error(found, doing)
            if found.committed_offset >= 0:
                at = TopicPartition(topic.name, found.partition_index)
                offsets[at] = found.committed_offset
    return offsets

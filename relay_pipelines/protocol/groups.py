"""Consumer groups: what they have committed. On the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kafka.protocol.consumer import OffsetFetchRequest

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import error_codes
from relay_pipelines.protocol.client import GROUP, ClusterClient


def committed_offsets(
    client: ClusterClient, group: str, wanted: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets that a group has committed; topic-partitions without a commit are left out.

    Raises:
        PermissionDeniedError: the user may not describe the group.
    """
    topics: dict[str, list[int]] = defaultdict(list)
    for one in wanted:
        topics[one.topic].append(one.partition)
    asked = [
        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=some)
        for name, some in topics.items()
    ]
    request = OffsetFetchRequest(group_id=group, topics=asked, require_stable=True)
    answer = client.call(client.coordinator(group, GROUP), request, 7)
    _refuse(client, group, answer.error_code)
    offsets: dict[TopicPartition, int] = {}
    for topic in answer.topics:
        for one in topic.partitions:
            _refuse(client, group, one.error_code)
            if one.committed_offset >= 0:
                offsets[TopicPartition(topic.name, one.partition_index)] = one.committed_offset
    return offsets


def _refuse(client: ClusterClient, group: str, code: int) -> None:
    if code != error_codes.NONE:
        raise client.failure(code, f"OffsetFetch of group {group}")

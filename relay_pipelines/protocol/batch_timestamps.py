"""When records were written, committed or not: one timestamp per topic-partition. On the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka.protocol.consumer import FetchRequest

from relay_pipelines.errors import CorruptBatchError, UnsupportedError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import error_codes
from relay_pipelines.protocol.batch import split
from relay_pipelines.protocol.client import READ_UNCOMMITTED, ClusterClient

_ROUNDS = 16
_PARTITION_BYTES = 16 << 10
_REQUEST_BYTES = 4 << 20


def timestamps_ms(
    client: ClusterClient, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at or after each offset, one request per leader.

    A broker exceeds the requested size only for the first batch of its answer, so a few more rounds
    request what is missing. The result leaves out topic-partitions that are still unknown then, and
    those for which the broker answers with an error.

    Args:
        offsets: where to look; the most important come first.

    Raises:
        RetriableError: a broker is not reachable.
    """
    found: dict[TopicPartition, int] = {}
    waiting = dict(offsets)
    for _ in range(_ROUNDS):
        before = len(waiting)
        leaders: dict[int, list[TopicPartition]] = defaultdict(list)
        for at in waiting:
            leaders[client.leader(at)].append(at)
        for broker_id, led in leaders.items():
            request = _request({at: waiting[at] for at in led})
            for topic in client.call(broker_id, request, 11).responses:
                for partition in topic.partitions:
                    at = TopicPartition(topic.topic, partition.partition_index)
                    timestamp = _first_timestamp_ms(partition)
                    if timestamp is not None:
                        found[at] = timestamp
                    if timestamp is not None or partition.error_code != error_codes.NONE:
                        waiting.pop(at, None)
        if not waiting or len(waiting) == before:
            break
    return found


def _first_timestamp_ms(answer: Any) -> int | None:
    with suppress(UnsupportedError, CorruptBatchError):  # copying it will report the error
        for run in split(memoryview(answer.records or b"")):
            return run.first.first_timestamp_ms
    return None


def _request(offsets: Mapping[TopicPartition, int]) -> FetchRequest:
    topic_type = FetchRequest.FetchTopic
    partition_type = topic_type.FetchPartition
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=_REQUEST_BYTES,
        isolation_level=READ_UNCOMMITTED,
        # the same topic may appear several times: brokers answer in the order of the request, up to
        # its size
        topics=[
            topic_type(
                topic=at.topic,
                partitions=[
                    partition_type(
                        partition=at.partition,
                        fetch_offset=offset,
                        partition_max_bytes=_PARTITION_BYTES,
                    )
                ],
            )
            for at, offset in offsets.items()
        ],
        forgotten_topics_data=[],
        rack_id="",
    )

"""The Produce request for one batch of one topic-partition, as fixed structs.

Produce v8 (Kafka 2.4). The broker allows one batch per topic-partition and request (KIP-98), and
five requests in flight.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.fetch import encode_string

API_KEY = 0
VERSION = 8
MAX_IN_FLIGHT = 5
_ACKS_ALL = -1
_HEAD = struct.Struct(">hii")  # acks, timeout, topics
_PARTITION = struct.Struct(">iii")  # partitions, partition, size of the batch
_NO_STRING = b"\xff\xff"
# partitions, partition, error, base offset, append time, log start, record errors
_ANSWER = struct.Struct(">iihqqqi")


def prefix(transactional_id: str, topic: str, timeout_ms: int) -> bytes:
    """Return the part of the request that all batches to `topic` share."""
    return (
        encode_string(transactional_id)
        + _HEAD.pack(_ACKS_ALL, timeout_ms, 1)
        + encode_string(topic)
    )


def head(of_topic: bytes, topic_partition: TopicPartition, size_bytes: int) -> bytes:
    """Return the request up to the batch: the topic's `prefix`, the partition, the batch's size."""
    return of_topic + _PARTITION.pack(1, topic_partition.partition, size_bytes)


class ProduceResponse(NamedTuple):
    """What the broker answers for one batch; `base_offset` is that of its first record."""

    error_code: int
    base_offset: int
    message: str
    throttle_ms: int


def decode(body: memoryview, topic: bytes, wanted_partition: int) -> ProduceResponse:
    """Read the answer to one batch.

    Args:
        topic: the destination topic, as `encode_string` writes it.

    Raises:
        ValueError: it is about another topic-partition.
    """
    end = 6 + int.from_bytes(body[4:6], "big")
    _count, partition, error_code, base_offset, _append_time, _log_start, record_errors = (
        _ANSWER.unpack_from(body, end)
    )
    if body[4:end] != topic or partition != wanted_partition:
        raise ValueError(f"{bytes(body[6:end]).decode(errors='replace')}-{partition}")
    at = end + _ANSWER.size
    if not record_errors and body[at : at + 2] == _NO_STRING:  # every answer without an error
        return ProduceResponse(
            error_code, base_offset, "", int.from_bytes(body[at + 2 : at + 6], "big")
        )
    message = ""
    for _ in range(max(record_errors, 0)):
        record_message, at = _nullable_string(body, at + 4)
        message = message or record_message
    summary, at = _nullable_string(body, at)
    throttle_ms = int.from_bytes(body[at : at + 4], "big")
    return ProduceResponse(error_code, base_offset, message or summary, throttle_ms)


def _nullable_string(body: memoryview, at: int) -> tuple[str, int]:
    length = int.from_bytes(body[at : at + 2], "big", signed=True)
    end = at + 2 + max(length, 0)
    return bytes(body[at + 2 : end]).decode(), end

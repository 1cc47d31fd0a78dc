"""The Fetch request for one topic-partition, as fixed structs.

Decoding it field by field would cost more than the copy. Fetch v11 (Kafka 2.3) is the last version
with topic names instead of ids that every broker up to 4.x serves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from relay_pipelines.model import TopicPartition

API_KEY = 1
VERSION = 11
_READ_COMMITTED = 1
# replica, wait, min bytes, max bytes, isolation, session id, session epoch, topics
_HEAD = struct.Struct(">iiiibiii")
# partitions, partition, leader epoch, offset, log start, max bytes
_PARTITION = struct.Struct(">iiiqqi")
_TAIL = struct.pack(">ih", 0, 0)  # no forgotten topics, no rack
_RESPONSE = struct.Struct(">ihii")  # throttle, error, session, topics
# partitions, partition, error, high watermark, last stable offset, log start, aborted
_RESPONSE_PARTITION = struct.Struct(">iihqqqi")
_ABORTED = struct.Struct(">qq")


def encode_string(text: str) -> bytes:
    """A string as the older request versions write it: int16 length, then UTF-8."""
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def encode(
    topic_partition: TopicPartition,
    offset: int,
    *,
    leader_epoch: int,
    max_bytes: int,
    max_wait_ms: int,
) -> bytes:
    """Return a request for committed records from `offset` on.

    Args:
        leader_epoch: the broker refuses unless it still leads under this one (KIP-320); -1 for any.
        max_bytes: the broker exceeds it only for a single larger batch.
    """
    head = _HEAD.pack(-1, max_wait_ms, 1, max_bytes, _READ_COMMITTED, 0, -1, 1)
    partition = _PARTITION.pack(1, topic_partition.partition, leader_epoch, offset, -1, max_bytes)
    return head + encode_string(topic_partition.topic) + partition + _TAIL


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """What the broker answers for one topic-partition.

    Args:
        aborted: (producer id, first offset) of every aborted transaction that overlaps the records.
        records: a view into the connection's buffer, valid until the next receive.
    """

    throttle_ms: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


def decode(body: memoryview, asked: TopicPartition) -> FetchResponse:
    """Read the answer to `encode`.

    Raises:
        ValueError: it is about another topic-partition.
    """
    throttle_ms, error_code, _session, topics = _RESPONSE.unpack_from(body)
    empty = body[:0]
    if error_code or not topics:
        return FetchResponse(throttle_ms, error_code, -1, -1, -1, (), empty)
    at = _RESPONSE.size
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    fields = _RESPONSE_PARTITION.unpack_from(body, end)
    if body[at:end] != encode_string(asked.topic) or fields[1] != asked.partition:
        raise ValueError(f"{bytes(body[at + 2 : end]).decode(errors='replace')}-{fields[1]}")
    at = end
    error_code, high_watermark, last_stable_offset, log_start_offset, aborted_count = fields[2:]
    at += _RESPONSE_PARTITION.size
    aborted_bytes = max(aborted_count, 0) * _ABORTED.size
    aborted = tuple(_ABORTED.iter_unpack(body[at : at + aborted_bytes]))
    # the preferred read replica follows, which only a request with a rack sets
    at += aborted_bytes + 4
    size = int.from_bytes(body[at : at + 4], "big", signed=True)
    at += 4
    records = body[at : at + size] if size > 0 else empty
    return FetchResponse(
        throttle_ms,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        records,
    )

"""The Fetch request, as fixed structs.

Decoding it field by field would cost more than the copy. Fetch v11 (Kafka 2.3) is the last version
with topic names instead of ids that every broker up to 4.x serves.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from relay_pipelines.model import TopicPartition

API_KEY = 1
VERSION = 11
_READ_COMMITTED = 1
# replica, wait, min bytes, max bytes, isolation, session id, session epoch, topics
_HEAD = struct.Struct(">iiiibiii")
_COUNT = struct.Struct(">i")
# partition, leader epoch, offset, log start, max bytes
_PARTITION = struct.Struct(">iiqqi")
_NO_FORGOTTEN_TOPICS = _COUNT.pack(0)
_RESPONSE = struct.Struct(">ihii")  # throttle, error, session, topics
# partition, error, high watermark, last stable offset, log start, aborted
_RESPONSE_PARTITION = struct.Struct(">ihqqqi")
_ABORTED = struct.Struct(">qq")
_RESPONSE_RECORDS = struct.Struct(">ii")  # preferred read replica, size


@lru_cache(1 << 14)  # looks and tasks name the same topics again and again
def encode_string(text: str) -> bytes:
    """A string as the older request versions write it: int16 length, then UTF-8."""
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


class FetchPosition(NamedTuple):
    """Where to read a topic-partition.

    The broker refuses unless it still leads under `leader_epoch` (KIP-320); -1 for any.
    """

    topic_partition: TopicPartition
    offset: int
    leader_epoch: int


def encode(
    positions: Iterable[FetchPosition],
    *,
    max_bytes: int,
    partition_max_bytes: int,
    max_wait_ms: int,
    rack: str = "",
    isolation: int = _READ_COMMITTED,
) -> bytes:
    """Return a request for records, committed ones by default.

    Args:
        max_bytes: of the response; the broker exceeds it only for a single larger batch.
        partition_max_bytes: of each topic-partition; exceeded for a larger batch of the first only.
        rack: of the client, to which the leader may name a replica that is nearer (KIP-392).
    """
    topics: dict[str, list[bytes]] = {}
    for tp, offset, leader_epoch in positions:
        topics.setdefault(tp.topic, []).append(
            _PARTITION.pack(tp.partition, leader_epoch, offset, -1, partition_max_bytes)
        )
    parts = [_HEAD.pack(-1, max_wait_ms, 1, max_bytes, isolation, 0, -1, len(topics))]
    for topic, partitions in topics.items():
        parts += (encode_string(topic), _COUNT.pack(len(partitions)), *partitions)
    return b"".join((*parts, _NO_FORGOTTEN_TOPICS, encode_string(rack)))


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """What the broker answers about one topic-partition.

    Args:
        aborted: (producer id, first offset) of every aborted transaction that overlaps the records.
        preferred_replica: the broker to read from instead; -1 for none.
        records: a view into the connection's buffer, valid until the next receive.
    """

    throttle_ms: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    preferred_replica: int
    records: memoryview


def decode(
    body: memoryview, asked: Collection[TopicPartition]
) -> dict[TopicPartition, FetchResponse]:
    """Read the answer to `encode`.

    Raises:
        ValueError: it is not about the topic-partitions that were asked for.
    """
    throttle_ms, error_code, _session, topics = _RESPONSE.unpack_from(body)
    empty = body[:0]
    if error_code or not topics:
        failed = FetchResponse(throttle_ms, error_code, -1, -1, -1, (), -1, empty)
        return dict.fromkeys(asked, failed)
    at = _RESPONSE.size
    answers = {}
    for _ in range(topics):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        topic = str(body[at + 2 : end], "utf-8", "replace")
        partitions = int.from_bytes(body[end : end + 4], "big")
        at = end + 4
        for _ in range(partitions):
            partition, error_code, high_watermark, last_stable_offset, log_start_offset, count = (
                _RESPONSE_PARTITION.unpack_from(body, at)
            )
            at += _RESPONSE_PARTITION.size
            aborted_bytes = max(count, 0) * _ABORTED.size
            aborted = tuple(_ABORTED.iter_unpack(body[at : at + aborted_bytes]))
            at += aborted_bytes
            preferred_replica, size = _RESPONSE_RECORDS.unpack_from(body, at)
            at += _RESPONSE_RECORDS.size
            records = body[at : at + size] if size > 0 else empty
            at += max(size, 0)
            tp = TopicPartition(topic, partition)
            if tp in answers:
                raise ValueError(f"{tp} twice")
            answers[tp] = FetchResponse(
                throttle_ms,
                error_code,
                high_watermark,
                last_stable_offset,
                log_start_offset,
                aborted,
                preferred_replica,
                records,
            )
    if answers.keys() != set(asked):
        others = ", ".join(map(str, answers.keys() - set(asked)))
        raise ValueError(others or "too few topic-partitions")
    return answers

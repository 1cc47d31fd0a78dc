"""The Produce request, as fixed structs.

Produce v8 (Kafka 2.4). The broker allows one batch per topic-partition and request (KIP-98), and
five requests in flight.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from relay_pipelines.protocol.connection import Buffer
from relay_pipelines.protocol.fetch import encode_string

API_KEY = 0
VERSION = 8
MAX_IN_FLIGHT = 5
_ACKS_ALL = -1
_HEAD = struct.Struct(">hi")  # acks, timeout
_COUNT = struct.Struct(">i")
_PARTITION = struct.Struct(">ii")  # partition, size of the batch
_NO_STRING = b"\xff\xff"
# partition, error, base offset, append time, log start, record errors
_ANSWER = struct.Struct(">ihqqqi")


class SentBatch(NamedTuple):
    """A batch in two parts, and where it goes; `topic` is as `encode_string` writes it."""

    topic: bytes
    partition: int
    header: Buffer
    body: Buffer


def prefix(transactional_id: str | None, timeout_ms: int) -> bytes:
    """Return the part of the request that all requests of a producer share."""
    name = _NO_STRING if transactional_id is None else encode_string(transactional_id)
    return name + _HEAD.pack(_ACKS_ALL, timeout_ms)


def encode(of_producer: bytes, batches: Sequence[SentBatch]) -> list[Buffer]:
    """Return a request in parts: a producer's `prefix`, and batches of different destinations."""
    topics: dict[bytes, list[SentBatch]] = {}
    for batch in batches:
        topics.setdefault(batch.topic, []).append(batch)
    parts: list[Buffer] = []
    head = of_producer + _COUNT.pack(len(topics))
    for topic, of_topic in topics.items():
        head += topic + _COUNT.pack(len(of_topic))
        for _, partition, header, body in of_topic:
            head += _PARTITION.pack(partition, len(header) + len(body))
            parts += (head, header, body)
            head = b""
    return parts


class ProduceResponse(NamedTuple):
    """What the broker answers for one batch; `base_offset` is that of its first record."""

    error_code: int
    base_offset: int
    message: str
    throttle_ms: int


def decode(body: memoryview) -> dict[tuple[bytes, int], ProduceResponse]:
    """Read the answer to `encode`: by topic, as `encode_string` writes it, and partition.

    Raises:
        ValueError: it names a topic-partition twice.
    """
    answers = {}
    topics, at = int.from_bytes(body[:4], "big"), 4
    for _ in range(topics):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        topic = bytes(body[at:end])
        partitions, at = int.from_bytes(body[end : end + 4], "big"), end + 4
        for _ in range(partitions):
            partition, error_code, base_offset, _append_time, _log_start, record_errors = (
                _ANSWER.unpack_from(body, at)
            )
            at += _ANSWER.size
            message = ""
            for _ in range(max(record_errors, 0)):
                record_message, at = _nullable_string(body, at + 4)
                message = message or record_message
            summary, at = _nullable_string(body, at)
            if (topic, partition) in answers:
                raise ValueError("a topic-partition is named twice")
            answers[topic, partition] = (error_code, base_offset, message or summary)
    throttle_ms = int.from_bytes(body[at : at + 4], "big")
    return {key: ProduceResponse(*answer, throttle_ms) for key, answer in answers.items()}


def _nullable_string(body: memoryview, at: int) -> tuple[str, int]:
    length = int.from_bytes(body[at : at + 2], "big", signed=True)
    end = at + 2 + max(length, 0)
    return bytes(body[at + 2 : end]).decode(), end

"""ListOffsets and OffsetForLeaderEpoch, as fixed structs.

Each look at a cluster asks both about thousands of topic-partitions. These versions are the newest
ones that name no tagged fields; brokers from Kafka 2.4 to 4.x serve them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.fetch import encode_string

LIST_OFFSETS, EPOCH_ENDS = (2, 5), (23, 3)
"""Api key and version."""
_ANY_EPOCH = -1
_CONSUMER = -1
_COUNT = struct.Struct(">i")
_SIZE = struct.Struct(">h")
_THROTTLE_BYTES = 4
_KEPT = 32
"""Of so many answers, none is decoded twice: from one look to the next, they seldom change."""
# replica, isolation
_LIST_OFFSETS_HEAD = struct.Struct(">ib")
# partition, leader epoch, timestamp
_ASKED_OFFSET = struct.Struct(">iiq")
# partition, error, timestamp, offset, leader epoch
_OFFSET = struct.Struct(">ihqqi")
# partition, leader epoch, the epoch to look up
_ASKED_EPOCH = struct.Struct(">iii")
# error, partition, leader epoch, end offset
_EPOCH_END = struct.Struct(">hiiq")

Answer = tuple[TopicPartition, int, int]
"""A topic-partition, its error code, and an offset."""


def encode_list_offsets(
    topics: Mapping[str, Sequence[int]], timestamp: int, isolation: int
) -> bytes:
    """Return a request for the offsets of a time, or of the beginning or the end."""
    parts = [_LIST_OFFSETS_HEAD.pack(_CONSUMER, isolation), _COUNT.pack(len(topics))]
    encoded: dict[tuple[int, ...], bytes] = {}  # most topics have the same partitions
    for topic, partitions in topics.items():
        numbers = tuple(partitions)
        if numbers not in encoded:
            asked = [_ASKED_OFFSET.pack(number, _ANY_EPOCH, timestamp) for number in numbers]
            encoded[numbers] = b"".join((_COUNT.pack(len(numbers)), *asked))
        parts += (encode_string(topic), encoded[numbers])
    return b"".join(parts)


def decode_list_offsets(body: memoryview) -> Sequence[Answer]:
    """Read the answer to `encode_list_offsets`."""
    return _offsets(bytes(body[_THROTTLE_BYTES:]))


@lru_cache(_KEPT)
def _offsets(data: bytes) -> Sequence[Answer]:
    return tuple(
        (TopicPartition(topic, partition), error_code, offset)
        for topic, (partition, error_code, _, offset, _) in _answers(data, _OFFSET)
    )


def encode_epoch_ends(
    topics: Mapping[str, Sequence[int]], epochs: Mapping[TopicPartition, int]
) -> bytes:
    """Return a request for where leader epochs end.

    Args:
        epochs: the leader epoch to look up per topic-partition.
    """
    parts = [_COUNT.pack(_CONSUMER), _COUNT.pack(len(topics))]
    for topic, partitions in topics.items():
        asked = [
            _ASKED_EPOCH.pack(number, _ANY_EPOCH, epochs[TopicPartition(topic, number)])
            for number in partitions
        ]
        parts += (encode_string(topic), _COUNT.pack(len(asked)), *asked)
    return b"".join(parts)


def decode_epoch_ends(body: memoryview) -> Sequence[Answer]:
    """Read the answer to `encode_epoch_ends`."""
    return _epoch_ends(bytes(body[_THROTTLE_BYTES:]))


@lru_cache(_KEPT)
def _epoch_ends(data: bytes) -> Sequence[Answer]:
    return tuple(
        (TopicPartition(topic, partition), error_code, end_offset)
        for topic, (error_code, partition, _, end_offset) in _answers(data, _EPOCH_END)
    )


def answers(body: memoryview, answer: struct.Struct) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the topic and the fields of each topic-partition, of an answer that has nothing else.

    Args:
        answer: the fields of one topic-partition.
    """
    return _answers(bytes(body[_THROTTLE_BYTES:]), answer)


def _answers(data: bytes, answer: struct.Struct) -> Iterator[tuple[str, tuple[int, ...]]]:
    (topics,) = _COUNT.unpack_from(data)
    at = _COUNT.size
    for _ in range(topics):
        (size,) = _SIZE.unpack_from(data, at)
        end = at + _SIZE.size + size
        topic = data[at + _SIZE.size : end].decode()
        (partitions,) = _COUNT.unpack_from(data, end)
        at = end + _COUNT.size
        end = at + partitions * answer.size
        for fields in answer.iter_unpack(data[at:end]):
            yield topic, fields
        at = end

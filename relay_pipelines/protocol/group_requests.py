"""OffsetFetch of many groups and OffsetCommit, as fixed structs.

A look at a thousand groups reads 50,000 commits. OffsetFetch v8 (Kafka 3.0) asks about many groups
at once; OffsetCommit has one group a request in every version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import compact
from relay_pipelines.protocol.fetch import encode_string
from relay_pipelines.protocol.offset_requests import answers

FETCH, COMMIT = (9, 8), (8, 7)
"""Api key and version."""
_ALL_TOPICS = b"\0"
_STABLE = b"\1"
_NOBODY = struct.Struct(">i").pack(-1) + encode_string("") + struct.pack(">h", -1)
_NO_EPOCH = -1  # an epoch of the other log means nothing here
_COUNT = struct.Struct(">i")
_SIZE = struct.Struct(">h")
_THROTTLE_BYTES = 4
# partition, offset, leader epoch
_COMMITTED = struct.Struct(">iqi")
# partition, error
_OUTCOME = struct.Struct(">ih")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed of a topic-partition."""

    offset: int
    metadata: str = ""


class GroupCommits(NamedTuple):
    """What a group has committed of all topics, or why it is not known.

    Args:
        topic: of which the error is; empty if it is the group's.
    """

    group: str
    commits: dict[TopicPartition, CommittedOffset]
    error_code: int = 0
    topic: str = ""


def encode_fetch(groups: Sequence[str]) -> bytes:
    """Return a request for all commits of these groups; with the tags of its header."""
    parts = [compact.NO_TAGS, compact.size(len(groups) + 1)]
    for group in groups:
        name = group.encode()
        parts += (compact.size(len(name) + 1), name, _ALL_TOPICS, compact.NO_TAGS)
    return b"".join((*parts, _STABLE, compact.NO_TAGS))


def decode_fetch(data: bytes) -> Iterator[GroupCommits]:
    """Read the answer to `encode_fetch`, with the tags of its header."""
    count, at = compact.unsigned(data, compact.after_tags(data, 0) + _THROTTLE_BYTES)
    for _ in range(count - 1):
        group, at = compact.string(data, at)
        commits: dict[TopicPartition, CommittedOffset] = {}
        error_code, of_topic = 0, ""
        topics, at = compact.unsigned(data, at)
        for _ in range(topics - 1):
            topic, at = compact.string(data, at)
            partitions, at = compact.unsigned(data, at)
            for _ in range(partitions - 1):
                partition, offset, _ = _COMMITTED.unpack_from(data, at)
                metadata, at = compact.string(data, at + _COMMITTED.size)
                (error,) = _SIZE.unpack_from(data, at)
                at = compact.after_tags(data, at + _SIZE.size)
                if error:
                    error_code, of_topic = error, topic
                elif offset >= 0:
                    commits[TopicPartition(topic, partition)] = CommittedOffset(offset, metadata)
            at = compact.after_tags(data, at)
        (error,) = _SIZE.unpack_from(data, at)
        at = compact.after_tags(data, at + _SIZE.size)
        yield GroupCommits(group, commits, error or error_code, "" if error else of_topic)


def encode_commit(group: str, commits: Mapping[TopicPartition, CommittedOffset]) -> bytes:
    """Return a request that commits for a group without members."""
    topics: dict[str, list[bytes]] = {}
    for tp, commit in commits.items():
        topics.setdefault(tp.topic, []).append(
            _COMMITTED.pack(tp.partition, commit.offset, _NO_EPOCH) + encode_string(commit.metadata)
        )
    parts = [encode_string(group), _NOBODY, _COUNT.pack(len(topics))]
    for topic, partitions in topics.items():
        parts += (encode_string(topic), _COUNT.pack(len(partitions)), *partitions)
    return b"".join(parts)


def decode_commit(body: memoryview) -> Iterator[tuple[TopicPartition, int]]:
    """Yield each topic-partition with its error code."""
    for topic, (partition, error_code) in answers(body, _OUTCOME):
        yield TopicPartition(topic, partition), error_code

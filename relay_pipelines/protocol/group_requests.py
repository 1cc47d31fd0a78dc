"""OffsetFetch of many groups, and OffsetCommit, which has one group a request in every version."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.fetch import encode_string
from relay_pipelines.protocol.offset_requests import answers

FETCH, COMMIT = (9, 8), (8, 7)
"""Api key and version."""
_NO_TAGS = b"\0"
_NOBODY = struct.Struct(">i").pack(-1) + encode_string("") + struct.pack(">h", -1)
_NO_EPOCH = -1  # an epoch of the other log means nothing here
_COUNT = struct.Struct(">i")
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
    asked = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=g, topics=None) for g in groups]
    request = OffsetFetchRequest(groups=asked, require_stable=True)
    return _NO_TAGS + bytes(request.encode(version=FETCH[1]))


def decode_fetch(data: bytes) -> Iterator[GroupCommits]:
    """Read the answer to `encode_fetch`, with the tags of its header."""
    body = data[len(_NO_TAGS) :]  # none so far
    for group in OffsetFetchResponse.decode(body, version=FETCH[1]).groups:
        yield group_commits(group.group_id, group.topics, group.error_code)


def group_commits(group: str, topics: Iterable[Any], error_code: int) -> GroupCommits:
    """Return what kafka-python has read of a group."""
    commits: dict[TopicPartition, CommittedOffset] = {}
    of_topic = ""
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code and not error_code:
                error_code, of_topic = partition.error_code, topic.name
            elif partition.committed_offset >= 0:
                tp = TopicPartition(topic.name, partition.partition_index)
                commits[tp] = CommittedOffset(partition.committed_offset, partition.metadata or "")
    return GroupCommits(group, commits, error_code, of_topic)


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

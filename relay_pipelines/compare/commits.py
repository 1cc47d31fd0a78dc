"""What groups have committed on both sides, as they say, or as MirrorMaker 2's checkpoints do.

The key of a checkpoint is group, topic at the destination, and partition; its value is a version,
the source's offset, the destination's, and a text (KIP-382, `Checkpoint.java`).
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from functools import partial

from relay_pipelines.audit.comparison import Side
from relay_pipelines.compare.pairs import Commit
from relay_pipelines.compare.reading import Reader, Readers
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.plan.topic_selection import Target
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.groups import consumer_groups, settled_commits

_LENGTH, _PARTITION = struct.Struct(">h"), struct.Struct(">i")
_OFFSETS = struct.Struct(">hqq")
ITSELF = "itself"

Commits = dict[TopicPartition, list[Commit]]
"""By source topic-partition."""


def commits_of(
    readers: Readers, request: CompareRequest, copied_to: Mapping[str, Target]
) -> Commits:
    """Return what is to be judged.

    Raises:
        ConfigError: no group matches, or the topic of checkpoints is none.
        RelayError: a cluster does not answer, or refuses.
    """
    commits = []
    if request.groups:
        source, destination = (reader.client for reader in readers)
        commits += _of_groups(source, destination, request.groups, copied_to)
    if request.checkpoints:
        sources = {to.topic: name for name, to in copied_to.items()}
        for (group, copy), offsets in _checkpoints(readers[1], request.checkpoints).items():
            if copy.topic in sources:
                tp = TopicPartition(sources[copy.topic], copy.partition)
                commits.append(Commit(group, tp, *offsets, request.checkpoints))
    by_partition: Commits = defaultdict(list)
    for commit in commits:
        if request.partition in {None, commit.where.partition}:
            by_partition[commit.where].append(commit)
    if not by_partition and (request.groups or request.checkpoints):
        raise ConfigError(
            "no group has committed anything in what is compared",
            remedy="name other groups or topics, or leave out --groups and --checkpoints",
        )
    return by_partition


def _of_groups(
    source: ClusterClient, destination: ClusterClient, pattern: str, copied_to: Mapping[str, Target]
) -> list[Commit]:
    # one side may hide a group that the other one shows; asked by its name, it says so
    shown = {
        name
        for client in (source, destination)
        for name in client.retry(partial(consumer_groups, client))
    }
    names = sorted(name for name in shown if re.fullmatch(pattern, name))
    if not names:
        raise ConfigError(f"no group of {source.cluster} matches {pattern!r}")
    here, failed = settled_commits(source, names)
    there, failed_there = settled_commits(destination, names)
    for error in (failed | failed_there).values():
        raise error
    of_both = []
    for group, commits in here.items():
        for tp, commit in commits.items():
            if tp.topic in copied_to:
                copy = there.get(group, {}).get(copied_to[tp.topic].of(tp))
                place = -1 if copy is None else copy.offset
                of_both.append(Commit(group, tp, commit.offset, place, ITSELF))
    return of_both


def _checkpoints(reader: Reader, topic: str) -> dict[tuple[str, TopicPartition], tuple[int, int]]:
    """Return source and destination offset of the newest checkpoint of each group."""
    client = reader.client
    if not client.has_topic(topic):
        raise ConfigError(f"{client.cluster} has no topic {topic!r}")
    checkpoints = {}
    for tp in client.topic(topic).topic_partitions:
        low = client.list_offsets([tp], EARLIEST, READ_COMMITTED)[tp]
        end = client.list_offsets([tp], LATEST, READ_COMMITTED)[tp]
        with closing(reader.fetches(OffsetRange(tp, low, end))) as lists:
            records = Side(lists)
            while records.fill():
                for _, key, value, _ in records.contents[records.at :]:
                    try:
                        place = _key(key or b"")
                        offsets = _OFFSETS.unpack_from(value or b"")[1:]
                    except (struct.error, UnicodeDecodeError, IndexError) as error:
                        raise ConfigError(
                            f"{topic} of {client.cluster} has a record that is no checkpoint of"
                            f" MirrorMaker 2: {error}",
                            remedy="name a topic like source.checkpoints.internal",
                        ) from None
                    checkpoints[place] = offsets
                records.at = len(records.contents)
    return checkpoints


def _key(data: bytes) -> tuple[str, TopicPartition]:
    texts, at = [], 0
    for _ in range(2):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        texts.append(data[at : at + length].decode())
        at += length
    return texts[0], TopicPartition(texts[1], *_PARTITION.unpack_from(data, at))

"""Which transactional id copies which range.

A transaction of its own costs a range some fifteen milliseconds. So small ranges share
transactional ids, and with them transactions; a large range has its own, so that tasks can copy
large ranges side by side.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from relay_pipelines.errors import MovedError
from relay_pipelines.model import CopyRange, TopicPartition

SLOTS = 16
"""How many ids the small ranges of a run share. Another number makes the next run claim them."""
MOVE_SCOPE = "/move"
"""Of the run of a move that copies a part of the topics: no lane and no topic has such a name."""
_TOGETHER = 8
_SHARING_BYTES = 8 << 20  # a transaction of its own costs as much as copying 4 MB
_SHARING_RECORDS = 2_000  # where the size is unknown


def own_id(mirror: str, source: TopicPartition) -> str:
    """Return the transactional id of one source topic-partition."""
    return f"relay.{mirror}.{source.topic}.{source.partition}"


def owner_of(mirror: str, copy_range: CopyRange) -> str:
    """Return the transactional id under which a range is copied."""
    return copy_range.owner or own_id(mirror, copy_range.source.topic_partition)


def shared_id(mirror: str, scope: str, source: TopicPartition) -> str:
    """Return the id that a small range shares with others.

    Eight partitions of a topic share one, because a commit asks about every topic in it; the others
    spread evenly, because ranges of one id are copied by one task.

    Args:
        scope: of the run; runs of different scopes can copy at the same time. No topic's name
            contains a slash, so that no other id looks like this one.
    """
    slot = (zlib.crc32(source.topic.encode()) + source.partition // _TOGETHER) % SLOTS
    return f"relay.{mirror}.{scope}/{slot}"


def topic_scope(topic: str) -> str:
    """Return the scope of a run that copies one topic only; no lane has such a name."""
    return f"topic={topic}"


def claimant_id(mirror: str) -> str:
    """Return the id under which topic-partitions that were never copied get their first owner."""
    return f"relay.{mirror}./claims"


def probe_id(mirror: str, number: str) -> str:
    """Return the id of a probe of the destination's transactions.

    Args:
        number: of the probe: others may run at the same time.
    """
    return f"relay.{mirror}./probe-{number}"


def moved_id(mirror: str) -> str:
    """Return the id of what has moved to the destination, under which nobody copies."""
    return f"relay.{mirror}./moved"


def moved_topics(mirror: str, owners: Mapping[TopicPartition, str]) -> set[str]:
    """Return the source topics of which a topic-partition has moved.

    Args:
        owners: the owners in the checkpoint topic.
    """
    return {tp.topic for tp, owner in owners.items() if owner == moved_id(mirror)}


def moved_error(mirror: str) -> MovedError:
    """Return why what has moved is not copied."""
    return MovedError(
        "it has moved to the destination, and this mirror copies it no more",
        remedy=f"`relay move status --mirror {mirror}` says since when",
    )


def move_id(mirror: str) -> str:
    """Return the id under which the record of a move is written."""
    return f"relay.{mirror}./move"


def start_id(mirror: str) -> str:
    """Return the id under which drivers write where a mirror starts, and what it has created."""
    return f"relay.{mirror}.start"


def run_ends_id(mirror: str) -> str:
    """Return the id under which runs write that they have ended."""
    return f"relay.{mirror}./ended"


def with_owners(
    mirror: str,
    scope: str,
    ranges: Sequence[CopyRange],
    sizes_bytes: Mapping[TopicPartition, int],
    pinned: Collection[str] = (),
) -> list[CopyRange]:
    """Return the ranges with the transactional ids under which this run copies them.

    Ranges have ids of their own if they are turned into rows, if their topic has its own options,
    or if it is pinned to a destination topic-partition.

    Args:
        pinned: source topics. What they write must be told apart by its producer, also from what
            other runs write there.
    """
    small = {
        tp
        for each in ranges
        if not each.record_policy.in_rows
        and each.record_policy.options is None
        and (tp := each.source.topic_partition).topic not in pinned
        and _is_small(each, sizes_bytes)
    }
    sharing = small if len(small) > 1 else set()
    return [
        replace(each, owner=shared_id(mirror, scope, tp) if tp in sharing else own_id(mirror, tp))
        for each in ranges
        if (tp := each.source.topic_partition)
    ]


def present_owner(
    mirror: str, source: TopicPartition, recorded: Mapping[TopicPartition, str], *, is_copied: bool
) -> str:
    """Return the id that alone may copy a source topic-partition now.

    Args:
        recorded: the owners in the checkpoint topic.
        is_copied: whether it has a checkpoint. Without a recorded owner, it was then copied before
            owners were recorded, under its own id.
    """
    if source in recorded:
        return recorded[source]
    return own_id(mirror, source) if is_copied else claimant_id(mirror)


def _is_small(copy_range: CopyRange, sizes_bytes: Mapping[TopicPartition, int]) -> bool:
    size_bytes = sizes_bytes.get(copy_range.source.topic_partition)
    if size_bytes is None:
        return len(copy_range.source) <= _SHARING_RECORDS
    return size_bytes <= _SHARING_BYTES

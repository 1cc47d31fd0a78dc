"""The offsets of a stream: where a micro-batch ends, and what must not be skipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relay_pipelines.errors import (
    LogTruncatedError,
    RetentionPassedError,
)
from relay_pipelines.model import TopicPartition

if TYPE_CHECKING:
    pass


Offsets = dict[str, int]
"""The next offset to read by partition."""
Kept = dict[str, Any]
"""The same, with the topic's id, as Spark keeps it in the checkpoint of a query."""
TOPIC_ID = "topic_id"


def without_id(kept: Kept) -> Offsets:
    return {partition: offset for partition, offset in kept.items() if partition != TOPIC_ID}


def refuse_another_topic(topic: str, known_id: str, topic_id: str) -> None:
    """Refuse to go on in a topic that was created again: its offsets are those of other records.

    Args:
        known_id: of the topic that the stream has read; an id is empty before Kafka 2.8.

    Raises:
        DataLossError: it would skip the first records without a word.
    """
    if known_id and topic_id and known_id != topic_id:
        raise LogTruncatedError(
            f"topic {topic} was created again since the stream has read it",
            remedy="start another query, with a checkpoint folder of its own",
        )


def refuse_losses(topic: str, start: Offsets, low: Offsets, ends: Offsets) -> None:
    """Refuse to go on if the topic no longer has what comes next, or what was read.

    Raises:
        DataLossError: a stream that went on would skip records without a word.
    """
    remedy = "start another query, with a checkpoint folder of its own"
    for partition, offset in start.items():
        tp, end = TopicPartition(topic, int(partition)), ends.get(partition, 0)
        if low.get(partition, 0) > offset:
            raise RetentionPassedError(
                f"offsets {offset} to {low[partition]} are gone: retention deleted them"
                " before the stream has read them",
                remedy=remedy,
                topic_partition=tp,
                offset=offset,
            )
        if end < offset:
            raise LogTruncatedError(
                f"it ends at offset {end}, and the stream has read up to {offset}: the topic was"
                " created again, or has lost records",
                remedy=remedy,
                topic_partition=tp,
                offset=offset,
            )


def next_offsets(begins: Offsets, ends: Offsets, limit: int | None) -> Offsets:
    """Return where a micro-batch ends: each partition gets its part of the limit, or one offset.

    Args:
        begins: where it begins.
        ends: how far it may go; a partition that is not in it stays where it is.
    """
    new = {at: max(0, ends.get(at, begin) - begin) for at, begin in begins.items()}
    total = sum(new.values())
    left = total if limit is None else limit
    found = dict(begins)
    for partition, count in new.items():
        # in proportion to what is left, and never nothing of everything
        share = min(count, left, -(-count * left // total)) if total else 0
        found[partition] += share
        total, left = total - count, left - share
    return found


def by_partition(offsets: Mapping[TopicPartition, int]) -> Offsets:
    return {str(tp.partition): offset for tp, offset in sorted(offsets.items())}

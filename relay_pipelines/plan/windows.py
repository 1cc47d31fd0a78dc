"""From what the source holds and what was copied, to what is to be copied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from relay_pipelines.errors import DataLossError
from relay_pipelines.model import OffsetRange, TopicPartition, Window


class StartPolicy(StrEnum):
    """Where a topic that a mirror has never copied is taken up."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """What the source holds of one topic-partition, and how far it was copied.

    Args:
        low_watermark: the first offset that the source still has.
        end_offset: the last stable offset: reading committed records stops before it.
        next_offset: the checkpoint's; None if there is no checkpoint.
        recreated: whether the topic is another one of the same name than the one that was copied: its id on the node has changed.
    """

    topic_partition: TopicPartition
    low_watermark: int
    end_offset: int
    next_offset: int | None = None
    recreated: bool = False


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What to copy, and what cannot be copied without losing or doubling records.

    Args:
        windows: sorted by topic, their ranges by partition; topic-partitions with nothing new are left out.
        data_losses: one per topic-partition that stands in no window because a guard holds it back.
    """

    windows: tuple[Window, ...]
    data_losses: tuple[DataLossError, ...]

    def or_raise(self) -> tuple[Window, ...]:
        """The windows.

        Raises:
            DataLossError: a guard holds a topic-partition back; the first one, the others are counted.
        """
        if not self.data_losses:
            return self.windows
        first, others = self.data_losses[0], len(self.data_losses) - 1
        if not others:
            raise first
        raise DataLossError(
            f"{first.what} (and {others} more topic-partitions are held back)",
            remedy=first.remedy,
            topic_partition=first.topic_partition,
            offset=first.offset,
        )


def plan_windows(positions: Iterable[Position], start: StartPolicy) -> WindowPlan:
    """Plan one window per topic that has something new.

    A range starts at the checkpoint; without one, where the start policy says, and ends at `end_offset`. With `latest` a
    topic-partition without a checkpoint gets the zero-length range `[end, end)` for its first run: copying it writes the first
    checkpoint there. Without it the next run would start at a later end, and what came in between would be lost. Only there is
    a range empty (mind that an empty range is falsy).

    The start policy is for topics that were never copied. When another topic-partition of the topic has a checkpoint, one
    without was added since, and is taken from its low watermark: `latest` would lose its first records.

    Args:
        positions: all topic-partitions of every topic that is to be copied.
        start: the mirror's start policy.
    """
    ordered = sorted(positions, key=lambda position: position.topic_partition)
    losses = tuple(loss for position in ordered if (loss := data_loss(position)) is not None)
    held_back = {loss.topic_partition for loss in losses}
    windows = []
    for topic, group in groupby(ordered, key=lambda position: position.topic_partition.topic):
        siblings = list(group)
        policy = _policy_for(siblings, start)
        ranges = [
            _range(position, policy)
            for position in siblings
            if position.topic_partition not in held_back and _is_due(position, policy)
        ]
        if ranges:
            windows.append(Window(topic, tuple(ranges)))
    return WindowPlan(tuple(windows), losses)


def uncopied(positions: Iterable[Position], start: StartPolicy) -> dict[TopicPartition, OffsetRange]:
    """What is still to be copied of every topic-partition, guards or not; empty (and falsy) where nothing is.

    Args:
        positions: all topic-partitions of every topic that is to be copied.
        start: the mirror's start policy.
    """
    ordered = sorted(positions, key=lambda position: position.topic_partition)
    ranges: dict[TopicPartition, OffsetRange] = {}
    for _, group in groupby(ordered, key=lambda position: position.topic_partition.topic):
        siblings = list(group)
        policy = _policy_for(siblings, start)
        ranges |= {position.topic_partition: _range(position, policy) for position in siblings}
    return ranges


def lag_records(positions: Iterable[Position], start: StartPolicy) -> dict[TopicPartition, int]:
    """Offsets still to be copied per topic-partition; 0 where a data-loss guard would hold it back from above."""
    return {topic_partition: len(one) for topic_partition, one in uncopied(positions, start).items()}


def data_loss(position: Position) -> DataLossError | None:
    """The guard that holds the topic-partition back, if one does."""
    if position.next_offset is None:
        return None
    if position.recreated:
        return DataLossError(
            "the topic was deleted and created again since it was copied: its id is another",
            remedy="mirror it under a new name into a new destination topic",
            topic_partition=position.topic_partition,
            offset=position.next_offset,
        )
    if position.next_offset < position.low_watermark:
        return DataLossError(
            f"retention took the offsets [{position.next_offset}, {position.low_watermark}) before they were copied:"
            " the checkpoint is below the source's low watermark",
            remedy="run more often or keep records longer; to go on without them, mirror under a new name with start: earliest",
            topic_partition=position.topic_partition,
            offset=position.next_offset,
        )
    if position.next_offset > position.end_offset:
        return DataLossError(
            f"the checkpoint is above the source's end offset {position.end_offset}: the topic was truncated or recreated",
            remedy="restore the topic, or mirror it under a new name into a new destination topic",
            topic_partition=position.topic_partition,
            offset=position.next_offset,
        )
    return None


def _policy_for(siblings: Iterable[Position], start: StartPolicy) -> StartPolicy:
    begun = any(position.next_offset is not None for position in siblings)
    return StartPolicy.EARLIEST if begun else start


def _range(position: Position, policy: StartPolicy) -> OffsetRange:
    start = position.next_offset
    if start is None:
        start = position.end_offset if policy is StartPolicy.LATEST else position.low_watermark
    return OffsetRange(position.topic_partition, start, position.end_offset)


def _is_due(position: Position, policy: StartPolicy) -> bool:
    freezes_the_start = position.next_offset is None and policy is StartPolicy.LATEST
    return freezes_the_start or len(_range(position, policy)) > 0

"""From what the source holds and what was copied, to what is to be copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from relay_pipelines.errors import (
    CheckpointLostError,
    CopyGoneError,
    DataLossError,
    LogTruncatedError,
    RetentionPassedError,
    TopicRecreatedError,
)
from relay_pipelines.model import OffsetRange, TopicPartition, Window


class StartPolicy(StrEnum):
    """Where a topic that a mirror has never copied is taken up."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GIVEN = "given"


class OnDataLoss(StrEnum):
    """What becomes of a topic-partition whose records, or whose copies, are gone."""

    FAIL = "fail"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """What the source holds of one topic-partition, and how far it was copied.

    Args:
        low_watermark: the first offset that the source still has.
        end_offset: the last stable offset: reading committed records stops before it.
        next_offset: the checkpoint's; None if there is no checkpoint.
        recreated: whether the topic is another one of the same name than the one that was copied: its id on the node has changed.
        truncated_at: where the log stopped being the one that was copied, by its leader epochs; None if it still is.
        copy_gone: what became of the destination topic that holds the copies; empty if it is still there.
        recorded: up to where it was copied by the ledger, of a topic-partition without a checkpoint; None if it never was.
        begin: where it is to be taken up if it has no checkpoint and the start policy is `GIVEN`; None for its low watermark.
        high_watermark: the end of what every replica has; what lies between it and `end_offset` waits for a transaction to end.
        open_since_ms: when the first record of that transaction was written; None if no transaction is open, or if unknown.
    """

    topic_partition: TopicPartition
    low_watermark: int
    end_offset: int
    next_offset: int | None = None
    recreated: bool = False
    truncated_at: int | None = None
    copy_gone: str = ""
    recorded: int | None = None
    begin: int | None = None
    high_watermark: int = -1
    open_since_ms: int | None = None

    @property
    def open_transaction(self) -> OffsetRange:
        """What is not copied before a transaction ends; empty (and falsy) if none is open."""
        return OffsetRange(self.topic_partition, self.end_offset, max(self.end_offset, self.high_watermark))


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a topic-partition cannot go on from its checkpoint.

    Args:
        error: the guard's.
        what: in words.
        remedy: beside going on all the same.
        resume: where the copy can go on, if the loss is accepted.
    """

    error: type[DataLossError]
    what: str
    remedy: str
    resume: int


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
        raise type(first)(
            f"{first.what} (and {others} more topic-partitions are held back)",
            remedy=first.remedy,
            topic_partition=first.topic_partition,
            offset=first.offset,
        )


def plan_windows(positions: Iterable[Position], start: StartPolicy) -> WindowPlan:
    """Plan one window per topic that has something new.

    A range starts at the checkpoint; without one, where the start policy says, and ends at `end_offset`. Unless that is the low
    watermark, a topic-partition without a checkpoint gets even the zero-length range `[end, end)` for its first run: copying it
    writes the first checkpoint there. Without it the next run would start at a later end, and what came in between would be lost.
    Only there is a range empty (mind that an empty range is falsy).

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
    found = loss(position)
    if found is None:
        return None
    return found.error(
        found.what,
        remedy=f"{found.remedy}; to go on from offset {found.resume} all the same, set on_data_loss: continue",
        topic_partition=position.topic_partition,
        offset=position.next_offset,
    )


def loss(position: Position) -> Loss | None:
    """What was lost, if something was; the gravest."""
    return next(_losses(position), None)


def _losses(position: Position) -> Iterator[Loss]:
    copied, low, end = position.next_offset, position.low_watermark, position.end_offset
    if copied is None:
        if position.recorded is not None:
            what = f"its checkpoint is gone, and the ledger says that it was copied up to offset {position.recorded}"
            yield Loss(CheckpointLostError, what, "restore the topic __relay_checkpoints", position.recorded)
        return
    if position.recreated:
        what = "the topic was deleted and created again since it was copied: its id is another"
        yield Loss(TopicRecreatedError, what, "mirror it under a new name into a new destination topic", low)
    if copied < low:
        what = f"retention took the offsets [{copied}, {low}) before they were copied: the checkpoint is below the low watermark"
        yield Loss(RetentionPassedError, what, "run more often or keep records longer", low)
    if copied > end:
        what = f"the checkpoint is above the source's end offset {end}: the topic was truncated or recreated"
        yield Loss(LogTruncatedError, what, "restore the topic, or mirror it under a new name into a new destination topic", end)
    if position.truncated_at is not None:
        what = f"the log was cut off at offset {position.truncated_at}, below the checkpoint, and written anew"
        remedy = "find out whether a leader was elected uncleanly or a disk restored, and which records are right"
        yield Loss(LogTruncatedError, what, remedy, position.truncated_at)
    if position.copy_gone:
        yield Loss(CopyGoneError, position.copy_gone, "restore it, or mirror the topic under a new name", copied)


def _policy_for(siblings: Iterable[Position], start: StartPolicy) -> StartPolicy:
    begun = any(position.next_offset is not None for position in siblings)
    return StartPolicy.EARLIEST if begun else start


def _range(position: Position, policy: StartPolicy) -> OffsetRange:
    start, low, end = position.next_offset, position.low_watermark, position.end_offset
    if start is None:
        begins = {StartPolicy.EARLIEST: low, StartPolicy.LATEST: end, StartPolicy.GIVEN: position.begin or low}
        start = min(max(begins[policy], low), max(low, end))
    return OffsetRange(position.topic_partition, start, end)


def _is_due(position: Position, policy: StartPolicy) -> bool:
    return freezes_the_start(position, policy) or len(_range(position, policy)) > 0


def freezes_the_start(position: Position, policy: StartPolicy) -> bool:
    """Whether the place where the copy begins must be remembered before anything comes: it would be another one later."""
    return position.next_offset is None and policy is not StartPolicy.EARLIEST

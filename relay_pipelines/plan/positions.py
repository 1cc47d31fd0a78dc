"""From what the source holds and what was copied, to what is to be copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from relay_pipelines.errors import (
    CheckpointLostError,
    DataLossError,
    DestinationTopicLostError,
    LogTruncatedError,
    RetentionPassedError,
    SourceError,
    TopicRecreatedError,
)
from relay_pipelines.model import OffsetRange, TopicPartition, Window


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
        next_offset: the checkpoint's; without a checkpoint that of the start record; None if there
        is neither.
        recreated: whether the topic is another one of the same name than the one that was copied:
        its id on the node has changed.
        truncated_at: where the log stopped being the one that was copied, by its leader epochs;
        None if it still is.
        destination_lost: what became of the destination topic that holds the copies; empty if it is
        still there.
        recorded: up to where it was copied by the ledger, of a topic-partition without a
        checkpoint; None if it never was.
        high_watermark: the end of what every replica has; what lies between it and `end_offset`
        waits for a transaction to end.
        open_since_ms: when the first record of that transaction was written; None if no transaction
        is open, or if unknown.
        elsewhere: which other node has the records that this one lacks, or may have them; empty if
            none does.
    """

    topic_partition: TopicPartition
    low_watermark: int
    end_offset: int
    next_offset: int | None = None
    recreated: bool = False
    truncated_at: int | None = None
    destination_lost: str = ""
    recorded: int | None = None
    high_watermark: int = -1
    open_since_ms: int | None = None
    elsewhere: str = ""

    @property
    def open_transaction(self) -> OffsetRange:
        """What is not copied before a transaction ends; empty (and falsy) if none is open."""
        return OffsetRange(
            self.topic_partition, self.end_offset, max(self.end_offset, self.high_watermark)
        )

    @property
    def begin(self) -> int:
        """The next offset to copy."""
        return self.low_watermark if self.next_offset is None else self.next_offset


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


_AT_SOURCE = (RetentionPassedError, LogTruncatedError, TopicRecreatedError)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What to copy, and what cannot be copied without losing or doubling records.

    Args:
        windows: sorted by topic, their ranges by partition; topic-partitions with nothing new are
        left out.
        data_losses: one per topic-partition that stands in no window because a guard holds it back.
    """

    windows: tuple[Window, ...]
    data_losses: tuple[DataLossError | SourceError, ...]

    def or_raise(self) -> tuple[Window, ...]:
        """The windows.

        Raises:
            RelayError: a guard holds a topic-partition back; the first one, the others are counted.
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


def plan_windows(positions: Iterable[Position]) -> WindowPlan:
    """Plan one window per topic that has something new, from the next offset to copy to `end_offset`.

    Args:
        positions: all topic-partitions of every topic that is to be copied.
    """
    ordered = sorted(positions, key=lambda position: position.topic_partition)
    losses = tuple(loss for position in ordered if (loss := data_loss(position)) is not None)
    held_back = {loss.topic_partition for loss in losses}
    new = [
        one
        for one in uncopied(ordered).values()
        if len(one) and one.topic_partition not in held_back
    ]
    grouped = groupby(new, key=lambda one: one.topic_partition.topic)
    return WindowPlan(tuple(Window(topic, tuple(ranges)) for topic, ranges in grouped), losses)


def uncopied(positions: Iterable[Position]) -> dict[TopicPartition, OffsetRange]:
    """What is still to be copied of every topic-partition, guards or not; empty (and falsy) where nothing is."""
    return {
        one.topic_partition: OffsetRange(one.topic_partition, one.begin, one.end_offset)
        for one in positions
    }


def lag_records(positions: Iterable[Position]) -> dict[TopicPartition, int]:
    """Offsets still to be copied per topic-partition; 0 where a data-loss guard would hold it back from above."""
    return {topic_partition: len(one) for topic_partition, one in uncopied(positions).items()}


def data_loss(position: Position) -> DataLossError | SourceError | None:
    """The guard that holds the topic-partition back, if one does.

    Nothing is lost while another node of the source has the records, or may have them: then it is a
    `SourceError`, and no configuration accepts it.
    """
    found = loss(position)
    if found is None:
        return None
    if position.elsewhere and found.error in _AT_SOURCE:
        return SourceError(
            f"{found.what}, but {position.elsewhere}",
            remedy="copy them with that node alone in source.nodes, or take it off source.nodes to do without them",
            topic_partition=position.topic_partition,
            offset=position.next_offset,
        )
    return found.error(
        found.what,
        remedy=f"{found.remedy}; to go on from offset {found.resume} all the same, set on_data_loss: continue",
        topic_partition=position.topic_partition,
        offset=position.next_offset,
    )


def loss(position: Position) -> Loss | None:
    """What was lost, if something was; the gravest."""
    return next(_losses(position), None)


def losses(position: Position) -> list[Loss]:
    """All that was lost, the gravest first."""
    return list(_losses(position))


def _losses(position: Position) -> Iterator[Loss]:
    copied, low, end = position.next_offset, position.low_watermark, position.end_offset
    if copied is None:
        if position.recorded is not None:
            what = f"its checkpoint is gone, and the ledger says that it was copied up to offset {position.recorded}"
            yield Loss(
                CheckpointLostError,
                what,
                "restore the topic __relay_checkpoints",
                position.recorded,
            )
        return
    if position.recreated:
        what = "the topic was deleted and created again since it was copied: its id is another"
        yield Loss(
            TopicRecreatedError,
            what,
            "mirror it under a new name into a new destination topic",
            low,
        )
    if copied < low:
        what = f"retention took the offsets [{copied}, {low}) before they were copied"
        yield Loss(RetentionPassedError, what, "run more often or keep records longer", low)
    if copied > end:
        what = f"the next offset to copy is above the source's end offset {end}: the topic was truncated or recreated"
        yield Loss(
            LogTruncatedError,
            what,
            "restore the topic, or mirror it under a new name into a new destination topic",
            end,
        )
    if position.truncated_at is not None:
        what = f"the log was cut off at offset {position.truncated_at}, below the checkpoint, and written anew"
        remedy = "find out whether a leader was elected uncleanly or a disk restored, and which records are right"
        yield Loss(LogTruncatedError, what, remedy, position.truncated_at)
    if position.destination_lost:
        yield Loss(
            DestinationTopicLostError,
            position.destination_lost,
            "restore it, or mirror the topic under a new name",
            copied,
        )

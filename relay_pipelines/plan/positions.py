"""What to copy, by what the source holds and how far it was copied, and what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from relay_pipelines.errors import (
    CheckpointLostError,
    DataLossError,
    DestinationChangedError,
    DestinationTopicLostError,
    LedgerLostError,
    LogTruncatedError,
    RelayError,
    RetentionPassedError,
    SourceError,
    TopicRecreatedError,
)
from relay_pipelines.model import Checkpoint, OffsetRange, TopicPartition, Window

ASK_SILENT = "start that upstream, or remove it from source.upstreams to give up what only it has"
"""What to do about an upstream that does not answer."""


class OnDataLoss(StrEnum):
    """What happens to a topic-partition whose records, or whose copies, are lost."""

    FAIL = "fail"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True, order=True)
class Elsewhere:
    """Another upstream that has, or may have, records of a topic-partition that this one lacks.

    Args:
        what: which one, as a clause.
        is_silent: whether it may only, because it does not answer.
    """

    what: str
    is_silent: bool

    def remedy(self, otherwise: str) -> str:
        """Return what to do; `otherwise` if the upstream answers."""
        return ASK_SILENT if self.is_silent else otherwise


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """What the source holds of one topic-partition, and how far it was copied.

    Args:
        low_watermark: the first offset that the source still has.
        end_offset: the last stable offset: readers of committed records stop before it.
        next_offset: the checkpoint's; without a checkpoint that of the start record; None if there
            is neither.
        recreated: whether the log is another one than was copied: its topic id has changed, or a
            run found another record at the offset of the last one copied.
        truncated_at: where the log stops being the one that was copied, by its leader epochs; None
            if it still is.
        destination_lost: what happened to the destination topic that holds the copies; empty if it
            still exists.
        destination_changed: the error, if the copies are, or were decided to go on, in another
            destination topic-partition than the configuration names.
        policy_superseded: the error, if another configuration decides the records by now.
        moved: the error, if the topic has moved to the destination.
        unwritable: the error, if there are records to copy and the destination takes none now.
        ledger_end: up to where it was copied according to the ledger, if that has an entry which is
            newer than the checkpoint, or if there is none; else None.
        copies_after: where the destination has records of the mirror after those that its
            checkpoint knows; None if it has none.
        ledger_lost: whether the topic of the ledger is gone, although the mirror has copied.
        high_watermark: the end of what every replica has; the records from `end_offset` to it wait
            for a transaction to end.
        open_since_ms: when the first record of that transaction was written; None if no transaction
            is open, or if unknown.
        mirror: whose topic-partition it is; empty if it does not matter.
        elsewhere: which other upstream has, or may have, the records that this one lost, or never
            had before its low watermark; None if none does.
        first_offset: the first offset that any upstream still has of the log; None if unknown.
        silent: which other upstream does not answer, and why; empty if all do.
    """

    topic_partition: TopicPartition
    low_watermark: int
    end_offset: int
    next_offset: int | None = None
    recreated: bool = False
    truncated_at: int | None = None
    destination_lost: str = ""
    destination_changed: DestinationChangedError | None = None
    policy_superseded: RelayError | None = None
    moved: RelayError | None = None
    unwritable: RelayError | None = None
    ledger_end: int | None = None
    copies_after: int | None = None
    ledger_lost: bool = False
    high_watermark: int = -1
    open_since_ms: int | None = None
    elsewhere: Elsewhere | None = None
    first_offset: int | None = None
    silent: str = ""
    mirror: str = ""

    @property
    def open_transaction(self) -> OffsetRange:
        """The offsets that wait for a transaction to end; empty (and falsy) if none is open."""
        return OffsetRange(
            self.topic_partition, self.end_offset, max(self.end_offset, self.high_watermark)
        )

    @property
    def open_records(self) -> int:
        """How many offsets wait for a transaction to end."""
        return max(0, self.high_watermark - self.end_offset)

    @property
    def first_uncopied(self) -> int:
        """Where the source has records that were never copied, also where a guard holds them back.

        In another log than the one that was copied, the offset reached does not tell.
        """
        if self.next_offset is None:
            return self.begin if self.ledger_end is None else self.ledger_end
        if self.recreated:
            return self.low_watermark
        known = (self.ledger_end, self.truncated_at, self.next_offset)
        return next(offset for offset in known if offset is not None)

    @property
    def lag(self) -> int:
        """How many offsets are not copied yet; 0 if the checkpoint is above the end offset."""
        return max(0, self.end_offset - self.first_uncopied)

    @property
    def begin(self) -> int:
        """The next offset to copy."""
        return self.low_watermark if self.next_offset is None else self.next_offset


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a topic-partition cannot be copied from its checkpoint.

    Args:
        error: what holds it back.
        remedy: what to do other than to accept the loss.
        resume: where the copy resumes if the loss is accepted.
        accepted: what that means for the records, as a clause; empty if it has been said.
    """

    error: type[DataLossError]
    what: str
    remedy: str
    resume: int
    accepted: str = ""


ANOTHER_LOG = (
    "the topic was deleted and created again since it was copied, or a disk was put back to an"
    " earlier time: its log is another one"
)
_AT_SOURCE = (RetentionPassedError, LogTruncatedError, TopicRecreatedError)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """What to copy, and what cannot be copied without losing or duplicating records.

    Args:
        windows: sorted by topic, their ranges by partition; topic-partitions with nothing new are
            left out.
        data_losses: one per topic-partition that is held back.
    """

    windows: tuple[Window, ...]
    data_losses: tuple[RelayError, ...]


def plan_windows(positions: Iterable[Position]) -> WindowPlan:
    """Plan a window for each topic with new records: from the next offset to copy to `end_offset`.

    Args:
        positions: all topic-partitions of every topic to copy.
    """
    ordered = sorted(positions, key=lambda position: position.topic_partition)
    errors = tuple(error for position in ordered if (error := data_loss(position)) is not None)
    held_back = {error.topic_partition for error in errors}
    new = [
        offsets for tp, offsets in uncopied(ordered).items() if len(offsets) and tp not in held_back
    ]
    grouped = groupby(new, key=lambda offsets: offsets.topic_partition.topic)
    return WindowPlan(tuple(Window(topic, tuple(ranges)) for topic, ranges in grouped), errors)


def uncopied(positions: Iterable[Position]) -> dict[TopicPartition, OffsetRange]:
    """The offsets not copied yet, held back or not; empty (and falsy) where nothing is new."""
    return {
        position.topic_partition: OffsetRange(
            position.topic_partition, position.first_uncopied, position.end_offset
        )
        for position in positions
    }


def lag_records(positions: Iterable[Position]) -> dict[TopicPartition, int]:
    """How many offsets are not copied yet, of each topic-partition."""
    return {position.topic_partition: position.lag for position in positions}


def open_since(positions: Iterable[Position], now_ms: int) -> float | None:
    """Return the age of the oldest open transaction in seconds; None if unknown or none."""
    known = [position.open_since_ms for position in positions if position.open_since_ms is not None]
    return max(0.0, (now_ms - min(known)) / 1000) if known else None


def data_loss(position: Position) -> RelayError | None:
    """The error that holds the topic-partition back; None if nothing does.

    `on_data_loss: continue` accepts a `DataLossError`, and no other one. Nothing is lost while
    another upstream has the records, or may have them: the error is then a `SourceError`.
    The others are the operator's decision each time.
    """
    if position.ledger_lost:
        return LedgerLostError(
            "the topic __relay_ledger is gone, with its entries of what was copied",
            remedy=f"create it again, and note what is lost: {restore_command(position.mirror)}",
            topic_partition=position.topic_partition,
        )
    # what is lost is for the deployment to decide that copies the topic
    if error := position.moved or checkpoint_lost(position) or position.policy_superseded:
        return error
    worst = next(iter(losses(position)), None)
    if worst is None and position.elsewhere:
        return SourceError(
            f"it begins at {position.low_watermark} on {position.elsewhere.what}",
            remedy=position.elsewhere.remedy(
                "copy it first with only that upstream in source.upstreams,"
                " or remove it from source.upstreams to give them up"
            ),
            topic_partition=position.topic_partition,
            offset=position.low_watermark,
        )
    if worst is None:
        return position.destination_changed or position.unwritable
    if position.elsewhere and worst.error in _AT_SOURCE:
        return SourceError(
            f"{worst.what}, but {position.elsewhere.what}",
            remedy=position.elsewhere.remedy(
                "copy them with only that upstream in source.upstreams,"
                " or remove it from source.upstreams to give them up"
            ),
            topic_partition=position.topic_partition,
            offset=position.next_offset,
        )
    return worst.error(
        worst.what,
        remedy=f"{worst.remedy};"
        f" to accept the loss and resume from offset {worst.resume},{worst.accepted} set"
        " on_data_loss: continue",
        topic_partition=position.topic_partition,
        offset=position.next_offset,
    )


def unknown_beginning(position: Position) -> SourceError | None:
    """Return why it is unknown where the log begins; None if it is known, on all upstreams."""
    if position.recreated and position.elsewhere:
        return SourceError(
            f"it is unknown which log is right: {position.elsewhere.what}",
            remedy="leave only the upstream that is right in source.upstreams",
            topic_partition=position.topic_partition,
        )
    if position.silent and position.low_watermark:
        return SourceError(
            "it is unknown whether another upstream has records before offset"
            f" {position.low_watermark}: {position.silent}",
            remedy=ASK_SILENT,
            topic_partition=position.topic_partition,
        )
    return None


def destination_changed(
    checkpoint: Checkpoint, to: TopicPartition, gone: str = ""
) -> DestinationChangedError | None:
    """Return the error if the configuration names another place than the checkpoint is bound to.

    Args:
        to: what the configuration names now.
        gone: what happened to the topic with the copies; empty if it is there.
    """
    bound_to = checkpoint.bound_to
    if bound_to in {None, to}:
        return None
    where = f"{bound_to} (which {gone})" if gone else f"{bound_to}"
    what, again, on = f"what was copied before is in {where}", "copy it again", "without it"
    if checkpoint.copies is None:
        what = f"a reset or an accepted loss let the copy go on in {where}"
        again, on = "copy all of it", f"at offset {checkpoint.next_offset}"
    command = _reset(checkpoint.mirror, checkpoint.source.topic)
    return DestinationChangedError(
        f"{what}, and relay.yaml now names {to}",
        remedy=f"to {again} there: `{command} --to-earliest --execute`;"
        f" to go on there {on}: `{command} --to-current --execute`",
        topic_partition=checkpoint.source,
        offset=checkpoint.next_offset,
    )


def copy_again(mirror: str, topic: str) -> str:
    """Return what to do if the copies of a topic are gone."""
    if "@" in mirror:  # no other mirror's name has one
        return "start the replay again under another --id"
    command = f"{_reset(mirror, topic)} --to-earliest --execute"
    return f"to copy again what the source still has: `{command}`"


def _reset(mirror: str, topic: str) -> str:
    return f"relay reset --mirror {mirror} --topic {topic}"


def restore_command(mirror: str) -> str:
    """Return the command that makes checkpoints again."""
    return f"`relay restore --mirror {mirror} --execute`"


def checkpoint_lost(position: Position) -> CheckpointLostError | None:
    """Return the error if the checkpoint is not the last one: a copy from it duplicates records.

    What else is lost counts after the last offset copied, which is not known.
    """
    copied, tp = position.next_offset, position.topic_partition
    if position.ledger_end is not None:
        lost = "is gone" if copied is None else "is not the last one"
        what = (
            f"its checkpoint {lost}, and according to the ledger it was copied up to offset"
            f" {position.ledger_end}"
        )
        remedy = f"make it again from the ledger: {restore_command(position.mirror)}"
    elif position.copies_after is not None:
        what = (
            "its checkpoint is not the last one, and neither is the ledger's newest entry: the"
            f" mirror's own records go on at offset {position.copies_after} of the destination, and"
            " would come again"
        )
        command = _reset(position.mirror, tp.topic)
        remedy = (
            "put the newest __relay_ledger back, if there is one, and make the checkpoint from it:"
            f" {restore_command(position.mirror)}; or delete the copy, or name another topic for it"
            f" in topics.rename, and copy all of it again: `{command} --to-earliest --execute`"
        )
    else:
        return None
    return CheckpointLostError(what, remedy=remedy, topic_partition=tp, offset=copied)


def losses(position: Position) -> list[Loss]:
    """All that was lost, the worst first, if the checkpoint is the last one."""
    return list(_losses(position))


def _losses(position: Position) -> Iterator[Loss]:
    copied, low, end = position.next_offset, position.low_watermark, position.end_offset
    if copied is None:
        return
    if position.recreated:
        remedy = "mirror it under a new name into a new destination topic"
        accepted = f" which copies all that the log has now, {_span(low, end)},"
        yield Loss(TopicRecreatedError, ANOTHER_LOG, remedy, low, accepted)
    if copied < low:
        what = f"retention took the offsets [{copied}, {low}) before they were copied"
        remedy = "run more often or keep records longer"
        accepted = f" without {_span(copied, low)},"
        yield Loss(RetentionPassedError, what, remedy, low, accepted)
    if copied > end:
        what = (
            f"the next offset to copy is above the source's end offset {end}:"
            " the topic was truncated or recreated"
        )
        remedy = "restore the topic, or mirror it under a new name into a new destination topic"
        accepted = f" which takes all that it has, {_span(low, end)}, for copied,"
        yield Loss(LogTruncatedError, what, remedy, end, accepted)
    if position.truncated_at is not None:
        what = (
            f"the log was truncated at offset {position.truncated_at}, below the checkpoint,"
            " and other records were written from there"
        )
        remedy = (
            "find out whether a leader was elected uncleanly or a disk restored,"
            " and which records are right"
        )
        other = _span(position.truncated_at, end)
        accepted = f" which copies {other}, after the copies of the former records,"
        yield Loss(LogTruncatedError, what, remedy, position.truncated_at, accepted)
    if position.destination_lost:
        remedy = copy_again(position.mirror, position.topic_partition.topic)
        accepted = f" without {_span(low, copied)} that the source still has,"
        yield Loss(DestinationTopicLostError, position.destination_lost, remedy, copied, accepted)


def _span(start: int, end: int) -> str:
    """Name source offsets and their number."""
    count = max(0, end - start)
    return f"[{start}, {start + count}), {count:,} offset{'s' * (count != 1)}"

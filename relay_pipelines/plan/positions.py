"""What the source holds of each topic-partition, and how far it was copied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from relay_pipelines.model import OffsetRange, TopicPartition

ASK_SILENT = (
    "start that upstream, grant what it refuses, or remove it from source.upstreams to give up what"
    " only it has"
)
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
        ledger_end: up to where it was copied according to the ledger, if that has an entry which is
            newer than the checkpoint, or if there is none; else None.
        copies_after: where the destination has records of the mirror after those that its
            checkpoint knows; None if it has none.
        high_watermark: the end of what every replica has; the records from `end_offset` to it wait
            for a transaction to end.
        open_since_ms: when the first record of that transaction was written; None if no transaction
            is open, or if unknown.
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
    ledger_end: int | None = None
    copies_after: int | None = None
    high_watermark: int = -1
    open_since_ms: int | None = None
    elsewhere: Elsewhere | None = None
    first_offset: int | None = None
    silent: str = ""

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
    def uncopied(self) -> OffsetRange:
        """The offsets not copied yet, held back or not; empty (and falsy) if nothing is new."""
        return OffsetRange(self.topic_partition, self.first_uncopied, self.end_offset)

    @property
    def lag(self) -> int:
        """How many offsets are not copied yet; 0 if the checkpoint is above the end offset."""
        return max(0, self.end_offset - self.first_uncopied)

    @property
    def begin(self) -> int:
        """The next offset to copy."""
        return self.low_watermark if self.next_offset is None else self.next_offset


def open_since(positions: Iterable[Position], now_ms: int) -> float | None:
    """Return the age of the oldest open transaction in seconds; None if unknown or none."""
    known = [position.open_since_ms for position in positions if position.open_since_ms is not None]
    return max(0.0, (now_ms - min(known)) / 1000) if known else None

"""What is at the destination of one chunk, and how far it is what was committed.

An excuse is explained by what happened, as the log itself shows it: offsets that only a cleaner can
have emptied, batches that a cleaner has written again, batches in another codec, a log that begins
later. docs/transactions.md, "What an audit may excuse", has the rules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from relay_pipelines.model import LedgerEntry
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.records import chained_digest


class Why(StrEnum):
    """Why records are gone, or could not be compared, although nothing is wrong."""

    RETENTION = "retention at the destination has begun to delete them"
    REMOVED = "compaction at the destination has removed them"
    CLEANED = "compaction at the destination has removed others of their chunk"
    RECOMPRESSED = "the destination stores them in another codec"


@dataclass(slots=True)
class ChunkCount:
    """What was found in the destination offsets of a chunk.

    Args:
        is_compacted: whether a cleaner may work on the topic: otherwise it explains nothing.
        producer_id: of its batches; None before the first one. A chunk has one producer and begins
            with one of its own records; another producer's records may lie within it.
        holes: its offsets without a record, of which a cleaner leaves some: no producer can write
            a batch with fewer records than offsets, or leave offsets without a batch.
        is_cleaned: whether a cleaner has written any of its batches again.
        untimed: records whose timestamps the destination's brokers have set.
    """

    entry: LedgerEntry
    is_compacted: bool
    producer_id: int | None = None
    records: int = 0
    digest: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    holes: int = 0
    is_cleaned: bool = False
    untimed: int = 0

    def is_own(self, batch: Batch) -> bool:
        """Whether a batch within its offsets is of its producer."""
        if self.producer_id is None:
            self.producer_id = batch.header.producer_id
        return self.producer_id == batch.header.producer_id

    def add(self, batch: Batch) -> None:
        """Count one of its batches."""
        header = batch.header
        self.records += header.records
        self.digest = chained_digest(batch, self.digest)
        if header.records:  # the cleaner leaves an empty batch for the producer's last sequence
            self.codecs[header.codec_name] += 1
        self.is_cleaned |= header.is_cleaned
        self.holes += header.last_offset_delta + 1 - header.records
        if header.is_log_append_time:
            self.untimed += header.records

    def add_holes(self, start: int, end: int) -> None:
        """Count offsets without a batch, as far as they are in the chunk."""
        chunk = self.entry.destination
        self.holes += max(0, min(end, chunk.end) - max(start, chunk.start))

    def missing(self, low: int) -> Counter[str] | None:
        """Return how many of its records are gone, by what took them; None for another number.

        Args:
            low: where the destination's log begins.
        """
        chunk = self.entry.destination
        deleted = max(0, min(low, chunk.end) - chunk.start)
        missing = self.entry.records - self.records
        cleaned = self.holes if self.is_compacted else 0
        if not 0 <= missing <= deleted + cleaned:
            return None
        by_retention = min(missing, deleted)
        return +Counter[str]({Why.RETENTION: by_retention, Why.REMOVED: missing - by_retention})

    def why_not_compared(self, missing: Counter[str]) -> str:
        """Return why its digest says nothing about the records that are there; empty if it does.

        Args:
            missing: what is gone, as `missing` returns it.
        """
        if Why.RETENTION in missing:
            return Why.RETENTION
        if missing or (self.is_cleaned and self.is_compacted):
            return Why.CLEANED
        return "" if self.codecs == self.entry.codecs else Why.RECOMPRESSED

    @property
    def has_its_digest(self) -> bool:
        """Whether the batches are those that were produced."""
        return f"{self.digest:08x}" == self.entry.digest

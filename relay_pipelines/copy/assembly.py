"""Decides what becomes of a source batch: it goes verbatim, or its records are merged or rewritten into new batches.

Runs in a task. Verbatim costs per batch; everything else costs per record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from relay_pipelines.copy.filtering import Sieve
from relay_pipelines.copy.reader import Piece
from relay_pipelines.errors import FilterError, RecordTooLargeError
from relay_pipelines.model import CopyOptions, CopyRange, Fingerprint, Skipped, TimestampType
from relay_pipelines.wire.batch import Batch, Run, verify
from relay_pipelines.wire.records import BatchBuilder, body_of, checked_records, codec_of, corrupt_at, decode, digest_of

if TYPE_CHECKING:
    from relay_pipelines.copy.decided import Decided


class Chunk:
    """What one transaction copies: the counts of a ledger entry, while they grow."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.records = 0
        self.size_bytes = 0
        self.batches = 0
        self.rewritten = 0
        self.skipped: Counter[Skipped] = Counter()
        self.digest = 0
        self.leader_epoch = -1

    def add_batch(self, batch: Batch) -> None:
        """Count a batch that is being produced."""
        self.batches += 1
        self.records += batch.header.records
        self.size_bytes += len(batch.data)
        self.digest = crc32c(body_of(batch), self.digest)


class Assembler:
    """Turns pieces of the source into batches for the destination, in order.

    Args:
        send: takes each finished batch; its bytes are used at once.
        quarantine: takes each record on which a filter fails, and why; without it, that ends the copy.
        decided: the offsets that a predicate keeps; all without it.
    """

    def __init__(
        self,
        copy_range: CopyRange,
        options: CopyOptions,
        send: Callable[[Batch], None],
        quarantine: Callable[[Any, FilterError], None] | None = None,
        decided: Decided | None = None,
    ) -> None:
        self._range = copy_range
        self._options = options
        self._send = send
        self._limit_bytes = min(options.coalesce_to_bytes, copy_range.max_message_bytes)
        self._keeps_append_time = copy_range.timestamp_type is TimestampType.LOG_APPEND_TIME
        filters = copy_range.handling.filters
        failed = self._set_aside if quarantine else None
        self._sieve = Sieve(filters, copy_range.source.topic_partition, self._drop, failed) if filters else None
        self._quarantine = quarantine
        self._decided = decided
        self._pending: BatchBuilder | None = None
        self._last_batch: Batch | None = None
        self._last_record: Any = None
        self.chunk = Chunk(-1)

    def begin(self, start: int) -> None:
        """Start a new chunk at source offset `start`; what an aborted one left is dropped."""
        self._pending = self._last_batch = self._last_record = None
        self.chunk = Chunk(start)

    def add(self, piece: Piece) -> None:
        """Take the next piece.

        Raises:
            CorruptBatchError: its bytes do not match their CRC, or cannot be decoded.
            RecordTooLargeError: one record does not fit the destination.
            FilterError: a filter raised something on a record.
        """
        chunk = self.chunk
        chunk.end = piece.end
        run = piece.run
        if run is None:
            if piece.skipped is not None:
                chunk.skipped[piece.skipped] += piece.end - piece.start
            return
        chunk.leader_epoch = run.last.leader_epoch
        if self._goes_verbatim(piece, run):
            batch = Batch(run.first, run.data)
            verify(batch)
            self.flush()
            self._produce(batch)
            self._last_batch = batch
        else:
            self._rewrite(piece, run)

    def add_records(self, records: Iterable[Any], codec: int) -> None:
        """Add records to the pending batch, and produce what is full.

        Args:
            codec: as a batch's attributes number it.

        Raises:
            RecordTooLargeError: one record does not fit the destination.
        """
        if self._pending is not None and self._pending.codec != codec:
            self.flush()
        self._pending = self._pending or BatchBuilder(codec, self._limit_bytes)
        while (unfitting := self._pending.extend(records)) is not None:
            self.flush()
            self._pending = BatchBuilder(codec, self._limit_bytes)
            self._pending.append(unfitting)

    def flush(self) -> None:
        """Produce what is pending: nothing, where the cleaner has emptied the batches."""
        pending, self._pending = self._pending, None
        if pending is None or not pending.records:
            return
        self._last_record, self._last_batch = pending.last, None
        self.chunk.rewritten += pending.records
        self._produce(pending.build())

    def keep(self) -> None:
        """Copy what is still needed of the current bytes: the buffer they lie in is about to be reused."""
        if self._last_batch is not None:
            self._last_batch = Batch(self._last_batch.header, memoryview(bytes(self._last_batch.data)))

    def fingerprint(self) -> Fingerprint | None:
        """Return that of the chunk's last record; None if it has none."""
        if self._last_batch is not None:
            *_, self._last_record = decode(self._last_batch.data)
            self._last_batch = None
        record = self._last_record
        if record is None:
            return None
        return Fingerprint(record.offset, digest_of(record.timestamp, record.key, record.value, record.headers))

    def _goes_verbatim(self, piece: Piece, run: Run) -> bool:
        header = run.first
        return (
            self._sieve is None
            and self._options.coalesce_below_bytes <= len(run.data) <= self._range.max_message_bytes
            and run.is_single
            # whole, and dense: the broker refuses a batch whose record count is not its offset span
            and piece.end - piece.start == header.records == header.last_offset_delta + 1
            # a producer cannot set append time: the destination stamps, or each record carries it as its own
            and (self._keeps_append_time or not header.is_log_append_time)
            and (self._decided is None or self._decided.keeps_all(piece.start, piece.end))
        )

    def _rewrite(self, piece: Piece, run: Run) -> None:
        """Add the run's records to the pending batch; those that the range cuts off, or the cleaner took, are not there."""
        before = self._accounted()
        records = checked_records(run, piece.end)
        if piece.start > run.first.base_offset or piece.end <= run.last.last_offset:
            records = (one for one in records if piece.start <= one.offset < piece.end)
        if self._decided is not None:
            records = self._decided.sieve(records, piece.start, piece.end, self._drop)
        if self._sieve is not None:
            records = self._sieve(records)
        with corrupt_at(run.first.base_offset):
            self.add_records(records, codec_of(run.first))
        gap = piece.end - piece.start - (self._accounted() - before)
        if gap:
            self.chunk.skipped[Skipped.COMPACTION_GAP] += gap

    def _accounted(self) -> int:
        skipped, pending = self.chunk.skipped, self._pending.records if self._pending else 0
        return self.chunk.rewritten + pending + skipped[Skipped.FILTERED] + skipped[Skipped.QUARANTINED]

    def _drop(self) -> None:
        self.chunk.skipped[Skipped.FILTERED] += 1

    def _set_aside(self, record: Any, error: FilterError) -> None:
        assert self._quarantine is not None
        self._quarantine(record, error)
        self.chunk.skipped[Skipped.QUARANTINED] += 1

    def _produce(self, batch: Batch) -> None:
        size = len(batch.data)
        if size > self._range.max_message_bytes:
            raise RecordTooLargeError(
                f"a record of {size} bytes is larger than max.message.bytes={self._range.max_message_bytes} of"
                f" {self._range.destination.topic} at the destination",
                remedy=f"set max.message.bytes of that topic to at least {size}",
                topic_partition=self._range.source.topic_partition,
                offset=self._last_record.offset,  # what goes as it is was small enough
            )
        self.chunk.add_batch(batch)
        self._send(batch)

"""From fetched spans to batches for the destination: verbatim if possible, else re-encoded.

A verbatim batch costs the same whatever it holds; decoding costs per record. Nothing here does I/O.
Runs in a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from relay_pipelines.copy.chunk import Portion
from relay_pipelines.copy.filtering import RecordFilter
from relay_pipelines.errors import InvalidRecordError, RecordTooLargeError, RelayError
from relay_pipelines.model import CopyOptions, CopyRange, OnRecordError, Skipped, TimestampType
from relay_pipelines.protocol.batch import CODECS, Batch, BatchRun, SmallBatch, verify
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import (
    AscendingOffsets,
    BatchBuilder,
    DecodedRecords,
    checked_records,
    codec_of,
    corrupt_at,
)

_CHEAPER_MERGED = SmallBatch(
    (
        (32 << 10, 350),  # none
        (3 << 10, 30),  # gzip
        (6 << 10, 60),  # snappy
        (6 << 10, 60),  # lz4
        (9 << 10, 60),  # zstd
        *((0, 0),) * 3,  # not assigned
    )
)
"""By codec: a batch of its own costs a produce request, a merged one costs its records and bytes.

Measured by `python -m benchmarks.merging`; ADR 16 has the figures.
"""
_LEAST_LIMIT_BYTES = 32 << 10
_LARGEST_BYTES = 1 << 32  # larger than any batch


def small_batches(copy_range: CopyRange, options: CopyOptions) -> SmallBatch:
    """Return which batches are merged: those that cost less so than in a request of their own.

    With `recompress`, all of another codec, too.
    """
    below_bytes = options.coalesce_below_bytes
    if copy_range.max_message_bytes < _LEAST_LIMIT_BYTES:
        below_bytes = 0  # compressed again, one that just fits might not fit any more
    small = _CHEAPER_MERGED if below_bytes is None else SmallBatch.below(below_bytes)
    if not options.codec:
        return small
    # a batch of another codec is decoded in any case, and cheapest in a run
    limits = [(_LARGEST_BYTES, 0)] * len(small.limits)
    own = CODECS.index(options.codec)
    limits[own] = small.limits[own]
    return SmallBatch(tuple(limits))


class Merged(NamedTuple):
    """What a merger returns: full batches, their last record, and what the destination refuses."""

    batches: list[Batch]
    last: Any
    refused: list[tuple[Any, RelayError]]

    def add_to(self, portion: Portion) -> None:
        """Put the batches into a portion, and count their records."""
        portion.batches += self.batches
        portion.reencoded += sum(batch.header.records for batch in self.batches)
        if self.refused:
            portion.quarantined += self.refused
            portion.skip(Skipped.QUARANTINED, len(self.refused))


class RecordMerger:
    """Merges records into batches of a good size, in order.

    Args:
        copy_range: knows the destination's rules, and whether a record that breaks one may go into
            quarantine.
    """

    def __init__(self, copy_range: CopyRange, options: CopyOptions) -> None:
        self._range = copy_range
        self._codec = CODECS.index(options.codec) if options.codec else None
        self._limit_bytes = min(options.coalesce_to_bytes, copy_range.max_message_bytes)
        self._quarantines = copy_range.record_policy.on_record_error is OnRecordError.QUARANTINE
        self._pending: BatchBuilder | None = None
        self._own_codec = 0  # of the first record of the pending batch, as the source has it
        self.taken = 0
        """How many records it has taken."""

    def add(
        self, records: Iterable[Any], codec: int, offsets: AscendingOffsets | None = None
    ) -> Merged:
        """Take records; return the batches that became full.

        Args:
            codec: the compression codec they had, as numbered in a batch's attributes.
            offsets: gets that of each, in order; not of those without a required key.

        Raises:
            InvalidRecordError: a record has no key, and the destination is compacted.
            RecordTooLargeError: a record exceeds the destination's limit.
        """
        merged = Merged([], None, [])
        own, codec = codec, codec if self._codec is None else self._codec
        if not isinstance(records, DecodedRecords):  # which is faster as it is
            records = iter(records)
        if self._range.requires_keys:
            records = self._with_keys(records, merged.refused)
        if self._pending is not None and self._pending.codec != codec:
            merged = self._finish(merged)
        builder = self._pending or self._begin(codec, own)
        held_back = builder.records
        while (unfitting := builder.extend(records, offsets)) is not None:
            self.taken += builder.records - held_back
            merged = self._finish(merged)
            builder = self._begin(codec, own)
            builder.append(unfitting)
            held_back = 0
        self.taken += builder.records - held_back
        return merged

    @property
    def holds_back(self) -> bool:
        """Whether a batch is being filled."""
        return self._pending is not None

    def flush(self) -> Merged:
        """Return the batch that was held back, if it has records."""
        return self._finish(Merged([], None, []))

    def _begin(self, codec: int, own: int) -> BatchBuilder:
        self._own_codec = own
        self._pending = BatchBuilder(codec, self._limit_bytes)
        return self._pending

    def _finish(self, merged: Merged) -> Merged:
        builder, self._pending = self._pending, None
        if builder is None or not builder.records:
            return merged
        batch = builder.build()
        # the merger never puts a second record into a batch that is too large
        if len(batch.data) > self._range.max_message_bytes and builder.codec != self._own_codec:
            alone = BatchBuilder(
                self._own_codec, self._limit_bytes
            )  # with which it may have fitted
            alone.append(builder.last)
            batch = alone.build()
        if len(batch.data) <= self._range.max_message_bytes:
            merged.batches.append(batch)
            return merged._replace(last=builder.last)
        self._refuse(
            builder.last, self._too_large(len(batch.data), builder.last.offset), merged.refused
        )
        return merged

    def _with_keys(
        self, records: Iterable[Any], refused: list[tuple[Any, RelayError]]
    ) -> Iterator[Any]:
        for record in records:
            if record.key is not None:
                yield record
            else:
                self._refuse(record, self._without_key(record.offset), refused)
                self.taken += 1

    def _refuse(
        self, record: Any, error: RelayError, refused: list[tuple[Any, RelayError]]
    ) -> None:
        if not self._quarantines:
            raise error
        refused.append((record, error))

    def _without_key(self, offset: int) -> InvalidRecordError:
        return InvalidRecordError(
            f"a record has no key, and {self._range.destination.topic} is compacted at the"
            " destination",
            remedy="change cleanup.policy of that topic, leave such records out with a filter, or"
            " set on_record_error: quarantine",
            topic_partition=self._range.source.topic_partition,
            offset=offset,
        )

    def _too_large(self, size: int, offset: int) -> RecordTooLargeError:
        to = self._range.destination.topic
        return RecordTooLargeError(
            f"a record of {size} bytes is larger than"
            f" max.message.bytes={self._range.max_message_bytes} of {to} at the destination",
            remedy=f"set max.message.bytes of that topic to at least {size}, or set"
            " on_record_error: quarantine",
            topic_partition=self._range.source.topic_partition,
            offset=offset,
        )


class Batching:
    """Turns the spans of one range into portions, in order.

    Args:
        record_filter: decides which records are copied; None to copy all.
        decodes: whether to look at each record, since the destination refused one.
    """

    def __init__(
        self,
        copy_range: CopyRange,
        options: CopyOptions,
        record_filter: RecordFilter | None,
        *,
        decodes: bool = False,
    ) -> None:
        self._decodes = decodes
        self._range = copy_range
        self._small = small_batches(copy_range, options)
        self._keeps_append_time = copy_range.timestamp_type is TimestampType.LOG_APPEND_TIME
        self._filter = record_filter
        self._merger = RecordMerger(copy_range, options)
        self._last_read: Any = None  # since the last verbatim batch

    def add(self, span: FetchedSpan) -> Portion:
        """Return the batches of the next span.

        Raises:
            CorruptBatchError: a batch does not match its CRC, or cannot be decoded.
            InvalidRecordError: a record has no key, and the destination is compacted.
            RecordTooLargeError: one record exceeds the destination's limit.
            RelayError: the filter failed.
        """
        portion = Portion(span.end)
        if span.leader_epoch >= 0:
            portion.leader_epoch, portion.leader_epoch_end = span.leader_epoch, span.end
        if span.run is None:
            portion.copied = AscendingOffsets(span.start)
            if span.skipped is not None:
                portion.skipped[span.skipped] = span.end - span.start
        elif self._goes_verbatim(span, span.run):
            batch = Batch(span.run.first, span.run.data)
            verify(batch)
            if self._merger.holds_back:
                self._merger.flush().add_to(portion)
            portion.batches.append(batch)
            portion.last, self._last_read = batch, None
        else:
            self._reencode(portion, span, span.run)
        return portion

    def flush(self) -> Portion:
        """Return the records that were held back to be merged."""
        portion = Portion()
        self._add_merged(portion, self._merger.flush())
        return portion

    def _goes_verbatim(self, span: FetchedSpan, run: BatchRun) -> bool:
        header = run.first
        return (
            run.is_single
            and not self._decodes
            and len(run.data) <= self._range.max_message_bytes
            and not self._small.includes(header)
            # whole, and without gaps: the broker refuses a batch whose record count is not its
            # offset span
            and span.end - span.start == header.records == header.last_offset_delta + 1
            # a producer cannot set append time: either the destination sets its own, or each record
            # is written with this time as its create time
            and (self._keeps_append_time or not header.is_log_append_time)
            and (self._filter is None or self._filter.keeps_all(span.start, span.end))
        )

    def _reencode(self, portion: Portion, span: FetchedSpan, run: BatchRun) -> None:
        """Merge the run's records inside the span, and count those that compaction removed."""
        records: Iterable[Any] = checked_records(run, span.end)
        is_cut = span.start > run.first.base_offset or span.end <= run.last.last_offset
        if is_cut:
            records = (record for record in records if span.start <= record.offset < span.end)
        record_filter, taken, dropped, failed = self._filter, self._merger.taken, 0, 0
        takes_all = record_filter is None and not is_cut and run.records == span.end - span.start
        if record_filter is not None:
            dropped, failed = record_filter.dropped, len(record_filter.failed)
            records = record_filter.apply(self._noted(records), span.start, span.end)
        with corrupt_at(run.first.base_offset):
            if takes_all:
                merged = self._merger.add(records, codec_of(run.first))
            else:
                portion.copied = AscendingOffsets(span.start)
                merged = self._merger.add(records, codec_of(run.first), portion.copied)
        self._add_merged(portion, merged)
        accounted = self._merger.taken - taken
        if record_filter is not None:
            dropped = record_filter.dropped - dropped
            failed = len(record_filter.failed) - failed
            accounted += dropped + failed
            if dropped:
                portion.skipped[Skipped.FILTERED] = dropped
            if failed:
                portion.skip(Skipped.QUARANTINED, failed)
                portion.quarantined += record_filter.failed[-failed:]
                record_filter.failed.clear()
        gap = span.end - span.start - accounted
        if gap:
            portion.skip(Skipped.COMPACTION_GAP, gap)

    def forget_last(self) -> None:
        """Forget the last record read, which is committed: the next chunk may have none."""
        self._last_read = None

    def _noted(self, records: Iterable[Any]) -> Iterator[Any]:
        for self._last_read in records:
            yield self._last_read

    def _add_merged(self, portion: Portion, merged: Merged) -> None:
        """Put batches into a portion, and tell the last record read, also if it has no copy.

        In a log that was put back, other records may begin after the last one that has.
        """
        merged.add_to(portion)
        read = [self._last_read, merged.last, *(record for record, _ in merged.refused)]
        known = (record for record in read if record is not None)
        self._last_read = max(known, key=attrgetter("offset"), default=None)
        portion.last = self._last_read

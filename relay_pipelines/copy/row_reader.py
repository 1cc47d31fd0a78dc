"""Reads records as rows, which pass through SQL or a transform to the writer in another process.

Rows come in order, range by range. A progress marker, which is a row without a record, comes before
the rows of a range and after those of each fetch. It says which range they belong to, how far they
reach, and from which log they were read: that of a range is one, and if it fails, the range ends
there, to be planned again. SQL keeps every marker, so that the writer can account for every source
offset. Runs in a task.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from relay_pipelines.copy.batching import small_batches
from relay_pipelines.copy.chunk import fingerprint_of
from relay_pipelines.copy.columns import (
    COLUMNS,
    TYPES,
    ColumnBuilder,
    is_log_append_time,
    records_in,
)
from relay_pipelines.copy.failover import FailoverSource, UpstreamFailures
from relay_pipelines.copy.filtering import filter_chain
from relay_pipelines.errors import RelayError, RetriableError, StalePlanError
from relay_pipelines.model import (
    CopyJob,
    CopyRange,
    Fingerprint,
    OffsetRange,
    Skipped,
    UpstreamIdentity,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import Record, codec_of
from relay_pipelines.protocol.retries import retry_until_no_progress

MARKER = "relay_marker"
RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_BATCH_RECORDS = 20_000


def schema(columns: Sequence[str]) -> str:
    """Return the Spark schema of rows with these columns."""
    return ", ".join(
        f"{name} {kind}"
        for name, kind in {MARKER: "binary", **{name: COLUMNS[name] for name in columns}}.items()
    )


@dataclass(frozen=True, slots=True)
class ProgressMarker:
    """What the writer must know about the rows since the last marker.

    Args:
        index: of the range.
        end: the source offset after the last one read.
        skipped: the number of offsets without a row, by reason.
        leader_epoch, leader_epoch_end: the epoch of the last batch of any kind, and the offset
            after that batch; -1 if there was none.
        codec: the compression codec of the last batch with records, as numbered in its attributes.
        identity: the log that was read; None if none was.
        fingerprint: of the last record.
        is_last: whether this is the last marker of the range.
        error: why the range ends early; None if it does not.
        diverged: the upstreams that do not hold what was copied, and why.
        throttled_seconds: for how long quotas of the upstreams made the reader wait; in the last
            one.
    """

    index: int
    end: int
    skipped: dict[Skipped, int] = field(default_factory=dict)
    leader_epoch: int = -1
    leader_epoch_end: int = -1
    codec: int = 0
    identity: UpstreamIdentity | None = None
    fingerprint: Fingerprint | None = None
    is_last: bool = False
    error: RelayError | None = None
    diverged: dict[str, str] = field(default_factory=dict)
    throttled_seconds: float = 0.0


class FailedRecord(NamedTuple):
    """A record that skips SQL and goes into quarantine, and why."""

    record: Record
    error: RelayError


def read_rows(
    job: CopyJob,
    ranges: Sequence[CopyRange],
    indices: Iterable[int],
    columns: Sequence[str],
    clock: Clock,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows and markers of each range, from its known checkpoint to its end.

    Never raises a `RelayError`, but yields it in a marker. If a range gives up because no upstream
    can be reached, the ranges after it fail at once with the same error.

    Args:
        indices: the ranges to read, in this order.
        columns: the columns to read, of `COLUMNS`.
    """
    unreachable: RetriableError | None = None
    with FailoverSource(job, clock) as upstreams:
        for index in indices:
            rows = _RangeRows(job, ranges[index], index, columns, upstreams, clock)
            error: RelayError | None = None
            earlier = upstreams.throttled_seconds
            try:
                yield _marker(ProgressMarker(index, rows.position), columns)
                if unreachable is not None:
                    raise unreachable
                error = yield from rows.batches()
            except RelayError as caught:
                error = caught
                if isinstance(caught, RetriableError) and caught.topic_partition is None:
                    unreachable = caught
            last = ProgressMarker(
                index,
                rows.position,
                identity=rows.identity,
                is_last=True,
                error=error,
                diverged=upstreams.diverged,
                throttled_seconds=upstreams.throttled_seconds - earlier,
            )
            yield _marker(last, columns)


class _RangeRows:
    """The rows of one range, from one log."""

    def __init__(
        self,
        job: CopyJob,
        copy_range: CopyRange,
        index: int,
        columns: Sequence[str],
        upstreams: FailoverSource,
        clock: Clock,
    ) -> None:
        self._range = copy_range
        self._options = job.options_for(copy_range)
        self._index = index
        self._columns = columns
        self._upstreams = upstreams
        self._clock = clock
        self._topic_partition = copy_range.source.topic_partition
        self.position = copy_range.next_offset(copy_range.checkpoint)
        self.identity: UpstreamIdentity | None = None
        self._failing_since = -1.0  # time of the first failure
        self._filters = filter_chain(copy_range)
        self._failures = UpstreamFailures()

    def batches(self) -> Generator[pa.RecordBatch, None, StalePlanError | None]:
        """Yield the rows and markers; return why they end early, if they do after the first ones.

        Before those, another attempt may read another upstream. Rows cannot be taken back, so that
        nobody could compare later ones with them, as a copy does that begins at its checkpoint.
        """
        for attempt in retry_until_no_progress(
            self._options, self._clock, lambda: self._failing_since
        ):
            with attempt:
                try:
                    self._upstreams.switch(self._failures)
                    identity = self._upstreams.verify_position(self._range, self._range.checkpoint)
                    yield from self._fetched(identity)
                except RelayError as error:
                    if self._failing_since < 0:
                        self._failing_since = self._clock.monotonic()
                    failed = self._upstreams.fail_over(error, self._failures)
                    if self.identity is None or not failed.retryable:
                        raise failed from error
                    return StalePlanError(
                        failed.what,
                        remedy="run again to continue from the checkpoint",
                        topic_partition=self._topic_partition,
                    )
        return None

    def _fetched(self, identity: UpstreamIdentity) -> Iterator[pa.RecordBatch]:
        offset_range = OffsetRange(self._topic_partition, self.position, self._range.source.end)
        max_bytes, small = self._options.fetch_max_bytes, small_batches(self._range, self._options)
        with closing(self._upstreams.read(offset_range, max_bytes, small)) as fetches:
            for spans in fetches:
                if spans:
                    self._upstreams.verify_same_log(self._range, identity)
                    # a complete fetch or nothing, because rows cannot be taken back
                    rows = self._rows(spans, identity)
                    self.identity = identity
                    yield from rows

    def _rows(
        self, spans: Sequence[FetchedSpan], identity: UpstreamIdentity
    ) -> list[pa.RecordBatch]:
        batches: list[pa.RecordBatch] = []
        skipped: Counter[Skipped] = Counter()
        last, run, epoch, epoch_end = None, None, -1, -1
        on_error, filters = self._range.record_policy.on_record_error, self._filters
        builder = ColumnBuilder(self._columns, self._topic_partition, on_error)
        dropped = filters.dropped if filters else 0
        if filters is not None:
            filters.failed.clear()  # left from a fetch that failed halfway
        for span in spans:
            if span.leader_epoch >= 0:
                epoch, epoch_end = span.leader_epoch, span.end
            if span.run is None:
                if span.skipped is not None:
                    skipped[span.skipped] += span.end - span.start
                continue
            run, present = span.run, 0
            for records in records_in(span):
                present += len(records)
                last = records[-1] if records else last
                builder.add(
                    records if filters is None else list(filters.apply(records)),
                    log_append_time=is_log_append_time(span),
                )
                if builder.records >= _BATCH_RECORDS:
                    batches.append(_marked(builder.take()))
            skipped[Skipped.COMPACTION_GAP] += span.end - span.start - present
        if builder.records:
            batches.append(_marked(builder.take()))
        failed = list(builder.failed)
        if filters is not None:
            skipped[Skipped.FILTERED] += filters.dropped - dropped
            failed += filters.failed
            filters.failed.clear()
        batches += [
            _marker(_failed_record(record, error), self._columns) for record, error in failed
        ]
        self.position = spans[-1].end
        marker = ProgressMarker(
            self._index,
            self.position,
            skipped={reason: count for reason, count in skipped.items() if count},
            leader_epoch=epoch,
            leader_epoch_end=epoch_end,
            codec=codec_of(run.first) if run else 0,
            identity=identity,
            fingerprint=fingerprint_of(last) if last else None,
        )
        return [*batches, _marker(marker, self._columns)]


def _failed_record(record: Any, error: RelayError) -> FailedRecord:
    return FailedRecord(
        Record(record.offset, record.timestamp, record.key, record.value, record.headers), error
    )


def _marked(
    batch: pa.RecordBatch, marker: ProgressMarker | FailedRecord | None = None
) -> pa.RecordBatch:
    """Add the marker column to a batch."""
    markers = (
        pa.nulls(len(batch), pa.binary())
        if marker is None
        else pa.array([pickle.dumps(marker)] * len(batch), pa.binary())
    )
    return pa.RecordBatch.from_arrays(
        [markers, *batch.columns], names=[MARKER, *batch.schema.names]
    )


def _marker(marker: ProgressMarker | FailedRecord, columns: Sequence[str]) -> pa.RecordBatch:
    empty_row = pa.RecordBatch.from_arrays(
        [pa.nulls(1, TYPES[name]) for name in columns], names=list(columns)
    )
    return _marked(empty_row, marker)

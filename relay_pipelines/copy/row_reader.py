"""Records as rows, for SQL and transforms: read in one Python process, written in another, with Spark in between. In a task.

Rows come in order, range by range. Before those of a range, and after those of each fetch, comes a
progress marker, a row without
a record: to which range they belong, how far they reach, and where they were read. Markers pass
whatever is done to rows, so that the writer knows what became of every source offset.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from relay_pipelines.copy.chunk import fingerprint_of
from relay_pipelines.copy.columns import (
    COLUMNS,
    TYPES,
    ColumnBuilder,
    Row,
    is_log_append_time,
    records_in,
)
from relay_pipelines.copy.failover import FailoverSource
from relay_pipelines.copy.filtering import FilterChain
from relay_pipelines.errors import RelayError
from relay_pipelines.model import (
    Checkpoint,
    CopyJob,
    CopyRange,
    Fingerprint,
    NodeIdentity,
    OffsetRange,
    Skipped,
)
from relay_pipelines.protocol.backoff import retry_until_no_progress
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import codec_of

MARKER = "relay_marker"
ALWAYS = ("offset", "timestamp", "key", "value", "headers")
_BATCH_RECORDS = 20_000


def schema(columns: Sequence[str]) -> str:
    """Return the schema of rows with these columns, in Spark's words."""
    return ", ".join(
        f"{name} {kind}"
        for name, kind in {MARKER: "binary", **{name: COLUMNS[name] for name in columns}}.items()
    )


@dataclass(frozen=True, slots=True)
class ProgressMarker:
    """What the writer must know of the rows since the last marker.

    Args:
        index: of the range.
        end: the source offset that they reach.
        skipped: offsets without a row, by reason.
        leader_epoch, leader_epoch_end: of the last batch of any kind, and the offset after it; -1
        if there was none.
        codec: of the last batch with records, as its attributes number it.
        identity: of the log from which they were read; None if none was read.
        fingerprint: of the last record.
        is_last: whether nothing more comes of this range.
        error: why nothing more comes, if that is not its end.
        diverged: nodes that were found not to hold what was copied, and why.
    """

    index: int
    end: int
    skipped: dict[Skipped, int] = field(default_factory=dict)
    leader_epoch: int = -1
    leader_epoch_end: int = -1
    codec: int = 0
    identity: NodeIdentity | None = None
    fingerprint: Fingerprint | None = None
    is_last: bool = False
    error: RelayError | None = None
    diverged: dict[str, str] = field(default_factory=dict)


class FailedRecord(NamedTuple):
    """A record that goes into quarantine, past SQL, and why."""

    record: Row
    error: RelayError


def read_rows(
    job: CopyJob,
    ranges: Sequence[CopyRange],
    indices: Iterable[int],
    columns: Sequence[str],
    clock: Clock,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each range, from its known checkpoint through its end, and the markers between them.

    Never raises what is in the error tree: that comes as a marker.

    Args:
        indices: which of the ranges, in this order.
        columns: those of COLUMNS that are wanted; `ALWAYS` and perhaps more.
    """
    with FailoverSource(job, f"relay-{job.mirror}") as source:
        for index in indices:
            rows = _RangeRows(job, ranges[index], index, columns, source, clock)
            error: RelayError | None = None
            try:
                yield _marker(ProgressMarker(index, rows.position), columns)
                yield from rows.batches()
            except RelayError as caught:
                error = caught
            last = ProgressMarker(
                index,
                rows.position,
                identity=rows.identity,
                is_last=True,
                error=error,
                diverged=source.diverged,
            )
            yield _marker(last, columns)


class _RangeRows:
    """The rows of one range; where a node fails, the next one is read from the end of the last complete fetch."""

    def __init__(
        self,
        job: CopyJob,
        copy_range: CopyRange,
        index: int,
        columns: Sequence[str],
        source: FailoverSource,
        clock: Clock,
    ) -> None:
        self._range = copy_range
        self._options = copy_range.record_policy.options or job.options
        self._index = index
        self._columns = columns
        self._job = job
        self._source = source
        self._clock = clock
        self._topic_partition = copy_range.source.topic_partition
        self._checkpoint = copy_range.checkpoint
        self.position = (
            copy_range.source.start if self._checkpoint is None else self._checkpoint.next_offset
        )
        self.identity: NodeIdentity | None = None
        self._failing_since = -1.0  # since no fetch was complete between
        record_policy = copy_range.record_policy
        self._filters = (
            FilterChain(record_policy.filters, self._topic_partition, record_policy.on_record_error)
            if record_policy.filters
            else None
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._source.begin()
        for attempt in retry_until_no_progress(
            self._options, self._clock, lambda: self._failing_since
        ):
            with attempt:
                try:
                    self.identity = self._source.verify(self._range, self._checkpoint, self._clock)
                    yield from self._fetched(self.identity)
                except RelayError as error:
                    if self._failing_since < 0:
                        self._failing_since = self._clock.monotonic()
                    raise self._source.fail_over(error) from error

    def _fetched(self, identity: NodeIdentity) -> Iterator[pa.RecordBatch]:
        wanted = OffsetRange(self._topic_partition, self.position, self._range.source.end)
        options = self._options
        with closing(
            self._source.read(
                wanted, options.fetch_max_bytes, self._clock, options.coalesce_below_bytes
            )
        ) as fetches:
            for spans in fetches:
                if spans:
                    self._source.confirm(self._range, identity)
                    # all of a fetch or nothing of it: what was handed on cannot be taken back
                    yield from self._rows(spans, identity)
                    self._failing_since = -1.0

    def _rows(self, spans: Sequence[FetchedSpan], identity: NodeIdentity) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        skipped: Counter[Skipped] = Counter()
        last, run, epoch, epoch_end = None, None, -1, -1
        on_error, filters = self._range.record_policy.on_record_error, self._filters
        builder = ColumnBuilder(self._columns, self._topic_partition, on_error)
        dropped = filters.dropped if filters else 0
        if filters is not None:
            filters.failed.clear()  # of a fetch that was read in part, from a node that failed
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
                    found.append(_marked(builder.take()))
            skipped[Skipped.COMPACTION_GAP] += span.end - span.start - present
        if builder.records:
            found.append(_marked(builder.take()))
        failed = list(builder.failed)
        if filters is not None:
            skipped[Skipped.FILTERED] += filters.dropped - dropped
            failed += filters.failed
            filters.failed.clear()
        found += [_marker(_failed_record(record, error), self._columns) for record, error in failed]
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
        # another node must hold what was read, should this one fail
        epoch_reached = marker.leader_epoch, marker.leader_epoch_end
        self._checkpoint = (
            self._checkpoint
            or Checkpoint.initial(
                self._job.mirror, self._topic_partition, self._range.destination, spans[0].start
            )
        ).advanced(marker.end, epoch_reached, identity, marker.fingerprint)
        return [*found, _marker(marker, self._columns)]


def _failed_record(record: Any, error: RelayError) -> FailedRecord:
    return FailedRecord(
        Row(record.offset, record.timestamp, record.key, record.value, record.headers), error
    )


def _marked(
    batch: pa.RecordBatch, marker: ProgressMarker | FailedRecord | None = None
) -> pa.RecordBatch:
    """A batch with the marker column in front."""
    markers = (
        pa.nulls(len(batch), pa.binary())
        if marker is None
        else pa.array([pickle.dumps(marker)] * len(batch), pa.binary())
    )
    return pa.RecordBatch.from_arrays(
        [markers, *batch.columns], names=[MARKER, *batch.schema.names]
    )


def _marker(marker: ProgressMarker | FailedRecord, columns: Sequence[str]) -> pa.RecordBatch:
    nothing = pa.RecordBatch.from_arrays(
        [pa.nulls(1, TYPES[name]) for name in columns], names=list(columns)
    )
    return _marked(nothing, marker)

"""Batches made of the rows that SQL or a transform returned. Runs in a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

from relay_pipelines.copy.batching import RecordMerger
from relay_pipelines.copy.chunk import Portion
from relay_pipelines.copy.columns import rows_of
from relay_pipelines.copy.row_reader import FailedRecord, ProgressMarker
from relay_pipelines.copy.row_stream import MarkedRows, RowStream
from relay_pipelines.copy.sources import BatchSource
from relay_pipelines.copy.transforming import Transformer
from relay_pipelines.errors import DestinationError, RelayError
from relay_pipelines.model import (
    Checkpoint,
    CopyOptions,
    CopyRange,
    Fingerprint,
    Skipped,
    UpstreamIdentity,
)
from relay_pipelines.protocol.records import AscendingOffsets, Record


class RowBatches(BatchSource):
    """The batches of one range, made of rows that another process read.

    The rows come only once, so there is only one attempt.

    Args:
        stream: brings the rows.
        index: of the range in the stream.
    """

    def __init__(
        self, copy_range: CopyRange, options: CopyOptions, stream: RowStream, index: int
    ) -> None:
        self._range = copy_range
        self._stream = stream
        self._index = index
        self._merger = RecordMerger(copy_range, options)
        record_policy = copy_range.record_policy
        self._topic_partition = copy_range.source.topic_partition
        self._transformer = (
            Transformer(
                record_policy.transform, self._topic_partition, record_policy.on_record_error
            )
            if record_policy.transform
            else None
        )
        self._rows: list[Record] = []
        self._failed: list[tuple[Any, RelayError]] = []
        self._fingerprint: Fingerprint | None = None
        self._identity: UpstreamIdentity | None = None
        self._started = False
        self._diverged: dict[str, str] = {}
        self._throttled_seconds = 0.0

    @property
    def upstream(self) -> str:
        """The upstream that was read last; empty before the first rows."""
        return "" if self._identity is None else self._identity.upstream

    @property
    def diverged(self) -> dict[str, str]:
        """The upstreams that do not hold what was copied, and why."""
        return self._diverged

    @property
    def throttled_seconds(self) -> float:
        """For how long quotas of the upstreams made the reader of the rows wait."""
        return self._throttled_seconds

    @property
    def can_reopen(self) -> bool:
        """Whether another attempt is possible: only before the first row is taken."""
        return not self._started

    def open(self, checkpoint: Checkpoint | None) -> int:
        """Verify that the rows begin at the checkpoint; return the first offset to copy.

        Raises:
            DestinationError: another task moved the checkpoint after the rows were planned.
        """
        planned = self._range.checkpoint
        if (checkpoint and checkpoint.next_offset) != (planned and planned.next_offset):
            self._started = True  # these rows are useless
            raise DestinationError(
                "another task has moved the checkpoint since this one was planned",
                remedy="run again to continue from there",
                topic_partition=self._topic_partition,
            )
        return self._range.next_offset(planned)

    def portions(self, start: int) -> Generator[Portion, None, None]:
        """Yield a portion for each progress marker."""
        self._started = True
        position = start
        while not self._stream.has_ended(self._index):
            taken = self._stream.take(self._index)
            if taken is None:
                yield Portion()
            elif isinstance(taken.marker, ProgressMarker):
                portion = self._portion(taken.marker, position)
                position = taken.marker.end
                yield portion
                if taken.marker.error is not None:
                    raise taken.marker.error
            else:
                self._add(taken)
        if position < self._range.source.end:
            raise RelayError(
                "Spark returned fewer offsets than planned", topic_partition=self._topic_partition
            )

    def flush(self) -> Portion:
        """Return the records that were held back to be merged; markers tell their last record."""
        portion = Portion()
        self._merger.flush().add_to(portion)
        portion.last = self._fingerprint
        return portion

    def verify_same_log(self) -> UpstreamIdentity:
        """Return the log from which the rows were read; the reader verified it at every marker."""
        assert self._identity is not None, "the first rows come after a marker with an identity"
        return self._identity

    def forget_below(self, next_offset: int) -> None:  # noqa: ARG002 - rows are not kept
        """Forget the last record that is committed: the next chunk may have none."""
        self._fingerprint = None

    def _add(self, taken: MarkedRows) -> None:
        if isinstance(taken.marker, FailedRecord):
            self._failed.append((taken.marker.record, taken.marker.error))
        elif self._transformer is None:
            self._rows += rows_of(taken.rows, self._topic_partition)
        else:
            rows, failed = self._transformer(taken.rows)
            self._rows += rows
            self._failed += failed

    def _portion(self, marker: ProgressMarker, position: int) -> Portion:
        rows, failed = self._rows, self._failed
        self._rows, self._failed = [], []
        self._identity = marker.identity or self._identity
        self._fingerprint = marker.fingerprint or self._fingerprint
        self._diverged = marker.diverged or self._diverged
        self._throttled_seconds += marker.throttled_seconds
        merged = self._merger.add(iter(rows), marker.codec)
        skipped = Counter({reason: count for reason, count in marker.skipped.items() if count})
        # SQL left out the offsets that are neither rows nor skipped
        dropped = marker.end - position - len(rows) - len(failed) - sum(skipped.values())
        if dropped < 0:
            raise RelayError(
                "Spark returned more rows than were read", topic_partition=self._topic_partition
            )
        if dropped:
            skipped[Skipped.FILTERED] += dropped
        if failed:
            skipped[Skipped.QUARANTINED] += len(failed)
        copied = None
        if len(rows) < marker.end - position:
            copied = AscendingOffsets.of(position, (row.offset for row in rows))
        portion = Portion(
            end=marker.end,
            skipped=dict(skipped),
            quarantined=list(failed),
            copied=copied,
            leader_epoch=marker.leader_epoch,
            leader_epoch_end=marker.leader_epoch_end,
        )
        merged.add_to(portion)
        portion.last = self._fingerprint
        return portion

"""Copies one range: attempts, chunks, commits. Runs in a task; docs/transactions.md argues why nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relay_pipelines.copy.assembly import Assembler
from relay_pipelines.copy.backoff import retry_until_no_progress
from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.copy.upstream import Upstream
from relay_pipelines.copy.writer import ChunkWriter
from relay_pipelines.errors import (
    AbortableError,
    CorruptBatchError,
    FencedError,
    RelayError,
    RetriableError,
    SourceError,
)
from relay_pipelines.model import CopyJob, CopyRange, OffsetRange, OnRecordError
from relay_pipelines.wire.cluster import ClusterClient

if TYPE_CHECKING:
    from relay_pipelines.copy.decided import Decided


class RangeCopier:
    """Copies the records of one range, from its checkpoint through the range's end.

    Args:
        upstream, destination, throttles: shared by the ranges of one task.
        decided: the offsets that a predicate keeps, if there is one.
    """

    def __init__(
        self,
        job: CopyJob,
        copy_range: CopyRange,
        upstream: Upstream,
        destination: ClusterClient,
        throttles: Sequence[Throttle],
        clock: Clock,
        decided: Decided | None = None,
    ) -> None:
        self._range = copy_range
        self._options = copy_range.handling.options or job.options
        self._upstream = upstream
        self._destination = destination
        self._clock = clock
        self._source_partition = copy_range.source.topic_partition
        self.writer = ChunkWriter(job, copy_range, destination, throttles, clock)
        quarantines = copy_range.handling.on_record_error is OnRecordError.QUARANTINE
        quarantine = self.writer.quarantine if quarantines else None
        self._assembler = Assembler(copy_range, self._options, self.writer.send, quarantine, decided)
        self._decided = decided
        self._progress_at = clock.monotonic()

    def copy(self) -> None:
        """Copy the range; retry what may pass, from the checkpoint, until nothing was committed for `give_up_after_ms`.

        Raises:
            FencedError: another task took over; the range is in its hands.
            RelayError: anything else that stopped it. No transaction is left open, as far as the destination answers.
        """
        passing = (RetriableError, AbortableError)
        try:
            for attempt in retry_until_no_progress(self._options, self._clock, passing, lambda: self._progress_at):
                with attempt:
                    self._attempt()
        except FencedError:
            raise
        except RelayError:
            self.writer.leave_nothing_open()
            raise

    def _attempt(self) -> None:
        try:
            self.writer.start()
            checkpoint = self.writer.checkpoint
            self._upstream.make_sure(checkpoint, self._clock)
            try:
                self._copy_from(self._range.source.start if checkpoint is None else checkpoint.next_offset)
            except CorruptBatchError as error:
                error.topic_partition = error.topic_partition or self._source_partition
                raise
        except RelayError as error:
            # answers to pipelined requests may still be on their way: these connections are of no use to anyone
            self._destination.close()
            if not self._upstream.is_of_the_node(error):
                self._upstream.client.close()
                raise
            self._upstream.leave()
            if isinstance(error, SourceError):
                raise
            # another node may serve
            raise SourceError(
                error.what, remedy=error.remedy, topic_partition=error.topic_partition, offset=error.offset
            ) from error

    def _copy_from(self, start: int) -> None:
        options = self._options
        wanted = OffsetRange(self._source_partition, start, self._range.source.end)
        assembler = self._assembler
        self._begin(start)
        if self.writer.checkpoint is None and len(wanted) == 0:
            self._commit()  # a mirror that starts at the end: remember where that was
        deadline = self._clock.monotonic() + options.chunk_ms / 1000
        for pieces in self._upstream.read(wanted, options.fetch_max_bytes, self._clock, options.coalesce_below_bytes):
            for piece in pieces:
                assembler.add(piece)
                if assembler.chunk.size_bytes >= options.chunk_bytes:
                    self._commit()
                    self._begin(piece.end)
                    deadline = self._clock.monotonic() + options.chunk_ms / 1000
            if self._clock.monotonic() >= deadline and assembler.chunk.end > assembler.chunk.start:
                self._commit()
                self._begin(assembler.chunk.end)
                deadline = self._clock.monotonic() + options.chunk_ms / 1000
            assembler.keep()
        if assembler.chunk.end > assembler.chunk.start:
            self._commit()

    def _begin(self, start: int) -> None:
        self._assembler.begin(start)
        self.writer.begin()

    def _commit(self) -> None:
        assembler = self._assembler
        assembler.flush()
        self.writer.commit(assembler.chunk, self._upstream.origin(self._source_partition.topic), assembler.fingerprint())
        self._progress_at = self._clock.monotonic()
        if self._decided is not None:
            self._decided.forget(assembler.chunk.end)

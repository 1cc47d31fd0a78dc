"""Writes rows: the counterpart of `rows`, behind SQL and transforms. Runs in a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from relay_pipelines.copy.assembly import Assembler
from relay_pipelines.copy.backoff import backoff
from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.columns import Row, rows_of
from relay_pipelines.copy.rows import Aside, Note, parts
from relay_pipelines.copy.task import outcome_of
from relay_pipelines.copy.throttle import Throttle, Throttles
from relay_pipelines.copy.transforming import Transformer
from relay_pipelines.copy.writer import ChunkWriter, Origin
from relay_pipelines.errors import AbortableError, DestinationError, FencedError, FilterError, RelayError, RetriableError
from relay_pipelines.model import CopyJob, CopyRange, Fingerprint, OnRecordError, Outcome, Skipped
from relay_pipelines.wire.cluster import ClusterClient


class RowCopier:
    """Writes the rows of one range, from its known checkpoint through the range's end; one attempt.

    Args:
        destination, throttles: shared by the ranges of one task.
    """

    def __init__(
        self, job: CopyJob, copy_range: CopyRange, destination: ClusterClient, throttles: Sequence[Throttle], clock: Clock
    ) -> None:
        self._range = copy_range
        self._options = copy_range.handling.options or job.options
        self._clock = clock
        handling = copy_range.handling
        self.writer = ChunkWriter(job, copy_range, destination, throttles, clock)
        self._assembler = Assembler(copy_range, self._options, self.writer.send)
        failed = self.set_aside if handling.on_record_error is OnRecordError.QUARANTINE else None
        at = copy_range.source.topic_partition
        self._transformer = Transformer(handling.transform, at, failed) if handling.transform else None
        self._rows: list[Row] = []
        self._aside = 0  # rows put into quarantine since the last note
        self._origin: Origin | None = None
        self._fingerprint: Fingerprint | None = None
        self._deadline = 0.0

    def start(self) -> None:
        """Take the range over, and make sure that it stands where the rows begin. The rows wait meanwhile.

        Raises:
            RetriableError: another task has copied since the rows were planned; or the destination stays away.
        """
        known, options = self._range.checkpoint, self._options
        passing = Retrying(
            retry=retry_if_exception_type((RetriableError, AbortableError)),
            stop=stop_after_attempt(options.max_attempts),
            wait=backoff(options),
            sleep=self._clock.sleep,
            reraise=True,
        )
        passing(self.writer.start)
        if (self.writer.checkpoint and self.writer.checkpoint.next_offset) != (known and known.next_offset):
            raise DestinationError(
                "another task has moved the checkpoint since this one was planned",
                remedy="run again to go on from there",
                topic_partition=self._range.source.topic_partition,
            )
        self._begin(self._range.source.start if known is None else known.next_offset)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; they are written when the note behind them comes."""
        self._rows += rows_of(batch) if self._transformer is None else self._transformer(batch)

    def set_aside(self, record: Row, error: FilterError) -> None:
        """Put a record into quarantine."""
        self.writer.quarantine(record, error)
        self._aside += 1

    def note(self, note: Note) -> None:
        """Write what came since the last note; commit what is large or old enough, and at the end.

        Raises:
            RelayError: the destination refuses, or reading had to end.
        """
        self._origin = note.origin or self._origin
        self._fingerprint = note.fingerprint or self._fingerprint
        chunk, rows = self._assembler.chunk, self._rows
        dropped = note.end - chunk.end - len(rows) - self._aside - sum(note.skipped.values())
        found = {**note.skipped, Skipped.QUARANTINED: self._aside}
        found[Skipped.FILTERED] = found.get(Skipped.FILTERED, 0) + dropped
        chunk.skipped.update({reason: count for reason, count in found.items() if count})
        chunk.end = note.end
        chunk.leader_epoch = max(chunk.leader_epoch, note.leader_epoch)
        self._rows, self._aside = [], 0
        self._assembler.add_records(iter(rows), note.codec)
        large = chunk.size_bytes >= self._options.chunk_bytes or self._clock.monotonic() >= self._deadline
        due = (large or note.is_last) if chunk.end > chunk.start else self._is_start(note)
        if due:
            self._commit()
            self._begin(note.end)
        if note.error is not None:
            raise note.error

    def _is_start(self, note: Note) -> bool:
        """Whether a mirror that starts at the end must remember where that was."""
        return note.is_last and note.error is None and self.writer.checkpoint is None

    def _begin(self, start: int) -> None:
        self._assembler.begin(start)
        self.writer.begin()
        self._fingerprint = None
        self._deadline = self._clock.monotonic() + self._options.chunk_ms / 1000

    def _commit(self) -> None:
        assert self._origin is not None
        self._assembler.flush()
        self.writer.commit(self._assembler.chunk, self._origin, self._fingerprint)


def write_rows(job: CopyJob, ranges: Sequence[CopyRange], batches: Iterable[pa.RecordBatch], clock: Clock) -> Iterator[Outcome]:
    """Write the rows of each range and yield its outcome; never raises what is in the error tree.

    Args:
        batches: what `read_rows` yields for the same ranges, with rows left out or made anew, and every note.
    """
    throttles = Throttles(job.options, clock)
    with ClusterClient(job.destination, DestinationError, f"relay-{job.mirror}", job.options.request_timeout_ms) as destination:
        writing: _Writing | None = None
        for index, note, rows in parts(batches):
            if writing is None:
                copy_range = ranges[index]
                copier = RowCopier(job, copy_range, destination, throttles.of(copy_range), clock)
                writing = _Writing(copy_range, copier, clock)
            writing.take(note, rows)
            if isinstance(note, Note) and note.is_last:
                yield writing.outcome(note)
                writing = None


class _Writing:
    """One range, from its first row to its last note: what comes behind a failure is passed over."""

    def __init__(self, copy_range: CopyRange, copier: RowCopier, clock: Clock) -> None:
        self._range = copy_range
        self._copier = copier
        self._clock = clock
        self._began = clock.monotonic(), time.process_time()
        self._node = ""
        self._error: RelayError | None = None
        self._attempt(copier.start)

    def take(self, note: Note | Aside | None, rows: pa.RecordBatch) -> None:
        if self._error is not None:
            return
        if isinstance(note, Note):
            self._node = note.origin.node if note.origin else self._node
            self._attempt(lambda: self._copier.note(note))
        elif note is None:
            self._attempt(lambda: self._copier.add(rows))
        else:
            self._attempt(lambda: self._copier.set_aside(*note))

    def outcome(self, note: Note) -> Outcome:
        wall, cpu = self._began
        spent = self._clock.monotonic() - wall, time.process_time() - cpu
        return outcome_of(self._range, self._copier.writer, self._node, note.diverged, self._error, spent)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except RelayError as error:
            self._error = error
            if not isinstance(error, FencedError):
                self._copier.writer.leave_nothing_open()

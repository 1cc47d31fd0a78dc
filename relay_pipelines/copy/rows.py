"""Records as rows, for SQL and transforms: read in one Python process, written in another, with Spark in between.

Rows come in order, range by range. Before those of a range, and behind those of each fetch, comes a note, a row without a record:
of which range they are, how far they reach, and where they were read. Notes pass whatever is done to rows, so that the writer
knows of every source offset what became of it.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from relay_pipelines.copy.backoff import until_fruitless
from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.columns import COLUMNS, TYPES, ColumnBuilder, Row, is_log_append_time, records_in
from relay_pipelines.copy.filtering import Sieve
from relay_pipelines.copy.reader import Piece, read
from relay_pipelines.copy.upstream import Upstream
from relay_pipelines.copy.writer import Origin
from relay_pipelines.errors import DivergedNodeError, FilterError, RelayError, SourceError
from relay_pipelines.model import Checkpoint, CopyJob, CopyRange, Fingerprint, OffsetRange, OnRecordError, Skipped
from relay_pipelines.wire.records import codec_of, digest_of

NOTE = "relay_note"
ALWAYS = ("offset", "timestamp", "key", "value", "headers")
_BATCH_RECORDS = 20_000


def schema(columns: Sequence[str]) -> str:
    """Return the schema of rows with these columns, in Spark's words."""
    return ", ".join(f"{name} {kind}" for name, kind in {NOTE: "binary", **{name: COLUMNS[name] for name in columns}}.items())


@dataclass(frozen=True, slots=True)
class Note:
    """What the writer must know of the rows since the last note.

    Args:
        index: of the range.
        end: the source offset that they reach.
        skipped: offsets without a row, by reason.
        leader_epoch: of the last batch; -1 if there was none.
        codec: of the last batch, as its attributes number it.
        origin: where they were read; None if no node could be asked.
        fingerprint: of the last record.
        is_last: whether nothing more comes of this range.
        error: why nothing more comes, if that is not its end.
        diverged: nodes that were found not to hold what was copied, and why.
    """

    index: int
    end: int
    skipped: dict[Skipped, int] = field(default_factory=dict)
    leader_epoch: int = -1
    codec: int = 0
    origin: Origin | None = None
    fingerprint: Fingerprint | None = None
    is_last: bool = False
    error: RelayError | None = None
    diverged: dict[str, str] = field(default_factory=dict)


class Aside(NamedTuple):
    """A record that goes into quarantine, past SQL, and why."""

    record: Row
    error: FilterError


Part = tuple[int, Note | Aside | None, pa.RecordBatch]
"""A range's index, and rows with None for a note, or one row with one."""


def read_rows(
    job: CopyJob, ranges: Sequence[CopyRange], indices: Iterable[int], columns: Sequence[str], clock: Clock
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each range, from its known checkpoint through its end, and the notes between them.

    Never raises what is in the error tree: that comes as a note.

    Args:
        indices: which of the ranges, in this order.
        columns: those of COLUMNS that are wanted; `ALWAYS` and perhaps more.
    """
    with Upstream(job, f"relay-{job.mirror}") as upstream:
        for index in indices:
            copy_range = ranges[index]
            source = _RangeRows(job, copy_range, index, columns, upstream, clock)
            try:
                yield _note(Note(index, source.position), columns)
                yield from source.batches()
                origin = upstream.origin(copy_range.source.topic_partition.topic)
                last = Note(index, source.position, origin=origin, is_last=True, diverged=upstream.diverged)
            except RelayError as error:
                last = Note(index, source.position, is_last=True, error=error, diverged=upstream.diverged)
            yield _note(last, columns)


class _RangeRows:
    """The rows of one range; another node is read where one fails, from the last fetch that was complete."""

    def __init__(
        self, job: CopyJob, copy_range: CopyRange, index: int, columns: Sequence[str], upstream: Upstream, clock: Clock
    ) -> None:
        self._range = copy_range
        self._options = copy_range.handling.options or job.options
        self._index = index
        self._columns = columns
        self._job = job
        self._upstream = upstream
        self._clock = clock
        self._at = copy_range.source.topic_partition
        self._checkpoint = copy_range.checkpoint
        self.position = copy_range.source.start if self._checkpoint is None else self._checkpoint.next_offset
        self._fruitless = 0
        self._aside: list[Aside] = []
        self._dropped = 0
        handling = copy_range.handling
        self._failed = self._set_aside if handling.on_record_error is OnRecordError.QUARANTINE else None
        self._sieve = Sieve(handling.filters, self._at, self._drop, self._failed) if handling.filters else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        passing = (SourceError, DivergedNodeError)
        for attempt in until_fruitless(self._options, self._clock, passing, lambda: self._fruitless):
            with attempt:
                self._fruitless += 1
                try:
                    self._upstream.make_sure(self._checkpoint, self._clock)
                    yield from self._fetched()
                except (SourceError, DivergedNodeError):
                    self._upstream.leave()
                    raise

    def _fetched(self) -> Iterator[pa.RecordBatch]:
        wanted = OffsetRange(self._at, self.position, self._range.source.end)
        client, options = self._upstream.client, self._options
        for pieces in read(client, wanted, options.fetch_max_bytes, self._clock, options.coalesce_below_bytes):
            # all of a fetch or nothing of it: what was handed on cannot be taken back
            yield from self._rows(pieces)
            self._fruitless = 0

    def _rows(self, pieces: Sequence[Piece]) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        skipped: Counter[Skipped] = Counter()
        last, run = None, None
        builder = ColumnBuilder(self._columns, self._at, self._failed)
        for piece in pieces:
            if piece.run is None:
                if piece.skipped is not None:
                    skipped[piece.skipped] += piece.end - piece.start
                continue
            run, present = piece.run, 0
            for records in records_in(piece):
                present += len(records)
                last = records[-1] if records else last
                builder.add(
                    records if self._sieve is None else list(self._sieve(records)), log_append_time=is_log_append_time(piece)
                )
                if builder.records >= _BATCH_RECORDS:
                    found.append(_noted(builder.take()))
            skipped[Skipped.COMPACTION_GAP] += piece.end - piece.start - present
        if builder.records:
            found.append(_noted(builder.take()))
        found += [_note(one, self._columns) for one in self._aside]
        skipped[Skipped.FILTERED] += self._dropped
        self._aside, self._dropped = [], 0
        self.position = pieces[-1].end
        note = Note(
            self._index,
            self.position,
            skipped={reason: count for reason, count in skipped.items() if count},
            leader_epoch=run.last.leader_epoch if run else -1,
            codec=codec_of(run.first) if run else 0,
            origin=self._upstream.origin(self._at.topic),
            fingerprint=Fingerprint(last.offset, digest_of(last.timestamp, last.key, last.value, last.headers)) if last else None,
        )
        self._remember(note)
        return [*found, _note(note, self._columns)]

    def _remember(self, note: Note) -> None:
        """Keep what another node must hold, should this one fail."""
        before, origin = self._checkpoint, note.origin
        assert origin is not None
        self._checkpoint = Checkpoint(
            mirror=self._job.mirror,
            source=self._at,
            next_offset=note.end,
            leader_epoch=note.leader_epoch,
            node=origin.node,
            topic_ids={**(before.topic_ids if before else {}), origin.node: origin.topic_id},
            cluster_ids={},
            destination=self._range.destination,
            destination_next_offset=-1,
            fingerprint=note.fingerprint or (before.fingerprint if before else None),
            run_id=self._job.run_id,
            committed_at_ms=0,
        )

    def _drop(self) -> None:
        self._dropped += 1

    def _set_aside(self, record: Any, error: FilterError) -> None:
        row = Row(record.offset, record.timestamp, record.key, record.value, record.headers)
        self._aside.append(Aside(row, error))


def _noted(batch: pa.RecordBatch, note: Note | Aside | None = None) -> pa.RecordBatch:
    """A batch with the column in front that holds what is to be noted."""
    notes = pa.nulls(len(batch), pa.binary()) if note is None else pa.array([pickle.dumps(note)] * len(batch), pa.binary())
    return pa.RecordBatch.from_arrays([notes, *batch.columns], names=[NOTE, *batch.schema.names])


def _note(note: Note | Aside, columns: Sequence[str]) -> pa.RecordBatch:
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, TYPES[name]) for name in columns], names=list(columns))
    return _noted(nothing, note)


def parts(batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
    """Cut batches at their notes."""
    index = -1
    for batch in batches:
        notes, start = batch.column(NOTE), 0
        rows = batch.drop_columns([NOTE])
        for at in pc.indices_nonzero(pc.is_valid(notes)).to_pylist():
            if at > start:
                yield index, None, rows.slice(start, at - start)
            note = pickle.loads(notes[at].as_py())  # noqa: S301 - our own, from the other end of the task
            index = note.index if isinstance(note, Note) else index
            yield index, note, rows.slice(at, 1)
            start = at + 1
        if start < len(batch):
            yield index, None, rows.slice(start)

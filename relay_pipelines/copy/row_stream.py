"""The rows and progress markers that Spark passes to the writer, range by range. Runs in a task."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from relay_pipelines.copy.row_reader import MARKER, FailedRecord, ProgressMarker

_QUEUE_SIZE = 4
_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class MarkedRows:
    """Rows of one range and no marker, or one row with a marker."""

    index: int
    marker: ProgressMarker | FailedRecord | None
    rows: pa.RecordBatch


class RowStream:
    """The rows of all ranges of a task, in order.

    A thread reads ahead, so that the copy loop never waits long for rows and can commit in time.

    Args:
        batches: the rows that `read_rows` yields; rows may be missing or changed, but every marker
            is there.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._queue: queue.Queue[MarkedRows | BaseException | None] = queue.Queue(_QUEUE_SIZE)
        self._next: MarkedRows | None = None
        self._ended = False
        threading.Thread(target=self._read_ahead, args=(batches,), name="rows", daemon=True).start()

    def ranges(self) -> Iterator[int]:
        """Yield the index of each range when its first rows arrive.

        It drops rows of the previous range that nobody took.
        """
        while True:
            while self._next is None and not self._ended:
                self._next = self._poll(None)
            if self._next is None:
                return
            index = self._next.index
            yield index
            while not self.has_ended(index):
                self.take(index)

    def take(self, index: int) -> MarkedRows | None:
        """Return the next rows of a range; None if none arrive in time, or none are left.

        `has_ended` tells the two apart; "in time" means a quarter of a second.
        """
        if self._next is None and not self._ended:
            self._next = self._poll(_POLL_SECONDS)
        if self._next is None or self._next.index != index:
            return None
        taken, self._next = self._next, None
        return taken

    def has_ended(self, index: int) -> bool:
        """Whether no more rows of a range come."""
        if self._next is None:
            return self._ended
        return self._next.index != index

    def _poll(self, within_seconds: float | None) -> MarkedRows | None:
        try:
            batch = self._queue.get(timeout=within_seconds)
        except queue.Empty:
            return None
        if isinstance(batch, BaseException):
            raise batch
        self._ended = batch is None
        return batch

    def _read_ahead(self, batches: Iterable[pa.RecordBatch]) -> None:
        try:
            for rows in split_at_markers(batches):
                self._queue.put(rows)
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            self._queue.put(error)


def split_at_markers(batches: Iterable[pa.RecordBatch]) -> Iterator[MarkedRows]:
    """Cut batches at their markers."""
    index = -1
    for batch in batches:
        markers, start = batch.column(MARKER), 0
        rows = batch.drop_columns([MARKER])
        for marked in pc.indices_nonzero(pc.is_valid(markers)).to_pylist():
            if marked > start:
                yield MarkedRows(index, None, rows.slice(start, marked - start))
            marker = pickle.loads(markers[marked].as_py())  # noqa: S301 - `read_rows` wrote it
            index = marker.index if isinstance(marker, ProgressMarker) else index
            yield MarkedRows(index, marker, rows.slice(marked, 1))
            start = marked + 1
        if start < len(batch):
            yield MarkedRows(index, None, rows.slice(start))

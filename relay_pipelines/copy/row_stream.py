"""What Spark hands to the end of a task: rows and progress markers, range by range, pulled without being blocked."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from relay_pipelines.copy.row_reader import MARKER, FailedRecord, ProgressMarker

_AHEAD = 4
_TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class MarkedRows:
    """Rows of one range with what their marker column holds: nothing; else one row with a marker."""

    index: int
    marker: ProgressMarker | FailedRecord | None
    rows: pa.RecordBatch


class RowStream:
    """The rows of all ranges of a task, in order.

    A thread reads them ahead. Who pulls is never blocked for longer than a moment, and so can
    commit in time.

    Args:
        batches: what `read_rows` yields, with rows left out or changed, and every marker.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._queue: queue.Queue[MarkedRows | BaseException | None] = queue.Queue(_AHEAD)
        self._next: MarkedRows | None = None
        self._ended = False
        threading.Thread(target=self._read_ahead, args=(batches,), name="rows", daemon=True).start()

    def ranges(self) -> Iterator[int]:
        """Yield the index of each range, once its first rows are there; what was not taken of the range before is dropped."""
        while True:
            while self._next is None and not self._ended:
                self._next = self._poll(None)
            if self._next is None:
                return
            index = self._next.index
            yield index
            while not self._is_after(index):
                self.take(index)

    def take(self, index: int) -> MarkedRows | None:
        """Return the next rows of a range; None if none arrive within a quarter of a second, or none are left (`has_ended`)."""
        if self._next is None and not self._ended:
            self._next = self._poll(_TICK_SECONDS)
        if self._next is None or self._next.index != index:
            return None
        taken, self._next = self._next, None
        return taken

    def has_ended(self, index: int) -> bool:
        """Whether nothing more comes of a range."""
        return self._is_after(index)

    def _is_after(self, index: int) -> bool:
        if self._next is None:
            return self._ended
        return self._next.index != index

    def _poll(self, within_seconds: float | None) -> MarkedRows | None:
        try:
            found = self._queue.get(timeout=within_seconds)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        self._ended = found is None
        return found

    def _read_ahead(self, batches: Iterable[pa.RecordBatch]) -> None:
        try:
            for rows in split_at_markers(batches):
                self._queue.put(rows)
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where rows are pulled
            self._queue.put(error)


def split_at_markers(batches: Iterable[pa.RecordBatch]) -> Iterator[MarkedRows]:
    """Cut batches at their markers."""
    index = -1
    for batch in batches:
        markers, start = batch.column(MARKER), 0
        rows = batch.drop_columns([MARKER])
        for at in pc.indices_nonzero(pc.is_valid(markers)).to_pylist():
            if at > start:
                yield MarkedRows(index, None, rows.slice(start, at - start))
            marker = pickle.loads(markers[at].as_py())  # noqa: S301 - our own, from the other end of the task
            index = marker.index if isinstance(marker, ProgressMarker) else index
            yield MarkedRows(index, marker, rows.slice(at, 1))
            start = at + 1
        if start < len(batch):
            yield MarkedRows(index, None, rows.slice(start))

"""Which offsets a SQL predicate keeps. Runs in a task.

Spark evaluates the predicate and returns only offsets. The task reads the records again, and copies
a batch verbatim if the predicate keeps all of it. An offset says something about one log only: that
from which the rows of the range were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from relay_pipelines.copy.filtering import RecordFilter
from relay_pipelines.copy.row_reader import FailedRecord, ProgressMarker
from relay_pipelines.copy.row_stream import RowStream
from relay_pipelines.errors import RelayError, StalePlanError
from relay_pipelines.model import TopicPartition


class KeptOffsets(RecordFilter):
    """The offsets of one range that are kept, as far as Spark has decided.

    Args:
        stream: brings the offsets that are kept, in the column `offset`.
        index: of the range in the stream.
    """

    def __init__(self, topic_partition: TopicPartition, stream: RowStream, index: int) -> None:
        super().__init__()
        self._topic_partition = topic_partition
        self._stream = stream
        self._index = index
        self._pending: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        self._refused: dict[int, RelayError] = {}
        self._start = -1
        self._end = -1
        self._error: RelayError | None = None

    def covers(self, end: int) -> bool:
        """Whether Spark has decided on the offsets below `end`; waits a moment at most.

        Raises:
            RelayError: the stream ended too early.
        """
        while self._end < end:
            if self._error is not None:
                raise self._error
            if self._stream.has_ended(self._index):
                raise RelayError(
                    "Spark returned fewer offsets than planned",
                    topic_partition=self._topic_partition,
                )
            taken = self._stream.take(self._index)
            if taken is None:
                return False
            if taken.marker is None:
                self._pending.append(np.asarray(taken.rows.column("offset"), np.int64))
            elif isinstance(taken.marker, FailedRecord):
                self._refused[taken.marker.record.offset] = taken.marker.error
            else:
                self._advance(taken.marker)
        return True

    def can_decide_from(self, start: int) -> bool:
        """Whether Spark decides on all offsets from `start` on: no if the checkpoint moved back."""
        while self._start < 0:
            self.covers(0)
        return start >= self._start

    def keeps_all(self, start: int, end: int) -> bool:
        """Whether all of these offsets are kept."""
        first, last = self._between(start, end)
        return last - first == end - start

    def apply(self, records: Iterable[Any], start: int = 0, end: int = 0) -> Iterator[Any]:
        """Yield the records of these offsets that are kept."""
        first, last = self._between(start, end)
        kept = set(self._kept[first:last].tolist())
        for record in records:
            if record.offset in kept:
                yield record
            elif record.offset in self._refused:
                self.failed.append((record, self._refused[record.offset]))
            else:
                self.dropped += 1

    def forget_below(self, next_offset: int) -> None:
        """Drop the decisions on the offsets below."""
        self._refused = {
            offset: error for offset, error in self._refused.items() if offset >= next_offset
        }
        self._pending = [self._kept[int(np.searchsorted(self._kept, next_offset)) :]]

    @property
    def _kept(self) -> npt.NDArray[np.int64]:
        if len(self._pending) > 1:
            self._pending = [np.concatenate(self._pending)]
        return self._pending[0]

    def _between(self, start: int, end: int) -> tuple[int, int]:
        first, last = np.searchsorted(self._kept, (start, end))
        return int(first), int(last)

    def _advance(self, marker: ProgressMarker) -> None:
        if self._start < 0:
            self._start = self._end = marker.end  # the first marker comes before the rows
        self._end = marker.end
        self.log = marker.identity or self.log
        self.diverged |= marker.diverged
        self._error = error = marker.error
        if error is not None and error.retryable and not isinstance(error, StalePlanError):
            # not retryable here: the copy can read these records again, but Spark cannot
            self._error = RelayError(
                error.what,
                remedy="run again to continue",
                topic_partition=error.topic_partition,
                offset=error.offset,
            )
            self._error.__cause__ = error

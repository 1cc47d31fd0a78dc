"""Which offsets a SQL predicate keeps, as Spark says: rows without records. Runs in a task.

The records themselves do not go through Spark. They are read again, and where all of a batch is
kept, it is copied as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from relay_pipelines.copy.row_reader import FailedRecord, ProgressMarker
from relay_pipelines.copy.row_stream import RowStream
from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition


class KeptOffsets:
    """The offsets of one range that are kept, as far as Spark has decided: a `RecordFilter`.

    Args:
        stream, index: where the decisions come from, and of which range; of what is kept the column
            offset.
    """

    def __init__(self, topic_partition: TopicPartition, stream: RowStream, index: int) -> None:
        self._topic_partition = topic_partition
        self._stream = stream
        self._index = index
        self._waiting: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        self._refused: dict[int, RelayError] = {}
        self._start = -1
        self._end = -1
        self.dropped = 0
        self.failed: list[tuple[Any, RelayError]] = []

    def covers(self, end: int) -> bool:
        """Whether the offsets below `end` are decided; waits for that for a moment at most.

        Raises:
            RelayError: no more will be decided.
        """
        while self._end < end:
            if self._stream.has_ended(self._index):
                raise RelayError(
                    "Spark decided on fewer offsets than planned",
                    topic_partition=self._topic_partition,
                )
            taken = self._stream.take(self._index)
            if taken is None:
                return False
            if taken.marker is None:
                self._waiting.append(np.asarray(taken.rows.column("offset"), np.int64))
            elif isinstance(taken.marker, FailedRecord):
                self._refused[taken.marker.record.offset] = taken.marker.error
            else:
                self._advance(taken.marker)
        return True

    def can_decide_from(self, start: int) -> bool:
        """Whether the offsets from `start` on are, or will be, decided: not where the checkpoint has moved back meanwhile."""
        while self._start < 0:
            self.covers(0)
        return start >= self._start

    def keeps_all(self, start: int, end: int) -> bool:
        """Whether all of these offsets are kept."""
        first, last = self._between(start, end)
        return last - first == end - start

    def apply(self, records: Iterable[Any], start: int, end: int) -> Iterator[Any]:
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

    def committed(self, next_offset: int) -> None:
        """Forget what is decided of the offsets below."""
        self._refused = {
            offset: error for offset, error in self._refused.items() if offset >= next_offset
        }
        self._waiting = [self._kept[int(np.searchsorted(self._kept, next_offset)) :]]

    @property
    def _kept(self) -> npt.NDArray[np.int64]:
        if len(self._waiting) > 1:
            self._waiting = [np.concatenate(self._waiting)]
        return self._waiting[0]

    def _between(self, start: int, end: int) -> tuple[int, int]:
        first, last = np.searchsorted(self._kept, (start, end))
        return int(first), int(last)

    def _advance(self, marker: ProgressMarker) -> None:
        if self._start < 0:
            self._start = marker.end  # the first marker stands before the rows
        self._end = marker.end
        error = marker.error
        if error is not None and error.retryable:
            # the copy reads and retries by itself; what Spark had to say of these records is not
            # said again
            raise RelayError(
                error.what,
                remedy="run again to go on",
                topic_partition=error.topic_partition,
                offset=error.offset,
            ) from error
        if error is not None:
            raise error

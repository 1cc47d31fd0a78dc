"""Which offsets a predicate keeps, as Spark says: rows without records. Runs in a task.

The records themselves do not go through Spark. They are read again, and where all of a batch is kept, it is copied as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from relay_pipelines.copy.rows import Note, Part
from relay_pipelines.errors import RelayError, RetriableError


class Decided:
    """The offsets of one range that are kept, as far as anybody has asked: more is waited for when it is needed.

    Args:
        parts: of this range, as `rows.parts` yields them, with the column offset.
    """

    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = parts
        self._kept: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._end = -1

    def keeps_all(self, start: int, end: int) -> bool:
        """Whether all of these offsets are kept.

        Raises:
            RelayError: no more is to be known.
        """
        first, last = self._between(start, end)
        return last - first == end - start

    def sieve(self, records: Iterable[Any], start: int, end: int, dropped: Callable[[], None]) -> Iterator[Any]:
        """Yield the records that are kept.

        Args:
            start, end: the offsets of the records, or more.
            dropped: called for every other one.

        Raises:
            RelayError: no more is to be known.
        """
        first, last = self._between(start, end)
        kept = set(self._kept[first:last].tolist())
        for record in records:
            if record.offset in kept:
                yield record
            else:
                dropped()

    def forget(self, below: int) -> None:
        """Forget what is decided of the offsets below: they are committed."""
        self._kept = self._kept[int(np.searchsorted(self._kept, below)) :]

    def _between(self, start: int, end: int) -> tuple[int, int]:
        waiting = [self._kept]
        while self._end < end:
            waiting.append(self._next())
        if len(waiting) > 1:
            self._kept = np.concatenate(waiting)
        first, last = np.searchsorted(self._kept, (start, end))
        return int(first), int(last)

    def _next(self) -> npt.NDArray[np.int64]:
        _, note, rows = next(self._parts)
        if note is None:
            return np.asarray(rows.column("offset"), np.int64)
        assert isinstance(note, Note)
        self._end = note.end
        if isinstance(note.error, RetriableError):
            # whoever reads the records tries again by himself; what Spark had to say of them is not said again
            raise RelayError(
                note.error.what, remedy="run again to go on", topic_partition=note.error.topic_partition, offset=note.error.offset
            ) from note.error
        if note.error is not None:
            raise note.error
        return np.empty(0, np.int64)

"""Finds, among many offset ranges, those that contain an offset or overlap others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from relay_pipelines.model import OffsetRange


class RangeIndex:
    """Offset ranges of one topic-partition.

    A look-up takes logarithmic time, unless ranges lie within each other.

    Args:
        ranges: sorted by their start.
    """

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self.ranges = ranges
        self._starts = [each.start for each in ranges]
        self._most_ends = list(accumulate((each.end for each in ranges), max))

    def overlapping(self, start: int, end: int) -> Iterator[int]:
        """Yield the positions of the ranges that overlap `[start, end)`, the last one first."""
        position = bisect_left(self._starts, end) - 1
        while position >= 0 and self._most_ends[position] > start:
            if self.ranges[position].end > start:
                yield position
            position -= 1

    def containing(self, offset: int) -> Iterator[int]:
        """Yield the positions of the ranges that contain an offset, the last one first."""
        return self.overlapping(offset, offset + 1)

    def next_start(self, offset: int) -> int | None:
        """Return where the first range begins that starts at an offset or later; None if none."""
        position = bisect_left(self._starts, offset)
        return self._starts[position] if position < len(self._starts) else None

"""Which offsets of a range are meant, in few bytes: those with a copy, or those that are copies.

A text is base64 of zlib of pieces. A piece begins with two varints: the distance of its first
offset from the end of the piece before it (or from the start of the range), and `8 * count + kind`.
Kind 0 is `count` consecutive offsets. Otherwise `count - 1` distances from one offset to the next
follow, little-endian, of 1, 2 or 8 bytes (kinds 1, 2 and 3). ADR 42 has the figures.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

from relay_pipelines.model import Intervals
from relay_pipelines.protocol.records import AscendingOffsets

MOST_BYTES = 256 << 10
"""No text is longer: an entry has to fit into a record of the ledger."""
FULL_BYTES = MOST_BYTES // 2
"""A chunk whose text may be as long as this ends, as its next batch may add more."""
_TEXT_BYTES = 4, 3  # base64 writes so many bytes for so many
_PENDING_BYTES = 32 << 10
_FASTEST = 1
_MOST_IN_A_PIECE = 1024
_CONSECUTIVE = 0
_BYTES = 1
_TYPES = {_BYTES: "B", 2: "H", 3: "Q"}
_LIMITS = {2: 1 << 16, 3: 1 << 64}
_KINDS = 8
_CONTINUES = 0x80  # the bit in a byte of a varint that says that another byte follows


class RunEncoder:
    """Encodes offsets as they come, in ascending order.

    Args:
        start: of the range.
    """

    __slots__ = (
        "_compressed",
        "_compressor",
        "_end",
        "_first",
        "_has_distances",
        "_pending",
        "_position",
        "count",
    )

    def __init__(self, start: int) -> None:
        self.count = 0
        """How many offsets it has got."""
        self._position = start  # the end of the last piece
        self._first = self._end = start  # the run that is not written yet
        self._pending = bytearray()
        self._compressed: list[bytes] = []
        self._has_distances = False
        self._compressor: Any = None  # its memory is for long texts alone: a task has many chunks

    @property
    def size_bytes(self) -> int:
        """About how long the text is; what is not compressed yet counts as it is."""
        whole, part = _TEXT_BYTES
        return (sum(map(len, self._compressed)) + len(self._pending)) * whole // part

    def add_run(self, start: int, end: int) -> None:
        """Add the offsets `[start, end)`."""
        if start >= end:
            return
        self.count += end - start
        if start != self._end:
            self._close_run()
            self._first = start
        self._end = end

    def add(self, offsets: AscendingOffsets) -> None:
        """Add offsets with gaps between them; whoever reads one looks at one piece."""
        rest, position = offsets.distances, offsets.start
        while len(rest) > _MOST_IN_A_PIECE:
            some, rest = rest[:_MOST_IN_A_PIECE], rest[_MOST_IN_A_PIECE:]
            last = position + sum(some)
            self._add_piece(position + some[0], last, some)
            position = last
        if rest:
            self._add_piece(position + rest[0], offsets.last, rest)

    def _add_piece(self, first: int, last: int, distances: Sequence[int]) -> None:
        if last - first == len(distances) - 1:
            return self.add_run(first, last + 1)
        self._close_run()
        kind, packed = _packed(distances[1:])
        self._head(first, len(distances), kind)
        self._pending += packed
        self._has_distances = True
        self.count += len(distances)
        self._position = self._first = self._end = last + 1
        return self._compress_if_due()

    def text(self) -> str:
        """Return the text; nothing can be added afterwards."""
        self._close_run()
        compressor = self._compressor or self._new_compressor()
        rest = compressor.compress(self._pending), compressor.flush()
        return b64encode(b"".join((*self._compressed, *rest))).decode()

    def _new_compressor(self) -> Any:
        """Return a compressor for what has come: distances repeat themselves, heads each other."""
        strategy = zlib.Z_RLE if self._has_distances else zlib.Z_DEFAULT_STRATEGY
        return zlib.compressobj(_FASTEST, strategy=strategy)

    def _close_run(self) -> None:
        if self._end > self._first:
            self._head(self._first, self._end - self._first, _CONSECUTIVE)
            self._position = self._first = self._end
            self._compress_if_due()

    def _head(self, first: int, count: int, kind: int) -> None:
        gap, number = first - self._position, count * _KINDS + kind
        if gap < _CONTINUES and number < _CONTINUES:
            self._pending += bytes((gap, number))
        else:
            self._pending += _varint(gap) + _varint(number)

    def _compress_if_due(self) -> None:
        if len(self._pending) >= _PENDING_BYTES:
            self._compressor = self._compressor or self._new_compressor()
            self._compressed.append(self._compressor.compress(self._pending))
            self._pending.clear()


def encoded(runs: Intervals) -> str:
    """Return the text of runs, from the start of the first on; empty if it would be too long."""
    encoder = RunEncoder(runs[0][0])
    for start, end in runs:
        encoder.add_run(start, end)
    text = encoder.text()
    return text if len(text) <= MOST_BYTES else ""


def _packed(distances: Sequence[int]) -> tuple[int, bytes]:
    """Return distances as bytes, and their kind.

    A task pays for this per record, so there is no loop in Python: 10 ns a record.
    """
    with suppress(ValueError):  # one is too large for a byte
        return _BYTES, bytes(distances)
    most = max(distances)
    kind = next(kind for kind, limit in _LIMITS.items() if most < limit)
    packed = array(_TYPES[kind], distances)
    if sys.byteorder == "big":
        packed.byteswap()
    return kind, packed.tobytes()


class _Piece(NamedTuple):
    """Offsets of a text.

    Args:
        before: how many offsets are before its first.
        distances: from one offset to the next; None for consecutive offsets.
    """

    first: int
    end: int
    before: int
    size: int
    distances: Sequence[int] | None

    def offsets(self) -> Sequence[int]:
        """Return all of them, in order."""
        if self.distances is None:
            return range(self.first, self.end)
        return list(accumulate(self.distances, initial=self.first))


class OffsetRuns:
    """Offsets in ascending order, by their index, and the other way round."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = pieces
        last = pieces[-1] if pieces else None
        self._count = last.before + last.size if last else 0

    @classmethod
    def of_text(cls, text: str, start: int) -> OffsetRuns:
        """Return the offsets of a text.

        Args:
            start: of the range.

        Raises:
            ValueError: it is no such text.
        """
        try:
            return cls(list(_pieces(zlib.decompress(b64decode(text, validate=True)), start)))
        except (IndexError, zlib.error) as error:
            raise ValueError("these are no offsets") from error

    @classmethod
    def of_runs(cls, runs: Iterable[tuple[int, int]]) -> OffsetRuns:
        """Return the offsets of half-open runs, which come in order."""
        pieces, index = [], 0
        for start, end in runs:
            pieces.append(_Piece(start, end, index, end - start, None))
            index += end - start
        return cls(pieces)

    def __len__(self) -> int:
        return self._count

    def count_below(self, offset: int) -> int:
        """Return how many of them are below an offset."""
        number = bisect_right(self._pieces, offset, key=lambda piece: piece.first) - 1
        if number < 0:
            return 0
        piece = self._pieces[number]
        if offset >= piece.end:
            return piece.before + piece.size
        return piece.before + bisect_left(piece.offsets(), offset)

    def offset_at(self, index: int) -> int:
        """Return the one with this index, from 0."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        number = bisect_right(self._pieces, index, key=lambda piece: piece.before) - 1
        piece = self._pieces[number]
        return piece.offsets()[index - piece.before]

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield them as half-open runs, in order; neighbours are joined."""
        first = end = -1
        for piece in self._pieces:
            single = ((offset, offset + 1) for offset in piece.offsets())
            for start, stop in [(piece.first, piece.end)] if piece.distances is None else single:
                if start != end:
                    if first < end:
                        yield first, end
                    first = start
                end = stop
        if first < end:
            yield first, end

    def without(self, excluded: Collection[int], start: int) -> RunEncoder:
        """Return an encoder that has got all of them but some."""
        encoder = RunEncoder(start)
        for first, end in self.runs():
            position = first
            for offset in sorted(each for each in excluded if first <= each < end):
                encoder.add_run(position, offset)
                position = offset + 1
            encoder.add_run(position, end)
        return encoder


def _pieces(data: bytes, position: int) -> Iterator[_Piece]:
    at = index = 0
    while at < len(data):
        gap, at = _read_varint(data, at)
        number, at = _read_varint(data, at)
        count, kind = divmod(number, _KINDS)
        first, distances = position + gap, None
        position = first + count
        if kind != _CONSECUTIVE:
            if kind not in _TYPES or not count:
                raise ValueError(kind)
            distances = array(_TYPES[kind])
            size = distances.itemsize * (count - 1)
            if at + size > len(data):
                raise IndexError(at)
            distances.frombytes(data[at : at + size])
            if sys.byteorder == "big":
                distances.byteswap()
            at += size
            position = first + sum(distances) + 1
        yield _Piece(first, position, index, count, distances)
        index += count


def _varint(number: int) -> bytes:
    varint = bytearray()
    while number >= _CONTINUES:
        varint.append(number & 0x7F | _CONTINUES)
        number >>= 7
    varint.append(number)
    return bytes(varint)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            return number, at
        shift += 7

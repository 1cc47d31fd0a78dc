"""Where the records of batches are, and when they were written, without an object for any of them.

What two logs hold of one record differs in its head alone: its length, and its timestamp and offset
relative to its batch. All behind that, its tail, is key, value and headers. So records of two logs
are compared by the bytes of their tails, whatever their batches are: many at once, which costs a
tenth of decoding them.

Source: Kafka's protocol guide, "Record" and "Record Batch".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relay_pipelines.protocol.batch import Batch, BatchHeader, verify
from relay_pipelines.protocol.records import corrupt_at, decompressed

Ints = npt.NDArray[np.int64]

_WORD = 8
_LOAD_BYTES = 32  # no head is longer, so that loads at the last record stay inside
_STOPS = np.uint64(0x8080808080808080)  # a byte without this bit ends a varint
_GROUPS = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_ONE = np.uint64(1)
_COPIED_BYTES = 256  # at most, so that copies of many stay in the processor's cache
_CONTINUES = 0x80  # the bit in a byte of a varint that says that another byte follows


class Undecoded(NamedTuple):
    """Records of some batches, in order.

    Args:
        data: the records of all batches, and some bytes more.
        tails, ends: where the tail of each record begins and ends.
        timestamps, offsets: of each record.
    """

    data: bytes
    tails: Ints
    ends: Ints
    timestamps: Ints
    offsets: Ints


class Bounds(NamedTuple):
    """Where some tails begin and end on both sides."""

    here: Ints
    end: Ints
    there: Ints
    last: Ints


def undecoded(
    batches: Sequence[Batch], like: Undecoded | None = None, first: int = 0
) -> Undecoded | None:
    """Return the records of batches; None if that takes a decoder.

    Args:
        like: records of which these may be copies, from its record `first` on: then their lengths
            are known, and need only be verified.

    Raises:
        CorruptBatchError: a batch does not match its CRC, or cannot be decompressed.
    """
    bodies = []
    for batch in batches:
        verify(batch)
        with corrupt_at(batch.header.base_offset):
            bodies.append(decompressed(batch))
    headers = [batch.header for batch in batches]
    counts = np.array([header.records for header in headers])
    bounds = [*accumulate(map(len, bodies), initial=0)]
    joined = b"".join([*bodies, bytes(_LOAD_BYTES)])
    words = _words(joined)
    of_batch = np.repeat(np.arange(len(headers)), counts)
    firsts = np.cumsum(counts) - counts
    starts = np.zeros(1, np.int64)
    if like is not None:
        in_batch = np.arange(len(of_batch)) - firsts[of_batch]
        bases = np.array([header.base_timestamp_ms for header in headers])[of_batch]
        starts = _verified(words, _sizes(like, first, bases, in_batch), bounds[-1])
    starts = _walked(joined, bounds[-1], starts)
    if len(starts) - 1 != len(of_batch) or starts[-1] != bounds[-1]:
        return None
    if not np.array_equal(starts[firsts], bounds[:-1]):
        return None
    return _of_heads(joined, words, headers, of_batch, starts)


def _of_heads(
    joined: bytes,
    words: npt.NDArray[np.uint64],
    headers: Sequence[BatchHeader],
    of_batch: Ints,
    starts: Ints,
) -> Undecoded | None:
    at, ends = starts[:-1], starts[1:]
    times = at + _varints(words, at)[1] + 1  # one byte of attributes, which are not in use
    since, width = _varints(words, times)
    deltas = times + width
    delta, width = _varints(words, deltas)
    tails = deltas + width
    if not len(at) or not width.all() or (tails > ends).any():
        return None
    bases = np.array([header.base_offset for header in headers])
    offsets = bases[of_batch] + delta
    if (np.diff(offsets) <= 0).any():
        return None
    timestamps = np.array([header.base_timestamp_ms for header in headers])[of_batch] + since
    stamped = np.array([header.is_log_append_time for header in headers])
    if stamped.any():
        newest = np.array([header.max_timestamp_ms for header in headers])
        timestamps = np.where(stamped[of_batch], newest[of_batch], timestamps)
    return Undecoded(joined, tails, ends, timestamps, offsets)


def _walked(data: bytes, end: int, starts: Ints) -> Ints:
    """Return where records begin, and the last one ends, from those that are known."""
    at = int(starts[-1])
    if at >= end:
        return starts
    found = starts.tolist()
    add = found.append
    # the whole cost of comparing other batches is this loop, and what numpy does with its result
    while at < end:
        size = data[at]
        if size < _CONTINUES:
            at += 1 + (size >> 1)
        elif (more := data[at + 1]) < _CONTINUES:
            at += 2 + (size - _CONTINUES + (more << 7) >> 1)
        else:
            size, shift = size & ~_CONTINUES, 7
            while more >= _CONTINUES and at < end:
                size, shift, at = size | (more & ~_CONTINUES) << shift, shift + 7, at + 1
                more = data[at + 1]
            at += 2 + ((size | more << shift) >> 1)
        add(at)
    return np.array(found)


def _sizes(like: Undecoded, first: int, bases: Ints, in_batch: Ints) -> Ints:
    """Return how long records are if they are copies of others.

    Args:
        bases: the base timestamp of the batch of each.
        in_batch: the number of each in its batch.
    """
    count = min(len(bases), len(like.tails) - first)
    known = slice(first, first + count)
    size = 1 + like.ends[known] - like.tails[known]
    size += _width(like.timestamps[known] - bases[:count]) + _width(in_batch[:count])
    return size + _width(size)


def _verified(words: npt.NDArray[np.uint64], sizes: Ints, end: int) -> Ints:
    """Return where records begin, as far as they are so long."""
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    starts = starts[: int(np.searchsorted(starts, end, "right"))]
    length, width = _varints(words, starts[:-1])
    right = leading(starts[:-1] + width + length == starts[1:])
    return starts[: right + 1]


def _varints(words: npt.NDArray[np.uint64], at: Ints) -> tuple[Ints, Ints]:
    """Return the numbers at these places, and their sizes in bytes; 0 if it is more than a word."""
    word = words[at]
    stops = ~word & _STOPS
    mask = stops ^ (stops - _ONE)  # up to the first byte that stops; all of it if none does
    word &= mask & ~_STOPS
    for low, high, shift in _GROUPS:
        word = word & low | (word & high) >> shift
    zigzag = word.view(np.int64)
    width = np.bitwise_count(mask).astype(np.int64) >> 3
    return zigzag >> 1 ^ -(zigzag & 1), np.where(stops == 0, 0, width)


def _width(numbers: Ints) -> Ints:
    """Return how many bytes these numbers take as varints."""
    zigzag = (numbers << 1 ^ numbers >> 63).view(np.uint64)
    width = np.ones(len(numbers), np.int64)
    limit, most = 1 << 7, int(zigzag.max(initial=0))
    while limit <= most:
        width += zigzag >= limit
        limit <<= 7
    return width


def same_tails(one: Undecoded, first: int, other: Undecoded, there: int, count: int) -> int:
    """Return how many records have the same key, value and headers, up to the first that has not.

    Args:
        first, there: the first record to compare on both sides.
        count: of records, at most.
    """
    starts, copies = one.tails[first : first + count], other.tails[there : there + count]
    stops, last = one.ends[first : first + count], other.ends[there : there + count]
    count = leading(stops - starts == last - copies)
    bits = np.frexp((stops - starts)[:count])[1]
    for size in np.unique(bits).tolist():
        some = np.flatnonzero(bits == size)
        bounds = Bounds(starts[some], stops[some], copies[some], last[some])
        if not _are_same(one.data, other.data, bounds, 1 << size - 1):
            tails = zip(some.tolist(), *(each.tolist() for each in bounds), strict=True)
            differing = (n for n, a, b, c, d in tails if one.data[a:b] != other.data[c:d])
            count = min(count, next(differing, count))
    return count


def _are_same(one: bytes, other: bytes, bounds: Bounds, size: int) -> bool:
    """Whether some tails are known to be the same; all have this size at least, and less than two.

    So the first and the last bytes of a tail are all of it, and numpy copies those of many at once.
    """
    return (
        size <= _COPIED_BYTES
        and _blocks(one, bounds.here, size) == _blocks(other, bounds.there, size)
        and _blocks(one, bounds.end - size, size) == _blocks(other, bounds.last - size, size)
    )


def _blocks(data: bytes, starts: Ints, size: int) -> bytes:
    """Return so many bytes from each start on."""
    return np.ndarray(len(data) - size + 1, f"V{size}", data, strides=(1,))[starts].tobytes()


def _words(data: bytes) -> npt.NDArray[np.uint64]:
    """Return the words that begin at each of the bytes."""
    return np.ndarray(len(data) - _WORD + 1, "<u8", data, strides=(1,))


def leading(flags: npt.NDArray[np.bool_]) -> int:
    """Return how many of the first are true."""
    return len(flags) if flags.all() else int(np.argmin(flags))

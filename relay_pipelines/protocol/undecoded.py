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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relay_pipelines.protocol.batch import Batch, verify
from relay_pipelines.protocol.records import body_of, codec_of, corrupt_at, decompressed

Ints = npt.NDArray[np.int64]

_WORD = 8
_STOPS = np.uint64(0x8080808080808080)  # a byte without this bit ends a varint
_GROUPS = tuple(
    (width, np.uint64(low), np.uint64(high), np.uint64(width))
    for width, low, high in (
        (1, 0x007F007F007F007F, 0x7F007F007F007F00),
        (2, 0x00003FFF00003FFF, 0x3FFF00003FFF0000),
        (4, 0x000000000FFFFFFF, 0x0FFFFFFF00000000),
    )
)
_ONE = np.uint64(1)
_BYTE_BITS = 8
_COPIED_BYTES = 256  # of a tail, at most: to copy more takes as long as to compare one by one
_CACHED_BYTES = 1 << 16  # are copied at once, and so stay in the processor's cache
_CONTINUES = 0x80  # the bit in a byte of a varint that says that another byte follows
_FEW = 12  # batches, for which numpy's calls cost more than a loop


def _steps() -> Ints:
    """Return how far a record goes by the first two bytes of its length; 0 if they do not say it.

    A record has more than no bytes, and may have more than two bytes of length.
    """
    first, second = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> _BYTE_BITS
    length = np.where(first < _CONTINUES, first, first & ~_CONTINUES | second << 7)
    width = np.where(first < _CONTINUES, 1, 2)
    is_known = (length > 0) & ((first < _CONTINUES) | (second < _CONTINUES))
    return np.where(is_known, width + (length >> 1), 0)


_STEPS = _steps()
_PADDING = bytes(int(_STEPS.max()) + 4 * _WORD)  # no load after the last record is outside


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


def undecoded(batches: Sequence[Batch]) -> Undecoded | None:
    """Return the records of batches; None if that takes a decoder.

    Raises:
        CorruptBatchError: a batch does not match its CRC, or cannot be decompressed.
    """
    bodies = [_body(batch) for batch in batches]
    counts = np.array([batch.header.records for batch in batches])
    bounds = np.array([*accumulate(map(len, bodies), initial=0)])
    if (counts < 0).any() or counts.sum() > bounds[-1]:
        return None
    joined = b"".join([*bodies, _PADDING])
    starts = _starts(joined, bounds, counts)
    return None if starts is None else _of_heads(joined, batches, counts, starts)


def _body(batch: Batch) -> memoryview | bytes:
    verify(batch)
    if not codec_of(batch.header):
        return body_of(batch)
    with corrupt_at(batch.header.base_offset):
        return decompressed(batch)


def _of_heads(
    joined: bytes, batches: Sequence[Batch], counts: Ints, starts: Ints
) -> Undecoded | None:
    """Return the records that begin there, and the last one's end."""
    words, at, ends = _loads(joined, _WORD, "<u8"), starts[:-1], starts[1:]
    lengths = _varints(words[at])
    if lengths is None or not len(at):
        return None
    times = at + lengths[1] + 1  # one byte of attributes, which are not in use
    word = words[times]
    since = _varints(word)
    if since is None:
        return None
    deltas = times + since[1]
    delta = _varints(word >> (since[1] * _BYTE_BITS).view(np.uint64))
    if delta is None or (since[1] + delta[1] > _WORD).any():  # it is not within the word
        delta = _varints(words[deltas])
    if delta is None:
        return None
    tails = deltas + delta[1]
    offsets = np.repeat(np.array([batch.header.base_offset for batch in batches]), counts)
    offsets += delta[0]
    if (
        (tails >= ends).any()
        or (at + lengths[1] + lengths[0] != ends).any()
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        return None
    return Undecoded(joined, tails, ends, _timestamps(batches, counts, since[0]), offsets)


def _timestamps(batches: Sequence[Batch], counts: Ints, since: Ints) -> Ints:
    """Return them.

    Args:
        since: the base timestamp of their batches.
    """
    headers = [batch.header for batch in batches]
    stamped = np.array([header.is_log_append_time for header in headers])
    bases = np.array([header.base_timestamp_ms for header in headers])
    timestamps = np.repeat(bases, counts) + since
    if stamped.any():
        newest = np.array([header.max_timestamp_ms for header in headers])
        return np.where(np.repeat(stamped, counts), np.repeat(newest, counts), timestamps)
    return timestamps


def _starts(data: bytes, bounds: Ints, counts: Ints) -> Ints | None:
    """Return where records begin, and the last one ends; None if they do not fill their batches.

    A record's length says where the next one begins. So all batches go on at once, record by
    record, those with the most records longest; where few are left, or a record is large, a loop
    over records goes on.

    Args:
        bounds: where batches begin, and the last one ends.
        counts: of their records.
    """
    order = np.argsort(-counts, kind="stable")
    following = np.arange(1, counts.max(initial=0))
    pairs, at = _loads(data, 2, "<u2"), bounds[:-1][order]
    places = [bounds]
    for batches in np.searchsorted(-counts[order], -following).tolist():
        if batches < _FEW:
            break
        at = at[:batches] if batches < len(at) else at
        at = at + _STEPS[pairs[at]]
        places.append(at)
    starts = _ascending(places)
    is_reached = starts[:-1] + _STEPS[pairs[starts[:-1]]] == starts[1:]
    if not is_reached.all():
        gaps = np.flatnonzero(~is_reached)
        between = zip(starts[gaps].tolist(), starts[gaps + 1].tolist(), strict=True)
        places += [_walked(data, *each) for each in between]
        starts = _ascending(places)
    firsts = np.cumsum(counts) - counts
    is_whole = len(starts) == counts.sum() + 1 and np.array_equal(starts[firsts], bounds[:-1])
    return starts if is_whole else None


def _ascending(groups: Sequence[Ints]) -> Ints:
    """Return these numbers once each; `np.unique` takes many times as long."""
    numbers = np.sort(np.concatenate(groups), kind="stable")
    is_first = numbers[1:] != numbers[:-1]
    return numbers if is_first.all() else numbers[np.concatenate(([True], is_first))]


def _walked(data: bytes, at: int, end: int) -> Ints:
    """Return where records begin."""
    bounds: list[int] = []
    add = bounds.append
    while at < end:
        add(at)
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
    return np.array(bounds)


def _varints(word: npt.NDArray[np.uint64]) -> tuple[Ints, Ints] | None:
    """Return the numbers that begin these words, and their widths; None if one is too wide."""
    stops = ~word & _STOPS
    if not stops.all():
        return None
    mask = stops ^ (stops - _ONE)  # up to the first byte that stops
    width = np.bitwise_count(mask).astype(np.int64) >> 3
    word = word & mask & ~_STOPS
    widest = width.max(initial=0)
    for size, low, high, shift in _GROUPS:
        if widest > size:
            word = word & low | (word & high) >> shift
    zigzag = word.view(np.int64)
    return zigzag >> 1 ^ -(zigzag & 1), width


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
    view = memoryview(other.data)
    for size in np.unique(bits).tolist():
        some = np.flatnonzero(bits == size)
        bounds = Bounds(starts[some], stops[some], copies[some], last[some])
        if not _are_same(one.data, other.data, bounds, 1 << size - 1):
            places = (some, bounds.here, bounds.there, bounds.last)
            tails = zip(*(place.tolist() for place in places), strict=True)
            is_next = one.data.startswith  # which copies nothing
            differing = (n for n, at, start, end in tails if not is_next(view[start:end], at))
            count = min(count, next(differing, count))
    return count


def _are_same(one: bytes, other: bytes, bounds: Bounds, size: int) -> bool:
    """Whether some tails are known to be the same; all have this size at least, and less than two.

    So the first and the last bytes of a tail are all of it, and numpy copies those of many at once.
    """
    step = _CACHED_BYTES // size
    blocks = (bounds.here, bounds.there), (bounds.end - size, bounds.last - size)
    return size <= _COPIED_BYTES and all(
        _blocks(one, here[at : at + step], size) == _blocks(other, there[at : at + step], size)
        for here, there in blocks
        for at in range(0, len(here), step)
    )


def _blocks(data: bytes, starts: Ints, size: int) -> bytes:
    """Return so many bytes from each start on."""
    return _loads(data, size, f"V{size}")[starts].tobytes()


def _loads(data: bytes, size: int, kind: str) -> npt.NDArray[Any]:
    """Return what can be loaded from each of the bytes on.

    Args:
        size: of the kind, in bytes.
    """
    return np.ndarray(len(data) - size + 1, kind, data, strides=(1,))


def leading(flags: npt.NDArray[np.bool_]) -> int:
    """Return how many of the first are true."""
    return len(flags) if flags.all() else int(np.argmin(flags))

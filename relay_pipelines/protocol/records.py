"""Records inside a batch, through aiokafka's compiled codec; a verbatim copy never decodes them.

That codec takes only header names in UTF-8; `python_codec` replaces it for batches with others.

The records of a batch in plain Python, for header names that are not UTF-8.

This is many times slower than the compiled codec, which takes only UTF-8. The protocol calls a
header name a string, but a broker stores any bytes that the producer sends. Names are `str` with
`surrogateescape` (PEP 383): each byte that is not UTF-8 becomes one lone surrogate, and that byte
again when it is written.

Source: Kafka's protocol guide, "Record" and "Record Batch".
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, dropwhile
from typing import Any, NamedTuple, Self

from aiokafka.codec import (
    gzip_decode,
    gzip_encode,
    lz4_decode,
    lz4_encode,
    snappy_decode,
    snappy_encode,
    zstd_decode,
    zstd_encode,
)
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from cramjam import DecompressionError
from crc32c import crc32c

from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.protocol.batch import (
    CODEC_MASK,
    CODECS,
    CRC_END,
    HEADER,
    HEADER_BYTES,
    Batch,
    BatchHeader,
    BatchRun,
    crc_matches,
    crc_mismatch,
    split,
    verify,
)

_UNBOUNDED = 1 << 30
_DIGESTED = struct.Struct(">bqi")  # of a header: codec, base timestamp, number of records
_NO_TIMESTAMP = -1
_LARGE_BYTES = 600  # where both checks of a batch cost the same
_ZSTD = CODECS.index("zstd")
_DEFAULT_LIMIT_BYTES = 900_000  # below the default max.message.bytes
# what the codec and the decompressors of several libraries raise on bad bytes
_UNDECODABLE = (
    CorruptRecordException,
    DecompressionError,
    EOFError,
    OSError,
    RuntimeError,
    UnsupportedCodecError,
    ValueError,
    struct.error,
    zlib.error,
)


@contextmanager
def corrupt_at(offset: int) -> Iterator[None]:
    """Turn what the codec raises on bad bytes into a `CorruptBatchError` at `offset`."""
    try:
        yield
    except _UNDECODABLE as error:
        raise CorruptBatchError(
            f"the record batch cannot be decoded ({error})",
            remedy="read from another upstream or replica, or restore the source's log segment",
            offset=offset,
        ) from error


def checked_records(run: BatchRun, end: int) -> DecodedRecords:
    """Return the records, as `decode` does, of a run's batches that begin before `end`.

    Raises:
        CorruptBatchError: the bytes of a batch do not match their CRC.
    """
    return DecodedRecords(run.data, _checked(run, end))


def decode(data: memoryview) -> Iterator[Any]:
    """Yield the records in `data`: `offset`, `timestamp` (ms), `key`, `value` and `headers`.

    Headers are a list of name and value. A name is `str`; bytes in it that are not UTF-8 are lone
    surrogates (`surrogateescape`).

    Raises:
        CorruptBatchError: they cannot be decompressed or do not match their own lengths.
    """
    with corrupt_at(int.from_bytes(data[:8], "big")):
        yield from DecodedRecords(data, _batches_of(data))


def _batches_of(data: memoryview) -> Iterator[Any]:
    """Yield the batches in `data` as aiokafka's objects, which iterate over their records."""
    batches = MemoryRecords(bytes(data))
    while batches.has_next():
        yield batches.next_batch()


def _checked(run: BatchRun, end: int) -> Iterator[Any]:
    batches = _batches_of(run.data)
    if run.is_single:
        verify(Batch(run.first, run.data))
        yield from batches
        return
    # the processor's instruction is several times as fast as the codec, but costs a call more
    matches = crc_matches(run.data) if run.first.size_bytes >= _LARGE_BYTES else None
    for batch in batches:
        if batch.base_offset >= end:
            return
        if not (batch.validate_crc() if matches is None else next(matches)):
            raise crc_mismatch(batch.base_offset)
        yield batch


class DecodedRecords:
    """The records of batches, in order.

    A loop over `remaining` is the compiled codec's alone, and costs a tenth less than one over this
    object. It ends with `UnicodeDecodeError` at a header name that is not UTF-8; after `recover`,
    `remaining` begins with that record.

    Args:
        data: of the batches.
        batches: as of `_batches_of`.
    """

    __slots__ = ("_batch", "_batches", "_runs", "remaining")

    def __init__(self, data: memoryview, batches: Iterator[Any]) -> None:
        self._runs = split(data)
        self._batch: Any = None
        self._batches = self._noted(batches)
        self.remaining: Iterator[Any] = chain.from_iterable(self._batches)

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield from self.remaining
            except UnicodeDecodeError:
                self.recover()
            else:
                return

    def recover(self) -> None:
        """Let `remaining` go on with the record that the compiled codec cannot decode."""
        first = self._batch.base_offset
        bytes_of = next(run.data for run in self._runs if run.first.base_offset == first)
        # the compiled codec has yielded all records before that one
        rest = dropwhile(has_utf8_names, records(bytes_of))
        self.remaining = chain(rest, chain.from_iterable(self._batches))

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._batch = batch
            yield batch


@dataclass(slots=True)
class AscendingOffsets:
    """Offsets, each by its distance from the one before, which costs a loop over records least.

    Args:
        start: from where the distance of the first one counts.
    """

    start: int
    distances: list[int] = field(default_factory=list)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.start

    @classmethod
    def of(cls, start: int, offsets: Iterable[int]) -> Self:
        """Return these offsets."""
        ascending = cls(start)
        for offset in offsets:
            ascending.add(offset)
        return ascending

    def add(self, offset: int) -> None:
        """Add the next one."""
        self.distances.append(offset - self.last)
        self.last = offset


class BatchBuilder:
    """Encodes records densely (offsets 0, 1, 2 ...) into one batch.

    Args:
        codec: the attributes' low bits: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        limit_bytes: of the batch, even if compression makes it larger; the first record always
            fits.
    """

    __slots__ = ("_append", "_builder", "_limit_bytes", "codec", "last", "records")

    def __init__(self, codec: int, limit_bytes: int) -> None:
        self.codec = codec
        self.records = 0
        self.last: Any = None
        # no compressor makes incompressible bytes larger than this
        spare = limit_bytes // 64 + 128 if codec else 0
        self._limit_bytes = limit_bytes - spare
        self._builder: Any = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, self._limit_bytes)

    def append(self, record: Any) -> bool:
        """Add a record; False if the batch is full, which leaves it as it was."""
        return self.extend((record,)) is None

    def extend(self, records: Iterable[Any], offsets: AscendingOffsets | None = None) -> Any:
        """Add records until the batch is full; return the one that did not fit, None if all did.

        Args:
            records: an iterator, or `DecodedRecords`, goes on with the next record afterwards.
            offsets: gets that of each record that was taken, also of the one that did not fit.

        A record with header names that are not UTF-8 fits only a batch that begins with such a
        record and is built in Python. The loop over records is the whole cost of rewriting, so
        nothing else happens in it.
        """
        if not isinstance(records, DecodedRecords):
            return self._extend(iter(records), offsets)
        while True:
            try:
                return self._extend(records.remaining, offsets)
            except UnicodeDecodeError:
                records.recover()

    def _extend(self, remaining: Iterator[Any], offsets: AscendingOffsets | None) -> Any:
        if not self.records and not self._append_first(remaining, offsets):
            return None
        if offsets is not None:
            return self._extend_and_note(remaining, offsets)
        append, count, last = self._append, self.records, self.last
        try:
            for record in remaining:
                try:
                    if (
                        append(count, record.timestamp, record.key, record.value, record.headers)
                        is None
                    ):
                        return record
                except UnicodeEncodeError:  # from the compiled builder, before it writes anything
                    return record
                count += 1
                last = record
        finally:  # also if the codec cannot decode the next record
            self.records, self.last = count, last
        return None

    def _extend_and_note(self, remaining: Iterator[Any], offsets: AscendingOffsets) -> Any:
        """Do the same with offsets: a loop of its own, so that others do not pay for it."""
        append, count, last = self._append, self.records, self.last
        distances, before = offsets.distances, offsets.last
        try:
            for record in remaining:
                offset = record.offset
                distances.append(offset - before)
                before = offset
                try:
                    if (
                        append(count, record.timestamp, record.key, record.value, record.headers)
                        is None
                    ):
                        return record
                except UnicodeEncodeError:  # as above
                    return record
                count += 1
                last = record
        finally:
            self.records, self.last, offsets.last = count, last, before
        return None

    def _append_first(self, remaining: Iterator[Any], offsets: AscendingOffsets | None) -> bool:
        """Add the first record and choose how to add the others; False if there is none."""
        for first in remaining:
            if offsets is not None:
                offsets.add(first.offset)
            if not has_utf8_names(first):
                self._builder = Builder(self.codec, self._limit_bytes)
            self._builder.append(0, first.timestamp, first.key, first.value, first.headers)
            self.records, self.last = 1, first
            self._append = (
                self._append_untimed if first.timestamp == _NO_TIMESTAMP else self._builder.append
            )
            return True
        return False

    def _append_untimed(self, offset: int, timestamp: int, *rest: Any) -> Any:
        """Add a record only if it has no timestamp.

        The codec takes a first timestamp of -1, which means none, for an empty batch, and gives
        the record the timestamp of the next one. So a batch that begins with a record without a
        timestamp holds only such records.
        """
        return (
            self._builder.append(offset, timestamp, *rest) if timestamp == _NO_TIMESTAMP else None
        )

    def build(self) -> Batch:
        """Return the batch; the builder cannot be used again."""
        data = memoryview(self._builder.build())
        return Batch(BatchHeader._make(HEADER.unpack_from(data)), data)


def encode(
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> Batch:
    """Return a batch of one uncompressed record."""
    builder = BatchBuilder(0, _UNBOUNDED)
    builder.append(Record(0, timestamp_ms, key, value, list(headers)))
    return builder.build()


def encode_all(
    records: Iterable[tuple[bytes | None, bytes | None, int]],
) -> list[Batch]:
    """Return batches that a broker takes by default, unless one record is larger.

    Several records are compressed: checkpoints and entries of one transaction repeat each other.

    Args:
        records: key, value and timestamp in milliseconds of each.
    """
    made = [Record(0, timestamp, key, value, []) for key, value, timestamp in records]
    batches = []
    while made:
        builder = BatchBuilder(_ZSTD if len(made) > 1 else 0, _DEFAULT_LIMIT_BYTES)
        unfitting = builder.extend(made)
        batches.append(builder.build())
        made = [] if unfitting is None else made[builder.records :]
    return batches


def codec_of(header: BatchHeader) -> int:
    """The compression codec of a batch, as its attributes number it."""
    return header.attributes & CODEC_MASK


def body_of(batch: Batch) -> memoryview:
    """Everything after the header: what a verbatim copy leaves untouched and digests cover."""
    return batch.data[HEADER_BYTES:]


def chained_digest(batch: Batch, before: int = 0) -> int:
    """Return the CRC-32C of a batch's content, chained to that of the batches before it.

    Of the header it covers what a destination keeps and the records depend on: codec, base
    timestamp (their timestamps are relative to it) and their number. The broker computes the
    maximum timestamp from the records; the timestamp type shows in the header of the copy.
    """
    header = batch.header
    fields = codec_of(header), header.base_timestamp_ms, header.records
    return int(crc32c(body_of(batch), crc32c(_DIGESTED.pack(*fields), before)))


def digest_of(
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> str:
    """Return 16 hex digits that are the same only if all arguments are equal."""
    digest = hashlib.blake2b(struct.pack(">qi", timestamp_ms, len(headers)), digest_size=8)
    parts = [key, value]
    for name, header_value in headers:
        parts += [name_to_bytes(name), header_value]
    for part in parts:
        # the length first tells neighbours apart; -1 tells null from empty
        digest.update(struct.pack(">i", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.hexdigest()


_COMPRESS = (bytes, gzip_encode, snappy_encode, lz4_encode, zstd_encode)
_CONTINUES = 0x80  # the bit in a byte of a varint that says that another byte follows
_DECOMPRESS = (bytes, gzip_decode, snappy_decode, lz4_decode, zstd_decode)


def decompressed(batch: Batch) -> bytes:
    """Return everything after the header, without compression.

    Raises:
        Exception: what a decompressor raises on bad bytes.
    """
    return bytes(_DECOMPRESS[codec_of(batch.header)](bytes(body_of(batch))))


class Record(NamedTuple):
    """A record, with the attributes of the compiled codec's: read, filtered, or made of a row.

    Args:
        timestamp: in milliseconds since the Unix epoch; -1 for none.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def name_to_bytes(name: str) -> bytes:
    """Return the bytes of a header name."""
    return name.encode(errors="surrogateescape")


def name_to_text(name: str) -> str:
    """Return a header name as people can read it, and as any file can hold it."""
    return name.encode(errors="backslashreplace").decode()


def has_utf8_names(record: Any) -> bool:
    """Whether all header names of a record are UTF-8."""
    try:
        for name, _ in record.headers:
            name.encode()
    except UnicodeEncodeError:
        return False
    return True


def records(batch: memoryview) -> Iterator[Record]:
    """Yield the records of one batch, header included.

    Raises:
        CorruptRecordException: they do not fit their own lengths.
        Exception: what a decompressor raises on bad bytes.
    """
    header = BatchHeader._make(HEADER.unpack_from(batch))
    reader = _Reader(decompressed(Batch(header, batch)))
    for _ in range(header.records):
        yield reader.record(header)
    reader.require_end(len(reader.data))


class _Reader:
    """Reads the fields of records in order."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._at = 0

    def record(self, header: BatchHeader) -> Record:
        end = self._varint() + self._at
        self._varint()  # attributes: none is in use
        timestamp = header.base_timestamp_ms + self._varint()
        offset = header.base_offset + self._varint()
        key, value = self._bytes(), self._bytes()
        headers = [(self._name(), self._bytes()) for _ in range(self._size())]
        self.require_end(end)
        return Record(
            offset,
            header.max_timestamp_ms if header.is_log_append_time else timestamp,
            key,
            value,
            headers,
        )

    def require_end(self, end: int) -> None:
        if self._at != end:
            raise CorruptRecordException(f"records end at byte {self._at} of {end}")

    def _name(self) -> str:
        return self._slice(self._size()).decode(errors="surrogateescape")

    def _bytes(self) -> bytes | None:
        size = self._varint()
        return None if size < 0 else self._slice(size)

    def _slice(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self.data):
            raise CorruptRecordException(f"a field ends at byte {self._at} of {len(self.data)}")
        return self.data[start : self._at]

    def _size(self) -> int:
        size = self._varint()
        if size < 0:
            raise CorruptRecordException(f"size {size} before byte {self._at}")
        return size

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            (byte,) = self._slice(1)
            value |= (byte & ~_CONTINUES) << shift
            if not byte & _CONTINUES:
                return value >> 1 ^ -(value & 1)
        raise CorruptRecordException(f"a number has no end at byte {self._at}")


class Builder:
    """Encodes records into one batch, as the compiled codec's builder, with any header names.

    Args:
        codec: as a batch's attributes number it.
        limit_bytes: of the batch before compression; the first record always fits.
    """

    def __init__(self, codec: int, limit_bytes: int) -> None:
        self._codec = codec
        self._limit_bytes = limit_bytes
        self._timestamps: list[int] = []
        self._body = bytearray()

    def append(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> int | None:
        """Add a record; return the bytes it takes, None if it does not fit."""
        since = timestamp - self._timestamps[0] if self._timestamps else 0
        head = b"\0", _varint(since), _varint(offset)
        record = _sized(b"".join([*head, tail_of(key, value, headers)]))
        if self._timestamps and HEADER_BYTES + len(self._body) + len(record) >= self._limit_bytes:
            return None
        self._timestamps.append(timestamp)
        self._body += record
        return len(record)

    def build(self) -> bytes:
        """Return the batch."""
        body = _COMPRESS[self._codec](bytes(self._body))
        count = len(self._timestamps)
        header = BatchHeader(
            base_offset=0,
            size_bytes=HEADER_BYTES + len(body) - 12,
            leader_epoch=-1,
            magic=2,
            crc=0,
            attributes=self._codec,
            last_offset_delta=count - 1,
            base_timestamp_ms=self._timestamps[0],
            max_timestamp_ms=max(self._timestamps),
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            records=count,
        )
        crc = crc32c(body, crc32c(HEADER.pack(*header)[CRC_END:]))
        return HEADER.pack(*header._replace(crc=crc)) + body


def tail_of(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> bytes:
    """Return key, value and headers as they end an encoded record."""
    fields = [_sized(key), _sized(value)]
    named = [(name_to_bytes(name), header_value) for name, header_value in headers]
    fields += [_varint(len(named)), *(_sized(each) for header in named for each in header)]
    return b"".join(fields)


def _sized(field: bytes | None) -> bytes:
    return _varint(-1) if field is None else _varint(len(field)) + field


def _varint(number: int) -> bytes:
    left = number << 1 ^ number >> 63  # zigzag, which keeps small negative numbers short
    varint = bytearray()
    while left >= _CONTINUES:
        varint.append(left & 0xFF | _CONTINUES)
        left >>= 7
    varint.append(left)
    return bytes(varint)

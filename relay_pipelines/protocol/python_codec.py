"""The records of a batch in plain Python, for header names that are not UTF-8.

This is many times slower than the compiled codec, which takes only UTF-8. The protocol calls a
header name a string, but a broker stores any bytes that the producer sends. Names are `str` with
`surrogateescape` (PEP 383): each byte that is not UTF-8 becomes one lone surrogate, and that byte
again when it is written.

Source: Kafka's protocol guide, "Record" and "Record Batch".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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
from aiokafka.errors import CorruptRecordException
from crc32c import crc32c

from relay_pipelines.protocol.batch import CODEC_MASK, CRC_END, HEADER, HEADER_BYTES, BatchHeader

_COMPRESS = (bytes, gzip_encode, snappy_encode, lz4_encode, zstd_encode)
_CONTINUES = 0x80  # the bit in a byte of a varint that says that another byte follows
_DECOMPRESS = (bytes, gzip_decode, snappy_decode, lz4_decode, zstd_decode)


class Record(NamedTuple):
    """A record, with the attributes of the compiled codec's; the timestamp in ms, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def name_to_bytes(name: str) -> bytes:
    """Return the bytes of a header name."""
    return name.encode(errors="surrogateescape")


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
    reader = _Reader(_DECOMPRESS[header.attributes & CODEC_MASK](bytes(batch[HEADER_BYTES:])))
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
        fields = [
            b"\0",
            _varint(since),
            _varint(offset),
            _sized(key),
            _sized(value),
            _varint(len(headers)),
        ]
        for name, header_value in headers:
            fields += (_sized(name_to_bytes(name)), _sized(header_value))
        record = _sized(b"".join(fields))
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


def _sized(field: bytes | None) -> bytes:
    return _varint(-1) if field is None else _varint(len(field)) + field


def _varint(number: int) -> bytes:
    left = number << 1 ^ number >> 63  # zigzag, which keeps small negative numbers short
    found = bytearray()
    while left >= _CONTINUES:
        found.append(left & 0xFF | _CONTINUES)
        left >>= 7
    found.append(left)
    return bytes(found)

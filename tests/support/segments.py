"""Log segments of a stopped broker, by Kafka's protocol guide; no code is the package's."""

import gzip
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import cramjam
from crc32c import crc32c

from relay_pipelines.model import TopicPartition

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_END = 21
_SIZE_END = 12
_CODEC, _CONTROL = 0x07, 0x20
_GZIP = 1
_ZSTD = 4
APPEND_TIME = 0x08
"""The bit of the attributes which says that a broker set the time."""
ABORT = b"\x00\x00\x00\x00"
"""The key of the marker that aborts a transaction: version and type."""


@dataclass(frozen=True)
class LogRecord:
    """A record; offset and timestamp are relative to its batch."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class LogBatch:
    """A batch; if it is compressed, it has a `body` in place of records."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer: tuple[int, int, int]
    records: tuple[LogRecord, ...] = ()
    count: int = 0
    body: bytes = field(default=b"", repr=False)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    def offset(self, record: LogRecord) -> int:
        return self.base_offset + record.offset_delta

    def compressed(self) -> "LogBatch":
        """The same records with gzip."""
        body = gzip.compress(b"".join(map(_encoded, self.records)))
        attributes = self.attributes & ~_CODEC | _GZIP
        return replace(self, attributes=attributes, records=(), count=len(self.records), body=body)

    def decompressed(self) -> "LogBatch":
        """The same records without zstd, with which the mirrors' state may be compressed."""
        if self.attributes & _CODEC != _ZSTD:
            return self
        body = bytes(cramjam.zstd.decompress(self.body))
        records = tuple(_records(body, self.count))
        return replace(self, attributes=self.attributes & ~_CODEC, records=records)


def log_of(folder: Path, at: TopicPartition) -> Path:
    """Return the only segment of a topic-partition."""
    (segment,) = (folder / f"broker-1/data/{at}").glob("*.log")
    return segment


def batches(folder: Path, at: TopicPartition) -> Iterator[LogBatch]:
    """Yield the batches of a topic-partition, in the data folder of a stopped cluster."""
    return _batches(log_of(folder, at).read_bytes())


def flip_bit(folder: Path, at: TopicPartition, value: bytes) -> None:
    """Change one bit of a record's value in the log of a cluster that is stopped."""
    segment = log_of(folder, at)
    data = bytearray(segment.read_bytes())
    data[data.index(value)] ^= 1
    segment.write_bytes(data)


def edit(
    folder: Path, at: TopicPartition, change: Callable[[list[LogBatch]], list[LogBatch]]
) -> None:
    """Change the batches of a topic-partition of a cluster of one broker, which is stopped."""
    segment = log_of(folder, at)
    batches = list(_batches(segment.read_bytes()))
    segment.write_bytes(b"".join(map(_bytes_of, change(batches))))
    for kind in ("index", "timeindex", "txnindex"):  # the broker makes them again
        for path in segment.parent.glob(f"*.{kind}"):
            path.unlink()


def _batches(data: bytes) -> Iterator[LogBatch]:
    at = 0
    while at < len(data):
        base, size, epoch, _, _, attributes, last, first_ms, max_ms, *producer, count = (
            _HEADER.unpack_from(data, at)
        )
        end = at + _SIZE_END + size
        body = data[at + _HEADER.size : end]
        records = () if attributes & _CODEC else tuple(_records(body, count))
        at = end
        place = base, epoch, attributes, last, first_ms, max_ms, tuple(producer)
        yield LogBatch(*place, records=records, count=count, body=body)


def _bytes_of(batch: LogBatch) -> bytes:
    is_plain = not batch.attributes & _CODEC
    body = b"".join(map(_encoded, batch.records)) if is_plain else batch.body
    count = len(batch.records) if is_plain else batch.count
    header = _HEADER.pack(
        *(batch.base_offset, _HEADER.size - _SIZE_END + len(body), batch.leader_epoch, 2, 0),
        *(batch.attributes, batch.last_offset_delta),
        *(batch.base_timestamp_ms, batch.max_timestamp_ms, *batch.producer, count),
    )
    crc = crc32c(body, crc32c(header[_CRC_END:]))
    return header[: _CRC_END - 4] + struct.pack(">I", crc) + header[_CRC_END:] + body


def _records(body: bytes, count: int) -> Iterator[LogRecord]:
    reader = _Reader(body)
    for _ in range(count):
        reader.varint()  # its size
        reader.take(1)
        timestamp, offset = reader.varint(), reader.varint()
        key, value = reader.sized(), reader.sized()
        headers = [(reader.sized() or b"", reader.sized()) for _ in range(reader.varint())]
        yield LogRecord(offset, timestamp, key, value, tuple(headers))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        number, shift = 0, 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def _varint(number: int) -> bytes:
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _encoded(record: LogRecord) -> bytes:
    fields = b"".join(
        [
            b"\x00",
            _varint(record.timestamp_delta),
            _varint(record.offset_delta),
            _sized(record.key),
            _sized(record.value),
            _varint(len(record.headers)),
            *(_sized(name) + _sized(value) for name, value in record.headers),
        ]
    )
    return _varint(len(fields)) + fields

"""The record batch (magic 2): 61 header bytes, then the records, which a copy leaves untouched.

Source: Kafka's protocol guide, "Record Batch"; KIP-98 for the producer fields; KIP-534 for the
delete horizon bit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from relay_pipelines.errors import CorruptBatchError, UnsupportedError

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
CRC_END = 21  # the CRC-32C covers everything from here on
_PREFIX = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")
_GLANCE = struct.Struct(">8xi4xb5xB34xi")  # size, magic, attributes (the low byte), records
_SIZE_AND_CRC = struct.Struct(">8xi5xI")
_SIZE_END = 12  # the size field counts from here
_MAGIC_AT = 16
_ATTRIBUTES_AT = 22
_MAGIC = 2

CODEC_MASK = 0x07
CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7")  # the last ones are not assigned
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40


class BatchHeader(NamedTuple):
    """The 61 bytes, field by field, in wire order."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def last_offset(self) -> int:
        """The offset of the last record the batch had when it was written."""
        return self.base_offset + self.last_offset_delta

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction marker."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker set the timestamp: `max_timestamp_ms` is that of every record."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def codec_name(self) -> str:
        """The compression codec, as `compression.type` names it."""
        return CODECS[self.attributes & CODEC_MASK]

    @property
    def is_cleaned(self) -> bool:
        """Whether the cleaner of a compacted topic has written the batch again.

        It keeps the offsets of the batch without the removed records, which no producer can write,
        or it stores the delete horizon of a tombstone (KIP-534).
        """
        has_holes = self.records != self.last_offset_delta + 1
        return has_holes or bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def first_timestamp_ms(self) -> int | None:
        """The timestamp of the first record; None if the batch does not say it."""
        if self.is_log_append_time:
            return self.max_timestamp_ms
        # the cleaner of a compacted topic stores another time there (KIP-534)
        known = not self.attributes & DELETE_HORIZON_BIT and self.base_timestamp_ms >= 0
        return self.base_timestamp_ms if known else None


class Batch(NamedTuple):
    """One batch. `data` is header and records."""

    header: BatchHeader
    data: memoryview


class BatchRun(NamedTuple):
    """One batch of a fetch response, or several small ones in a row with the same attributes.

    Small batches come in runs because parsing the header of each in Python would cost more than
    decoding its record. `data` is a view into the connection's buffer until the next receive.
    """

    first: BatchHeader
    last: BatchHeader
    data: memoryview
    records: int
    """How many records its batches have."""

    @property
    def is_single(self) -> bool:
        """Whether the run is one batch."""
        return self.first is self.last


class SmallBatch(NamedTuple):
    """Which batches are small: those whose size, records included, is below a limit of their codec.

    Args:
        limits: by codec, the limit in bytes, and the bytes that each record counts for besides its
            own.
    """

    limits: tuple[tuple[int, int], ...]

    @classmethod
    def below(cls, size_bytes: int) -> SmallBatch:
        """Return one limit for all codecs, whatever the number of records."""
        return cls(((size_bytes, 0),) * (CODEC_MASK + 1))

    def includes(self, header: BatchHeader) -> bool:
        """Whether a batch is small."""
        below_bytes, record_bytes = self.limits[header.attributes & CODEC_MASK]
        return header.size_bytes + _SIZE_END + header.records * record_bytes < below_bytes


class ProducerState(NamedTuple):
    """What identifies an idempotent producer to a broker."""

    producer_id: int
    producer_epoch: int


def split(records: memoryview, small: SmallBatch | None = None) -> Iterator[BatchRun]:
    """Yield the complete batches in `records`; the broker may cut the last one anywhere.

    Args:
        small: adjacent small batches with the same attributes come as one run, except for markers:
            nothing would tell what the cleaner removed between two of them.

    Raises:
        UnsupportedError: a batch is of magic 0 or 1 (written before Kafka 0.11).
        CorruptBatchError: a batch's size is smaller than its header.
    """
    at, end = 0, len(records)
    while at + HEADER_BYTES <= end:
        first = last = _header(records, at)
        count = first.records
        start, at = at, at + _SIZE_END + first.size_bytes
        if at > end:
            return
        if small is not None and not first.is_control and small.includes(first):
            limits = small.limits[first.attributes & CODEC_MASK]
            last_at, at, count = _run_end(records, start, at, limits, count)
            last = first if last_at == start else _header(records, last_at)
        yield BatchRun(first, last, records[start:at], count)
    if at + _MAGIC_AT < end:
        # a whole message of an old format may be shorter than our header
        _require_magic(records, at)


def size_before(records: memoryview, offset: int) -> int:
    """Return the size in bytes of the complete batches in `records` that end before an offset.

    Raises:
        UnsupportedError, CorruptBatchError: as `split` raises them.
    """
    at = 0
    while at + HEADER_BYTES <= len(records):
        header = _header(records, at)
        following = at + _SIZE_END + header.size_bytes
        if header.last_offset >= offset or following > len(records):
            break
        at = following
    return at


def has_batch(records: memoryview) -> bool:
    """Whether `records` begin with a complete batch."""
    if len(records) < HEADER_BYTES:
        return False
    size_bytes, magic, _, _ = _GLANCE.unpack_from(records)
    return bool(magic == _MAGIC and HEADER_BYTES <= _SIZE_END + size_bytes <= len(records))


def _header(records: memoryview, at: int) -> BatchHeader:
    _require_magic(records, at)
    header = BatchHeader._make(HEADER.unpack_from(records, at))
    if header.size_bytes < HEADER_BYTES - _SIZE_END:
        raise CorruptBatchError(
            f"the record batch says that it has {header.size_bytes} bytes, less than its header",
            remedy="read from another upstream or replica, or restore the source's log segment",
            offset=header.base_offset,
        )
    return header


def _require_magic(records: memoryview, at: int) -> None:
    if records[at + _MAGIC_AT] != _MAGIC:
        raise UnsupportedError(
            f"message format v{records[at + _MAGIC_AT]} (written before Kafka 0.11) is not copied",
            remedy="rewrite the topic with a newer client, or start the mirror after them",
            offset=int.from_bytes(records[at : at + 8], "big"),
        )


def _run_end(
    records: memoryview, start: int, at: int, limits: tuple[int, int], count: int
) -> tuple[int, int, int]:
    """Return the start of a run's last batch, the run's end and its number of records.

    Args:
        at: the end of its first batch.
        count: the number of records of that.
    """
    look, end = _GLANCE.unpack_from, len(records)
    attributes, (below_bytes, record_bytes) = records[start + _ATTRIBUTES_AT], limits
    last = start
    while at + HEADER_BYTES <= end:
        size, magic, its_attributes, its_records = look(records, at)
        following = at + _SIZE_END + size
        if (
            not HEADER_BYTES <= following - at < below_bytes - its_records * record_bytes
            or following > end
            or its_attributes != attributes
            or magic != _MAGIC
        ):
            break
        last, at = at, following
        count += its_records
    return last, at, count


def verify(batch: Batch) -> None:
    """Check the batch against its own CRC: a copy would give corrupt bytes a valid one.

    Raises:
        CorruptBatchError: its bytes do not match.
    """
    if crc32c(batch.data[CRC_END:]) != batch.header.crc:
        raise crc_mismatch(batch.header.base_offset)


def crc_matches(records: memoryview) -> Iterator[bool]:
    """Yield for each of the complete batches in `records` whether it matches its own CRC."""
    at, end = 0, len(records)
    while at < end:
        size_bytes, crc = _SIZE_AND_CRC.unpack_from(records, at)
        start, at = at + CRC_END, at + _SIZE_END + size_bytes
        yield crc32c(records[start:at]) == crc


def crc_mismatch(offset: int) -> CorruptBatchError:
    """Return the error for a batch that does not match its CRC."""
    return CorruptBatchError(
        "the record batch does not match its CRC: corrupted on the source's disk or on the way",
        remedy="read from another upstream or replica, or restore the source's log segment",
        offset=offset,
    )


def produced_header(
    header: BatchHeader, body: memoryview, producer: ProducerState, base_sequence: int
) -> bytes:
    """Return a new header that puts `body`, the rest of a batch, into our transaction.

    Of the attributes, only the codec stays: a producer must set neither the timestamp type nor the
    control bit, and the delete horizon (KIP-534) belongs to the log that was cleaned.
    """
    covered = _COVERED.pack(
        header.attributes & CODEC_MASK | TRANSACTIONAL_BIT,
        header.last_offset_delta,
        header.base_timestamp_ms,
        header.max_timestamp_ms,
        *producer,
        base_sequence,
        header.records,
    )
    crc = crc32c(body, crc32c(covered))
    return _PREFIX.pack(0, HEADER_BYTES - _SIZE_END + len(body), 0, _MAGIC, crc) + covered

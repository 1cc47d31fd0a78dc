"""Records inside a batch, through aiokafka's compiled codec: decoded only when someone must look inside."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.wire.batch import CODEC_MASK, HEADER, HEADER_BYTES, Batch, BatchHeader

_UNBOUNDED = 1 << 30


def decode(batch: Batch) -> Iterator[Any]:
    """Yield the batch's records: `offset`, `timestamp` (ms), `key`, `value`, `headers` (list of name and value).

    Raises:
        CorruptBatchError: the records cannot be decompressed or do not fit their own lengths.
    """
    try:
        yield from DefaultRecordBatch(batch.data)
    # the decompressors raise errors of their own libraries
    except (CorruptRecordException, UnsupportedCodecError, ValueError, OSError, RuntimeError, EOFError) as error:
        raise CorruptBatchError(
            f"the record batch cannot be decoded ({error})",
            remedy="read from another node or replica, or restore the source's log segment",
            offset=batch.header.base_offset,
        ) from error


class BatchBuilder:
    """Encodes records densely (offsets 0, 1, 2 ...) into one batch.

    Args:
        codec: the attributes' low bits: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        limit_bytes: of the batch before compression; the first record always fits.
    """

    __slots__ = ("_builder", "_limit_bytes", "codec", "records")

    def __init__(self, codec: int, limit_bytes: int) -> None:
        self.codec = codec
        self.records = 0
        self._limit_bytes = limit_bytes
        self._builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, limit_bytes)

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> bool:
        """Add a record; False if the batch is full, which leaves it as it was."""
        if self._builder.append(self.records, timestamp_ms, key, value, headers) is None:
            return False
        self.records += 1
        return True

    def build(self) -> Batch:
        """Return the batch. Compression that would not shrink it is left out. The builder is spent."""
        data = memoryview(self._builder.build())
        return Batch(BatchHeader._make(HEADER.unpack_from(data)), data)


def encode(key: bytes | None, value: bytes | None, timestamp_ms: int) -> Batch:
    """Return a batch of one uncompressed record."""
    builder = BatchBuilder(0, _UNBOUNDED)
    builder.append(timestamp_ms, key, value, [])
    return builder.build()


def codec_of(header: BatchHeader) -> int:
    """The compression codec of a batch, as its attributes number it."""
    return header.attributes & CODEC_MASK


def body_of(batch: Batch) -> memoryview:
    """Everything behind the header: what a verbatim copy leaves untouched and digests cover."""
    return batch.data[HEADER_BYTES:]


def digest_of(timestamp_ms: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> str:
    """Return 16 hex digits that two records share only if timestamp, key, value and headers are equal."""
    digest = hashlib.blake2b(struct.pack(">qi", timestamp_ms, len(headers)), digest_size=8)
    parts = [key, value]
    for name, header_value in headers:
        parts += [name.encode(), header_value]
    for part in parts:
        # the length in front keeps neighbours apart; -1 keeps null and empty apart
        digest.update(struct.pack(">i", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.hexdigest()

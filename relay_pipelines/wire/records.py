"""Records inside a batch, through aiokafka's compiled codec: decoded only when someone must look inside."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from cramjam import DecompressionError

from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.wire.batch import CODEC_MASK, HEADER, HEADER_BYTES, Batch, BatchHeader, Run, crc_mismatch, verify

_UNBOUNDED = 1 << 30
_NO_TIMESTAMP = -1
# what the codec and the decompressors raise on bad bytes, each library in its own way
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
            remedy="read from another node or replica, or restore the source's log segment",
            offset=offset,
        ) from error


def batches_of(data: memoryview) -> Iterator[Any]:
    """Yield the batches in `data` as aiokafka's compiled objects: iterable over their records, header fields as attributes."""
    batches = MemoryRecords(bytes(data))
    while batches.has_next():
        yield batches.next_batch()


def checked_batches(run: Run, end: int) -> Iterator[Any]:
    """Yield the batches of a run that begin below `end`, as `batches_of`: a corrupt one behind is none of its business.

    Raises:
        CorruptBatchError: the bytes of one do not match their CRC.
    """
    if run.is_single:
        verify(Batch(run.first, run.data))  # by the processor's instruction: several times as fast as the codec
        yield from batches_of(run.data)
        return
    for batch in batches_of(run.data):
        if batch.base_offset >= end:
            return
        if not batch.validate_crc():
            raise crc_mismatch(batch.base_offset)
        yield batch


def decode(data: memoryview) -> Iterator[Any]:
    """Yield the records in `data`: `offset`, `timestamp` (ms), `key`, `value`, `headers` (list of name and value).

    Raises:
        CorruptBatchError: they cannot be decompressed or do not fit their own lengths.
    """
    with corrupt_at(int.from_bytes(data[:8], "big")):
        for batch in batches_of(data):
            yield from batch


class BatchBuilder:
    """Encodes records densely (offsets 0, 1, 2 ...) into one batch.

    Args:
        codec: the attributes' low bits: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        limit_bytes: of the batch, compression that makes it larger included; the first record always fits.
    """

    __slots__ = ("_builder", "_untimed", "codec", "last", "records")

    def __init__(self, codec: int, limit_bytes: int) -> None:
        self.codec = codec
        self.records = 0
        self.last: Any = None
        self._untimed = False
        # no compressor makes incompressible bytes larger than this
        spare = limit_bytes // 64 + 128 if codec else 0
        self._builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, limit_bytes - spare)

    def append(self, record: Any) -> bool:
        """Add a record; False if the batch is full, which leaves it as it was."""
        return self.extend((record,)) is None

    def extend(self, records: Iterable[Any]) -> Any:
        """Add records until the batch is full; return the one that did not fit, None if all did.

        The loop over records is the whole cost of rewriting, so nothing else happens in it.
        """
        remaining = iter(records)
        if not self.records and not self._append_first(remaining):
            return None
        append, count, last, untimed = self._builder.append, self.records, self.last, self._untimed
        unfitting = None
        for record in remaining:
            # `untimed` first: it is almost always false
            if (untimed and record.timestamp != _NO_TIMESTAMP) or (
                append(count, record.timestamp, record.key, record.value, record.headers) is None
            ):
                unfitting = record
                break
            count += 1
            last = record
        self.records, self.last = count, last
        return unfitting

    def _append_first(self, remaining: Iterator[Any]) -> bool:
        """Add the first record, which always fits; False if there is none.

        The codec takes a first timestamp of -1, which means none, for a batch that is still empty, and gives the record the
        timestamp of the next one. So only records without a timestamp share a batch that one of them begins.
        """
        for first in remaining:
            self._builder.append(0, first.timestamp, first.key, first.value, first.headers)
            self.records, self.last = 1, first
            self._untimed = first.timestamp == _NO_TIMESTAMP
            return True
        return False

    def build(self) -> Batch:
        """Return the batch. The builder is spent."""
        return _batch(self._builder)


def encode(key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Sequence[tuple[str, bytes | None]] = ()) -> Batch:
    """Return a batch of one uncompressed record."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, _UNBOUNDED)
    builder.append(0, timestamp_ms, key, value, list(headers))
    return _batch(builder)


def _batch(builder: DefaultRecordBatchBuilder) -> Batch:
    data = memoryview(builder.build())
    return Batch(BatchHeader._make(HEADER.unpack_from(data)), data)


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

"""Records inside a batch, through aiokafka's compiled codec; a verbatim copy never decodes them.

That codec takes only header names in UTF-8; `python_codec` replaces it for batches with others.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from typing import Any

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from cramjam import DecompressionError
from crc32c import crc32c

from relay_pipelines.errors import CorruptBatchError
from relay_pipelines.protocol import python_codec
from relay_pipelines.protocol.batch import (
    CODEC_MASK,
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
            remedy="read from another node or replica, or restore the source's log segment",
            offset=offset,
        ) from error


def checked_records(run: BatchRun, end: int) -> Iterator[Any]:
    """Yield the records, as `decode` does, of a run's batches that begin before `end`.

    Raises:
        CorruptBatchError: the bytes of a batch do not match their CRC.
    """
    return _records_of(run.data, _checked(run, end))


def decode(data: memoryview) -> Iterator[Any]:
    """Yield the records in `data`: `offset`, `timestamp` (ms), `key`, `value` and `headers`.

    Headers are a list of name and value. A name is `str`; bytes in it that are not UTF-8 are lone
    surrogates (`surrogateescape`).

    Raises:
        CorruptBatchError: they cannot be decompressed or do not match their own lengths.
    """
    with corrupt_at(int.from_bytes(data[:8], "big")):
        yield from _records_of(data, _batches_of(data))


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


def _records_of(data: memoryview, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the records of `batches`, which are those of `data`."""
    runs = split(data)
    for batch in batches:
        try:
            yield from batch
        except UnicodeDecodeError:
            bytes_of = next(run.data for run in runs if run.first.base_offset == batch.base_offset)
            # the compiled codec has yielded all records before the first one that it cannot decode
            yield from dropwhile(python_codec.has_utf8_names, python_codec.records(bytes_of))


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

    def extend(self, records: Iterable[Any]) -> Any:
        """Add records until the batch is full; return the one that did not fit, None if all did.

        A record with header names that are not UTF-8 fits only a batch that begins with such a
        record and is built in Python. The loop over records is the whole cost of rewriting, so
        nothing else happens in it.
        """
        remaining = iter(records)
        if not self.records and not self._append_first(remaining):
            return None
        append, count, last = self._append, self.records, self.last
        unfitting = None
        for record in remaining:
            try:
                if (
                    append(count, record.timestamp, record.key, record.value, record.headers)
                    is None
                ):
                    unfitting = record
                    break
            except UnicodeEncodeError:  # from the compiled builder, before it writes anything
                unfitting = record
                break
            count += 1
            last = record
        self.records, self.last = count, last
        return unfitting

    def _append_first(self, remaining: Iterator[Any]) -> bool:
        """Add the first record and choose how to add the others; False if there is none."""
        for first in remaining:
            if not python_codec.has_utf8_names(first):
                self._builder = python_codec.Builder(self.codec, self._limit_bytes)
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
    builder.append(python_codec.Record(0, timestamp_ms, key, value, list(headers)))
    return builder.build()


def encode_all(
    records: Iterable[tuple[bytes | None, bytes | None, int]],
) -> list[Batch]:
    """Return uncompressed batches that a broker takes by default, unless one record is larger.

    Args:
        records: key, value and timestamp in milliseconds of each.
    """
    made = [python_codec.Record(0, timestamp, key, value, []) for key, value, timestamp in records]
    batches = []
    while made:
        builder = BatchBuilder(0, _DEFAULT_LIMIT_BYTES)
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
        parts += [python_codec.name_to_bytes(name), header_value]
    for part in parts:
        # the length first tells neighbours apart; -1 tells null from empty
        digest.update(struct.pack(">i", -1 if part is None else len(part)))
        digest.update(part or b"")
    return digest.hexdigest()

"""Batches as the reader of a log hands them out."""

from collections.abc import Sequence

from crc32c import crc32c

from relay_pipelines.protocol.batch import CRC_END, BatchRun, split
from relay_pipelines.protocol.reader import FetchedSpan
from relay_pipelines.protocol.records import BatchBuilder, Record


def batch(
    records: Sequence[Record],
    base_offset: int = 0,
    *,
    codec: int = 0,
    attributes: int = 0,
    producer: int = -1,
) -> BatchRun:
    """One batch as a log holds it, with a valid CRC."""
    builder = BatchBuilder(codec, 1 << 20)
    assert builder.extend(records) is None
    data = bytearray(builder.build().data)
    data[0:8] = base_offset.to_bytes(8, "big")
    data[22] |= attributes
    data[43:51] = producer.to_bytes(8, "big", signed=True)
    data[CRC_END - 4 : CRC_END] = crc32c(data[CRC_END:]).to_bytes(4, "big")
    (run,) = split(memoryview(bytes(data)))
    return run


def span(run: BatchRun) -> FetchedSpan:
    return FetchedSpan(run.first.base_offset, run.last.last_offset + 1, run, None)

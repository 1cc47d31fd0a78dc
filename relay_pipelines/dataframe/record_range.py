"""A range of offsets as a Spark partition, and its records as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from relay_pipelines.copy.columns import ColumnBuilder, is_log_append_time, records_in
from relay_pipelines.errors import DataLossError, SourceError
from relay_pipelines.garbage import garbage_collection_paused
from relay_pipelines.ledger.chunk_copies import ChunkCopies, OwnBatches
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.reader import read

if TYPE_CHECKING:
    import pyarrow as pa

_FETCH_BYTES = 4 << 20


class Range(InputPartition):  # type: ignore[misc]
    """One Spark partition.

    Args:
        chunks: of the destination: only the records of these; all records if None.
    """

    def __init__(
        self,
        cluster: Cluster,
        offset_range: OffsetRange,
        chunks: Sequence[ChunkCopies] | None = None,
    ) -> None:
        self.cluster = cluster
        self.offset_range = offset_range
        self.chunks = chunks

    @classmethod
    def of_chunks(
        cls, cluster: Cluster, tp: TopicPartition, chunks: Sequence[ChunkCopies]
    ) -> Range:
        """Return the range from the first to the last of some chunks."""
        end = max(chunk.end for chunk in chunks)
        return cls(cluster, OffsetRange(tp, chunks[0].start, end), chunks)

    def parts(self, count: int) -> Iterable[Range]:
        """Cut it into so many parts, or as many as there can be; each record is in one of them.

        A chunk is not cut.
        """
        if self.chunks is not None:
            chunks = self.chunks
            for start, end in _cuts(len(chunks), count):
                yield Range.of_chunks(
                    self.cluster, self.offset_range.topic_partition, chunks[start:end]
                )
            return
        # where a cut goes through a batch, both read it, and each takes its own offsets
        first, tp = self.offset_range.start, self.offset_range.topic_partition
        for start, end in _cuts(len(self.offset_range), count):
            yield Range(self.cluster, OffsetRange(tp, first + start, first + end))


def _cuts(length: int, count: int) -> Iterator[tuple[int, int]]:
    count = max(1, min(count, length))
    for part in range(count):
        yield length * part // count, length * (part + 1) // count


def split(ranges: Sequence[Range], at_least: int | None) -> list[Range]:
    """Cut ranges, the longer ones into more parts, until there are so many Spark partitions."""
    if at_least is None or len(ranges) >= at_least:
        return list(ranges)
    total = max(1, sum(len(each.offset_range) for each in ranges))
    # rounded up, so that they are not fewer
    return [
        part
        for each in ranges
        for part in each.parts(-(-len(each.offset_range) * at_least // total))
    ]


def read_range(partition: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read a range. In a task.

    Raises:
        DataLossError: records of its chunks are not there any more, and others are.
    """
    builder = ColumnBuilder(columns, partition.offset_range.topic_partition)
    with (
        garbage_collection_paused(),
        ClusterClient(partition.cluster, SourceError, purpose="frame") as client,
    ):
        own = None if partition.chunks is None else OwnBatches(partition.chunks)
        for spans in read(client, partition.offset_range, _FETCH_BYTES):
            for span in spans if own is None else filter(own.has, spans):
                for records in records_in(span):
                    builder.add(records, log_append_time=is_log_append_time(span))
            # one batch per fetch, so that large records do not make it larger
            if builder.records:
                yield builder.take()
    if own is not None and own.replaced:
        raise DataLossError(
            f"other records stand in the place of {own.replaced:,} that were copied to"
            f" {partition.offset_range}",
            remedy="`relay audit` names the chunks; `relay replay` copies them again",
        )

"""A range of offsets as a Spark partition, and its records as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    InputPartition,
)

from relay_pipelines.copy.columns import (
    ColumnBuilder,
    is_log_append_time,
    records_in,
)
from relay_pipelines.errors import (
    SourceError,
)
from relay_pipelines.garbage import garbage_collection_paused
from relay_pipelines.ledger.accounted import OwnBatches
from relay_pipelines.model import Cluster, Intervals, OffsetRange
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
        self, cluster: Cluster, offset_range: OffsetRange, chunks: Intervals | None = None
    ) -> None:
        self.cluster = cluster
        self.wanted = offset_range
        self.chunks = chunks


def read_range(partition: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read a range. In a task."""
    builder = ColumnBuilder(columns, partition.wanted.topic_partition)
    with (
        garbage_collection_paused(),
        ClusterClient(partition.cluster, SourceError, purpose="frame") as client,
    ):
        own = None if partition.chunks is None else OwnBatches(partition.chunks)
        for spans in read(client, partition.wanted, _FETCH_BYTES):
            for span in spans if own is None else filter(own.include, spans):
                for records in records_in(span):
                    builder.add(records, log_append_time=is_log_append_time(span))
            # one batch per fetch, so that large records do not make it larger
            if builder.records:
                yield builder.take()

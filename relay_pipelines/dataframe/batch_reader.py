"""Reads records as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    InputPartition,
)

from relay_pipelines.model import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
from relay_pipelines.dataframe.offset_options import offsets_of
from relay_pipelines.dataframe.option_names import OPTIONS, refuse_unknown
from relay_pipelines.dataframe.record_range import Range, read_range
from relay_pipelines.dataframe.selected_topic import place_of
from relay_pipelines.dataframe.window_chunks import chunk_ranges, given_chunks, window_ranges


class Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, ranges: Sequence[Range], columns: Sequence[str]) -> None:
        self._ranges = ranges
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return self._ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):  # Spark passes one empty partition if there are none
            yield from read_range(partition, self._columns)


def ranges_of(options: Mapping[str, str]) -> list[Range]:
    refuse_unknown(options, OPTIONS, "the format relay")
    place = place_of(options)
    if "window" in options:
        return window_ranges(place, options["window"])
    if "chunks" in options:
        return chunk_ranges(place, given_chunks(options["chunks"]))
    with place.client() as client:
        partitions = place.topic_partitions(client)
        starts = offsets_of(client, partitions, "start", options.get("start", "earliest"))
        ends = offsets_of(client, partitions, "end", options.get("end", "latest"))
    return [
        Range(place.cluster, OffsetRange(topic_partition, start, end))
        for topic_partition in partitions
        if (end := ends[topic_partition]) > (start := starts[topic_partition])
    ]

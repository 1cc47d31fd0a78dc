"""Reads records as a DataFrame: `read` in tasks, everything else on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from relay_pipelines.dataframe.offset_options import end_offsets, read_logs, start_offsets
from relay_pipelines.dataframe.option_names import (
    BATCH_OPTIONS,
    CHUNKS,
    ENDS,
    MIN_PARTITIONS,
    STARTS,
    count_of,
    only_one,
    refuse_unknown,
)
from relay_pipelines.dataframe.record_range import Range, read_range, split
from relay_pipelines.dataframe.topic_options import Selection, selection_of
from relay_pipelines.dataframe.window_chunks import given_chunks, window_ranges
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


class Reader(DataSourceReader):  # type: ignore[misc]
    """Reads ranges.

    It takes no filters from Spark (`pushFilters`): Spark 4.3 gives what one query of a DataFrame
    pushes to all its queries, also to those without a filter, which then miss rows.
    """

    def __init__(self, ranges: Sequence[Range], columns: Sequence[str]) -> None:
        self._ranges = ranges
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges."""
        return self._ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        if isinstance(partition, Range):  # Spark passes one empty partition if there are none
            yield from read_range(partition, self._columns)


def ranges_of(options: Mapping[str, str]) -> list[Range]:
    """Return what options select.

    Raises:
        ConfigError: an option is wrong.
        RelayError: the cluster does not answer, or refuses.
    """
    refuse_unknown(options, BATCH_OPTIONS, "the format relay")
    at_least = count_of(options, MIN_PARTITIONS)
    selection = selection_of(options)
    only_one(options, *CHUNKS, *STARTS)
    only_one(options, *CHUNKS, *ENDS)
    if "window" in options:
        ranges = window_ranges(selection, options["window"])
    elif "chunks" in options:
        ranges = given_chunks(selection, options["chunks"])
    else:
        ranges = _between(selection, options)
    return split(ranges, at_least)


def _between(selection: Selection, options: Mapping[str, str]) -> list[Range]:
    with selection.client() as client:
        topics = selection.topic_partitions(client)
        if not topics:
            raise ConfigError(
                f"option subscribePattern matches no topic of mirror {selection.sides.name}",
                remedy="`relay status --all` shows them; it is of the whole name at the source",
            )
        logs = read_logs(client, topics)
        starts = start_offsets(client, topics, logs, options)
        ends = end_offsets(client, topics, logs, options)
    return [
        Range(client.cluster, OffsetRange(tp, starts[tp], ends[tp]))
        for tp in sorted(starts)
        if ends[tp] > starts[tp]
    ]

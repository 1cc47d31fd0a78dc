"""Reads a topic in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from relay_pipelines.errors import (
    ConfigError,
)
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient

if TYPE_CHECKING:
    import pyarrow as pa
from relay_pipelines.dataframe.offset_options import offsets_of
from relay_pipelines.dataframe.option_names import STREAM_OPTIONS, refuse_unknown
from relay_pipelines.dataframe.record_range import Range, read_range
from relay_pipelines.dataframe.selected_topic import place_of
from relay_pipelines.dataframe.stream_offsets import (
    TOPIC_ID,
    Kept,
    Offsets,
    by_partition,
    next_offsets,
    refuse_another_topic,
    refuse_losses,
    without_id,
)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads a topic in micro-batches: `read` in tasks, everything else in the query's process."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        refuse_unknown(options, STREAM_OPTIONS, "a stream of the format relay")
        self._start = options.get("start", "earliest")
        self._limit = _max_offsets(options)
        self._place = place_of(options)
        self._columns = columns
        self._last: Offsets | None = None

    def initialOffset(self) -> Kept:  # noqa: N802 - PySpark's name, as all below
        with self._place.client() as client:
            partitions = self._place.topic_partitions(client)
            offsets = by_partition(offsets_of(client, partitions, "start", self._start))
            return offsets | {TOPIC_ID: self._topic_id(client)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._limit) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._now()[2]

    def latestOffset(self, start: Kept, limit: ReadLimit) -> Kept:  # noqa: N802
        topic_id, low, ends = self._now()
        begun, topic = without_id(start), self._place.target.topic
        refuse_another_topic(topic, start.get(TOPIC_ID, ""), topic_id)
        refuse_losses(topic, begun, low, ends)
        begins = {partition: begun.get(partition, low[partition]) for partition in ends}
        wanted = ends if self._last is None else self._last
        limited = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return next_offsets(begins, wanted, limited) | {TOPIC_ID: topic_id}

    def partitions(self, start: Kept, end: Kept) -> Sequence[InputPartition]:
        topic = self._place.target.topic
        return [
            Range(
                self._place.cluster,
                OffsetRange(TopicPartition(topic, int(partition)), start.get(partition, 0), offset),
            )
            for partition, offset in without_id(end).items()
            if offset > start.get(partition, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            yield from read_range(partition, self._columns)

    def _now(self) -> tuple[str, Offsets, Offsets]:
        """The topic's id, and where its partitions begin and end."""
        with self._place.client() as client:
            partitions = self._place.topic_partitions(client)
            low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
            end = client.list_offsets(partitions, LATEST, READ_COMMITTED)
            return self._topic_id(client), by_partition(low), by_partition(end)

    def _topic_id(self, client: ClusterClient) -> str:
        return client.topic(self._place.target.topic).topic_id


def _max_offsets(options: Mapping[str, str]) -> int:
    text = options.get("max_offsets", "0")
    if not text.isdecimal():
        raise ConfigError(
            f"option max_offsets: {text!r} is not a number",
            remedy="write a number such as 1000000, or leave it out for all that is new",
        )
    return int(text)

"""Reads topics in micro-batches: `read` in tasks, everything else in the query's process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from relay_pipelines.dataframe.offset_options import Logs, read_logs, start_offsets
from relay_pipelines.dataframe.option_names import (
    MIN_PARTITIONS,
    STREAM_OPTIONS,
    count_of,
    refuse_unknown,
)
from relay_pipelines.dataframe.record_range import Range, read_range, split
from relay_pipelines.dataframe.stream_offsets import (
    StreamOffsets,
    next_offsets,
    refuse_losses,
    refuse_other_topics,
)
from relay_pipelines.dataframe.topic_options import TopicPartitions, selection_of
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.client import ClusterClient

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads topics in micro-batches."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        refuse_unknown(options, STREAM_OPTIONS, "a stream of the format relay")
        self._options = options
        self._limit = count_of(options, "max_offsets")
        self._at_least = count_of(options, MIN_PARTITIONS)
        self._selection = selection_of(options)
        self._columns = columns
        self._cluster = self._selection.cluster
        """With its id, once it has been asked."""
        self._last: Logs | None = None
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name, as all below
        """Return where the first query begins."""
        with self._selection.client() as client:
            topics = self._selection.topic_partitions(client)
            logs = read_logs(client, topics)
            starts = start_offsets(client, topics, logs, self._options)
            return StreamOffsets(starts, starts, _ids(client, topics)).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many offsets a micro-batch may read."""
        return ReadMaxRows(self._limit) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where topics end: the query stops there."""
        self._last = self._now().logs

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the micro-batch ends that begins at `start`.

        Raises:
            DataLossError: topics no longer have what comes next, or are others.
        """
        now, read = self._now(), StreamOffsets.from_json(start)
        refuse_other_topics(read.ids, now.ids)
        refuse_losses(read.next, now.logs.low, now.logs.end)
        last = now.logs if self._last is None else self._last
        # new ones from their beginning, unless they came after the query that stops has begun
        new = {
            tp: low for tp, low in now.logs.low.items() if tp not in read.next and tp in last.low
        }
        limited = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self._planned = StreamOffsets(
            {**read.begin, **new},
            next_offsets({**read.next, **new}, last.end, limited),
            {**now.ids, **read.ids},
        ).as_json()
        return self._planned

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch, the same ones if it is run again.

        Raises:
            DataLossError: it is run again, and topics are others by now.
        """
        begun, until = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
        if end != self._planned:  # planned by a query that has ended since
            refuse_other_topics(until.ids, self._now().ids)
        offset_ranges = [
            OffsetRange(tp, until.start(tp, begun), offset) for tp, offset in until.next.items()
        ]
        ranges = [
            Range(self._cluster, offset_range)
            for offset_range in offset_ranges
            if len(offset_range)
        ]
        return split(ranges, self._at_least)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        if isinstance(partition, Range):
            yield from read_range(partition, self._columns)

    def _now(self) -> _Now:
        with self._selection.client() as client:
            topics = self._selection.topic_partitions(client)
            now = _Now(_ids(client, topics), read_logs(client, topics))
            self._cluster = client.cluster
            return now


@dataclass(frozen=True, slots=True)
class _Now:
    """What the cluster has: the ids of the topics, and where their logs begin and end."""

    ids: Mapping[str, str]
    logs: Logs


def _ids(client: ClusterClient, topics: TopicPartitions) -> dict[str, str]:
    names = {tp.topic for some in topics.values() for tp in some}
    return {name: client.topic(name).topic_id for name in sorted(names)}

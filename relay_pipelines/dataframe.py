"""The PySpark data source `relay`: offset ranges of a mirror's source or destination as a DataFrame.

`register(spark)` makes it known; then `spark.read.format("relay").option("mirror",
...).option("topic", ...).load()`. Its batches are Arrow's, one Spark partition per topic-partition;
only the columns of the schema are built.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from relay_pipelines import settings
from relay_pipelines.copy.columns import (
    COLUMNS,
    ColumnBuilder,
    garbage_collection_paused,
    is_log_append_time,
    records_in,
)
from relay_pipelines.errors import ConfigError, DestinationError, SourceError
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from relay_pipelines.plan.topic_selection import Target, targets
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import SystemClock, moment_ms
from relay_pipelines.protocol.reader import read
from relay_pipelines.settings import Mirror
from relay_pipelines.state.ledger_reader import LedgerFollower

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "relay"
_OPTIONS = ("config", "mirror", "topic", "side", "start", "end", "window")
_SIDES = ("source", "destination")
_FETCH_BYTES = 4 << 20


def register(session: Any) -> None:
    """Make the format `relay` known to a Spark session."""
    session.dataSource.register(KafkaRangeDataSource)


class KafkaRangeDataSource(DataSource):  # type: ignore[misc]  # pyspark's types are not published
    """Offset ranges as a DataFrame.

    Options:
        config: relay.yaml; ./relay.yaml by default.
        mirror: its name; may be left out if there is one only.
        topic: by its name at the source.
        side: `source` (the default; the first node) or `destination`.
        start, end: `earliest`, `latest`, a moment (2026-01-31T12:00:00Z), an offset, or JSON of
            partition to offset; all there is by default.
        window: the key of a Dagster window, in place of start and end: what was copied for it, by
            the ledger.
    """

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return NAME

    def schema(self) -> str:
        """All columns; whoever gives a schema with some of them has only those built."""
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        unknown = [name for name in schema.names if name not in COLUMNS]
        if unknown:
            raise ConfigError(
                f"the format relay has no column {unknown[0]!r}",
                remedy=f"it has {', '.join(COLUMNS)}",
            )
        return _Reader(_ranges(dict(self.options)), schema.names)


class _Range(InputPartition):  # type: ignore[misc]
    """One Spark partition."""

    def __init__(self, cluster: Cluster, wanted: OffsetRange) -> None:
        self.cluster = cluster
        self.wanted = wanted


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, ranges: Sequence[_Range], columns: Sequence[str]) -> None:
        self._ranges = ranges
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return self._ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Range):
            return  # of no partition at all Spark makes one
        builder = ColumnBuilder(self._columns, partition.wanted.topic_partition)
        with (
            garbage_collection_paused(),
            ClusterClient(partition.cluster, SourceError, "relay-frame") as client,
        ):
            for spans in read(client, partition.wanted, _FETCH_BYTES, SystemClock()):
                for span in spans:
                    for records in records_in(span):
                        builder.add(records, log_append_time=is_log_append_time(span))
                # a batch for each fetch: as large as that, whatever the size of the records
                if builder.records:
                    yield builder.take()


def _ranges(options: Mapping[str, str]) -> list[_Range]:
    # Spark hands option names on in lower case, as all of ours are
    for key in options:
        if key not in _OPTIONS:
            raise ConfigError(
                f"the format relay has no option {key!r}", remedy=f"it has {', '.join(_OPTIONS)}"
            )
    name, mirror = _mirror(options)
    side, topic = options.get("side", "source"), options.get("topic", "")
    if side not in _SIDES:
        raise ConfigError(
            f"option side: {side!r} is neither source nor destination",
            remedy="leave it out for the source",
        )
    if not topic:
        raise ConfigError("option topic is missing", remedy="name a topic of the source")
    if "window" in options:
        return _of_window(name, mirror, options["window"], topic, at_source=side == "source")
    cluster = mirror.nodes[0] if side == "source" else mirror.destination_cluster
    called = Target(topic) if side == "source" else targets([topic], mirror.topics.rename)[topic]
    with ClusterClient(
        cluster, SourceError if side == "source" else DestinationError, "relay-frame"
    ) as client:
        wanted = [
            one
            for one in client.topic(called.topic).topic_partitions
            if called.partition in {None, one.partition}
        ]
        starts = _offsets(client, wanted, "start", options.get("start", "earliest"))
        ends = _offsets(client, wanted, "end", options.get("end", "latest"))
    return [
        _Range(cluster, OffsetRange(at, starts[at], ends[at]))
        for at in wanted
        if ends[at] > starts[at]
    ]


def _mirror(options: Mapping[str, str]) -> tuple[str, Mirror]:
    loaded = settings.load(Path(options.get("config", "relay.yaml")))
    name = options.get("mirror", "")
    if not name and len(loaded.mirrors) > 1:
        raise ConfigError(
            "option mirror is missing", remedy=f"there are {', '.join(loaded.mirrors)}"
        )
    name = name or next(iter(loaded.mirrors))
    return name, loaded.mirror(name)


def _offsets(
    client: ClusterClient, wanted: Sequence[TopicPartition], option: str, text: str
) -> dict[TopicPartition, int]:
    """What an option means for every topic-partition, within what the cluster has."""
    low = client.list_offsets(wanted, EARLIEST, READ_COMMITTED)
    end = client.list_offsets(wanted, LATEST, READ_COMMITTED)
    if text in {"earliest", "latest"}:
        return low if text == "earliest" else end
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if isinstance(given, int):
        found = dict.fromkeys(wanted, given)
    elif isinstance(given, dict):
        missing = low if option == "start" else end
        found = {at: int(given.get(str(at.partition), missing[at])) for at in wanted}
    else:
        found = client.first_offsets(_moment_ms(option, text), end)
    return {at: min(max(offset, low[at]), end[at]) for at, offset in found.items()}


def _moment_ms(option: str, text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError:
        raise ConfigError(
            f"option {option}: {text!r} is no place in a topic",
            remedy='write earliest, latest, 2026-01-31T12:00:00Z, an offset, or {"0": 120}',
        ) from None


def _of_window(name: str, mirror: Mirror, key: str, topic: str, *, at_source: bool) -> list[_Range]:
    follower = LedgerFollower(
        mirror.destination_cluster, name, None, mirror.copy_options, SystemClock()
    )
    try:
        entries = [
            one
            for one in follower.history()
            if one.window == key and one.source.topic_partition.topic == topic
        ]
    finally:
        follower.close()
    if not entries:
        raise ConfigError(
            f"the ledger has nothing of topic {topic!r} in window {key!r}",
            remedy="see `relay ledger`; a window whose offsets were copied with another one has none of its own",
        )
    whole: dict[TopicPartition, OffsetRange] = {}
    for entry in entries:
        one = entry.source if at_source else entry.destination
        before = whole.get(one.topic_partition, one)
        start, end = min(one.start, before.start), max(one.end, before.end)
        whole[one.topic_partition] = OffsetRange(one.topic_partition, start, end)
    cluster = mirror.nodes[0] if at_source else mirror.destination_cluster
    return [_Range(cluster, one) for _, one in sorted(whole.items()) if len(one)]

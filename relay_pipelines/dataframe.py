"""The PySpark data source `relay`: offset ranges of a mirror's clusters, or its ledger.

After `register(spark)`: `spark.read.format("relay").option("mirror", ...).option("topic",
...).load()`, or `readStream`. There is one Spark partition per topic-partition; it yields Arrow
batches with only the columns of the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from relay_pipelines import settings
from relay_pipelines.copy.columns import (
    COLUMNS,
    ColumnBuilder,
    is_log_append_time,
    records_in,
)
from relay_pipelines.errors import (
    ConfigError,
    DestinationError,
    LogTruncatedError,
    RetentionPassedError,
    RetriableError,
    SourceError,
)
from relay_pipelines.garbage import garbage_collection_paused
from relay_pipelines.ledger import checkpoint, ledger_columns, ledger_topic
from relay_pipelines.ledger.accounted import OwnBatches, destination_offsets, source_offsets
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, read_ledger, read_records
from relay_pipelines.model import Cluster, Intervals, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.plan.topic_selection import Target, renamed_target
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import SystemClock, moment_ms
from relay_pipelines.protocol.reader import read
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.spark import package_archive, task_python

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "relay"
_OPTIONS = (
    *("config", "mirror", "topic", "side", "node", "start", "end", "window", "chunks"),
    "includeHeaders",
)
_LEDGER_OPTIONS = ("config", "mirror", "topic", "window")
_STREAM_OPTIONS = (
    *("config", "mirror", "topic", "side", "node", "start", "max_offsets", "includeHeaders"),
)
_SPARK_NAMES = {
    "subscribe": "topic",
    "startingOffsets": "start",
    "endingOffsets": "end",
    "maxOffsetsPerTrigger": "max_offsets",
}
"""What spark-sql-kafka calls options that mean the same."""
_KINDS = ("records", "ledger")
_SIDES = ("source", "destination")
_FETCH_BYTES = 4 << 20


def register(session: Any) -> None:
    """Register the format `relay` with a Spark session, classic or Connect.

    Executors receive the package. Except with Connect, tasks then run `spark.pyspark.python`, else
    PYSPARK_PYTHON, else the Python of this program, by its path.
    """
    context = getattr(session, "sparkContext", None)  # Spark Connect has none
    if context is not None:
        task_python.use_ours(context)
        # Spark refuses a format that the active session has, be it another one, or one that ended
        context._jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001
    package_archive.ship(session)  # a data source knows the files that there were before it
    session.dataSource.register(KafkaRangeDataSource)


class KafkaRangeDataSource(DataSource):  # type: ignore[misc]  # pyspark's types are not published
    """Offset ranges, or the ledger, as a DataFrame.

    Options:
        what: `records` (the default) or `ledger`: the ledger entries of the mirror, optionally of
            one topic or window.
        config: path of relay.yaml; ./relay.yaml by default.
        mirror: the mirror's name; optional if there is only one.
        topic: the name of the source topic.
        side: `source` (the default) or `destination`.
        node: of the source; the first one by default, and of a window the one that was read last.
        start, end: `earliest`, `latest`, a time (2026-01-31T12:00:00Z), an offset, or JSON of
            partition to offset, also within its topic; the whole topic by default. -2 is where a
            log begins, and -1 where it ends.
        window: the key of a Dagster window, instead of start and end: the chunks that the ledger
            has for it.
        chunks: instead of start and end, exactly these chunks of the side: JSON of partition to
            [[start, end], ...], in order. At the destination, without the records of others within
            a chunk, which begins with a record of its own.
        includeHeaders: `true` for the column `headers`; `false` by default, as in spark-sql-kafka.
        max_offsets: of a stream: how many offsets a micro-batch may read; all that is new by
            default.

    The names of spark-sql-kafka for topic, start, end and max_offsets are accepted, too: subscribe,
    startingOffsets, endingOffsets, maxOffsetsPerTrigger.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns without a schema of the user's, which may have any of them."""
        return ", ".join(
            f"{name} {kind}"
            for name, kind in self._columns.items()
            if name != "headers" or _is_true(self.options, "includeHeaders")
        )

    @property
    def _columns(self) -> Mapping[str, str]:
        return ledger_columns.COLUMNS if _kind(self.options) == "ledger" else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        self._check_columns(schema)
        options = _our_names(self.options)
        if _kind(options) == "ledger":
            return _ledger_reader(options, schema.names)
        return _Reader(_ranges(options), schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's
        """Return the stream reader of these columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        self._check_columns(schema)
        if _kind(self.options) == "ledger":
            raise ConfigError(
                "a stream of the format relay has no ledger", remedy="read it with spark.read"
            )
        return _StreamReader(_our_names(self.options), schema.names)

    def _check_columns(self, schema: StructType) -> None:
        refuse_unknown_columns(schema.names, self._columns)
        for field in schema:
            kind, given = self._columns[field.name], field.dataType.simpleString()
            if given != kind.replace(" ", ""):
                raise ConfigError(
                    f"column {field.name} of the format relay is {kind}, and not {given}",
                    remedy="correct the schema, and cast the column afterwards",
                )


def refuse_unknown_columns(wanted: Sequence[str], known: Mapping[str, str]) -> None:
    """Refuse columns that there are not.

    Raises:
        ConfigError: it names the first one, and the nearest one that there is.
    """
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"the format relay has no column {name!r}", remedy=nearest(name, known, "columns")
            )


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


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, ranges: Sequence[Range], columns: Sequence[str]) -> None:
        self._ranges = ranges
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return self._ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):  # Spark passes one empty partition if there are none
            yield from read_range(partition, self._columns)


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


_Offsets = dict[str, int]
"""The next offset to read by partition."""
_Kept = dict[str, Any]
"""The same, with the topic's id, as Spark keeps it in the checkpoint of a query."""
_TOPIC_ID = "topic_id"


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads a topic in micro-batches: `read` in tasks, everything else in the query's process."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str]) -> None:
        _refuse_unknown(options, _STREAM_OPTIONS, "a stream of the format relay")
        self._start = options.get("start", "earliest")
        self._limit = _max_offsets(options)
        self._place = _place(options)
        self._columns = columns
        self._last: _Offsets | None = None

    def initialOffset(self) -> _Kept:  # noqa: N802 - PySpark's name, as all below
        with self._place.client() as client:
            partitions = self._place.topic_partitions(client)
            offsets = _by_partition(_offsets(client, partitions, "start", self._start))
            return offsets | {_TOPIC_ID: self._topic_id(client)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._limit) if self._limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._now()[2]

    def latestOffset(self, start: _Kept, limit: ReadLimit) -> _Kept:  # noqa: N802
        topic_id, low, ends = self._now()
        begun, topic = _without_id(start), self._place.target.topic
        refuse_another_topic(topic, start.get(_TOPIC_ID, ""), topic_id)
        refuse_losses(topic, begun, low, ends)
        begins = {partition: begun.get(partition, low[partition]) for partition in ends}
        wanted = ends if self._last is None else self._last
        limited = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return next_offsets(begins, wanted, limited) | {_TOPIC_ID: topic_id}

    def partitions(self, start: _Kept, end: _Kept) -> Sequence[InputPartition]:
        topic = self._place.target.topic
        return [
            Range(
                self._place.cluster,
                OffsetRange(TopicPartition(topic, int(partition)), start.get(partition, 0), offset),
            )
            for partition, offset in _without_id(end).items()
            if offset > start.get(partition, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            yield from read_range(partition, self._columns)

    def _now(self) -> tuple[str, _Offsets, _Offsets]:
        """The topic's id, and where its partitions begin and end."""
        with self._place.client() as client:
            partitions = self._place.topic_partitions(client)
            low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
            end = client.list_offsets(partitions, LATEST, READ_COMMITTED)
            return self._topic_id(client), _by_partition(low), _by_partition(end)

    def _topic_id(self, client: ClusterClient) -> str:
        return client.topic(self._place.target.topic).topic_id


def _without_id(kept: _Kept) -> _Offsets:
    return {partition: offset for partition, offset in kept.items() if partition != _TOPIC_ID}


def refuse_another_topic(topic: str, known_id: str, topic_id: str) -> None:
    """Refuse to go on in a topic that was created again: its offsets are those of other records.

    Args:
        known_id: of the topic that the stream has read; an id is empty before Kafka 2.8.

    Raises:
        DataLossError: it would skip the first records without a word.
    """
    if known_id and topic_id and known_id != topic_id:
        raise LogTruncatedError(
            f"topic {topic} was created again since the stream has read it",
            remedy="start another query, with a checkpoint folder of its own",
        )


def refuse_losses(topic: str, start: _Offsets, low: _Offsets, ends: _Offsets) -> None:
    """Refuse to go on if the topic no longer has what comes next, or what was read.

    Raises:
        DataLossError: a stream that went on would skip records without a word.
    """
    remedy = "start another query, with a checkpoint folder of its own"
    for partition, offset in start.items():
        tp, end = TopicPartition(topic, int(partition)), ends.get(partition, 0)
        if low.get(partition, 0) > offset:
            raise RetentionPassedError(
                f"offsets {offset} to {low[partition]} are gone: retention deleted them"
                " before the stream has read them",
                remedy=remedy,
                topic_partition=tp,
                offset=offset,
            )
        if end < offset:
            raise LogTruncatedError(
                f"it ends at offset {end}, and the stream has read up to {offset}: the topic was"
                " created again, or has lost records",
                remedy=remedy,
                topic_partition=tp,
                offset=offset,
            )


def next_offsets(begins: _Offsets, ends: _Offsets, limit: int | None) -> _Offsets:
    """Return where a micro-batch ends: each partition gets its part of the limit, or one offset.

    Args:
        begins: where it begins.
        ends: how far it may go; a partition that is not in it stays where it is.
    """
    new = {at: max(0, ends.get(at, begin) - begin) for at, begin in begins.items()}
    total = sum(new.values())
    left = total if limit is None else limit
    found = dict(begins)
    for partition, count in new.items():
        # in proportion to what is left, and never nothing of everything
        share = min(count, left, -(-count * left // total)) if total else 0
        found[partition] += share
        total, left = total - count, left - share
    return found


def _by_partition(offsets: Mapping[TopicPartition, int]) -> _Offsets:
    return {str(tp.partition): offset for tp, offset in sorted(offsets.items())}


def _max_offsets(options: Mapping[str, str]) -> int:
    text = options.get("max_offsets", "0")
    if not text.isdecimal():
        raise ConfigError(
            f"option max_offsets: {text!r} is not a number",
            remedy="write a number such as 1000000, or leave it out for all that is new",
        )
    return int(text)


class _LedgerReader(DataSourceReader):  # type: ignore[misc]
    """Reads ledger entries, those of replays included.

    There is one Spark partition per topic-partition of the ledger.
    """

    def __init__(
        self,
        mirror: str,
        options: Mapping[str, str],
        ranges: Sequence[Range],
        names: Sequence[str],
    ) -> None:
        self._prefixes = checkpoint.key_prefixes(mirror, with_replays=True)
        self._topic, self._window = options.get("topic"), options.get("window")
        self._ranges = ranges
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        return self._ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            return
        with ClusterClient(partition.cluster, DestinationError, purpose="frame") as client:
            for ledger_records in read_records(client, partition.wanted, self._prefixes):
                records = [
                    record
                    for record in ledger_records
                    if self._topic in {None, record.entry.source.topic_partition.topic}
                    and self._window in {None, record.entry.window}
                ]
                if records:
                    yield ledger_columns.arrow_batch(records, self._names)


def _ledger_reader(options: Mapping[str, str], names: Sequence[str]) -> DataSourceReader:
    _refuse_unknown(options, _LEDGER_OPTIONS, "with what=ledger, the format relay")
    name, mirror = _mirror(options)
    cluster, homes = mirror.destination_cluster, checkpoint.homes(ledger_topic.TOPIC)
    ranges = []
    with ClusterClient(cluster, DestinationError, purpose="frame") as client:
        if client.has_topic(ledger_topic.TOPIC):
            starts = client.list_offsets(homes, EARLIEST, READ_COMMITTED)
            ends = client.list_offsets(homes, LATEST, READ_COMMITTED)
            offset_ranges = [OffsetRange(home, starts[home], ends[home]) for home in homes]
            ranges = [Range(cluster, offsets) for offsets in offset_ranges if len(offsets)]
    return _LedgerReader(name, options, ranges, names)


def _kind(options: Mapping[str, str]) -> str:
    kind = options.get("what", "records")
    if kind not in _KINDS:
        raise ConfigError(
            f"option what: {kind!r} is neither records nor ledger",
            remedy="leave it out for records",
        )
    return kind


def _our_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by our names.

    Raises:
        ConfigError: one is given by both names.
    """
    found = dict(options)  # Spark converts option names to lower case, which all of ours are
    for theirs, ours in _SPARK_NAMES.items():
        if (value := found.pop(theirs.lower(), None)) is None:
            continue
        if ours in found:
            raise ConfigError(
                f"options {ours} and {theirs} mean the same", remedy="give one of them"
            )
        found[ours] = value
    return found


def _is_true(options: Mapping[str, str], option: str) -> bool:
    text = options.get(option.lower(), "false")
    if text.lower() not in {"true", "false"}:
        raise ConfigError(f"option {option}: {text!r} is neither true nor false")
    return text.lower() == "true"


def _refuse_unknown(options: Mapping[str, str], known: Sequence[str], subject: str) -> None:
    for key in options:
        if key not in ("what", *map(str.lower, known)):
            raise ConfigError(
                f"{subject} has no option {key!r}", remedy=f"it has {', '.join(known)}, what"
            )


@dataclass(frozen=True, slots=True)
class _Place:
    """A topic of a mirror, on one of its sides."""

    name: str
    mirror: Mirror
    topic: str
    at_source: bool
    node: str = ""

    @property
    def cluster(self) -> Cluster:
        """A node of the source, its first one by default, or the destination."""
        nodes = [node for node in self.mirror.nodes if self.node in {"", node.name}]
        return nodes[0] if self.at_source else self.mirror.destination_cluster

    @property
    def target(self) -> Target:
        """The topic's name on this side."""
        if self.at_source:
            return Target(self.topic)
        return renamed_target(self.topic, self.mirror.topics.rename)

    def client(self) -> ClusterClient:
        """Connect to the cluster."""
        error: type[RetriableError] = SourceError if self.at_source else DestinationError
        return ClusterClient(self.cluster, error, purpose="frame")

    def topic_partitions(self, client: ClusterClient) -> list[TopicPartition]:
        """The partitions of the topic; the pinned one alone if it is pinned."""
        target = self.target
        return [
            topic_partition
            for topic_partition in client.topic(target.topic).topic_partitions
            if target.partition in {None, topic_partition.partition}
        ]


def _place(options: Mapping[str, str]) -> _Place:
    name, mirror = _mirror(options)
    side, topic = options.get("side", "source"), options.get("topic", "")
    if side not in _SIDES:
        raise ConfigError(
            f"option side: {side!r} is neither source nor destination",
            remedy="leave it out for the source",
        )
    if not topic:
        raise ConfigError("option topic is missing", remedy="name a topic of the source")
    if "," in topic:
        raise ConfigError(
            f"option topic: {topic!r} is more than one topic",
            remedy="read each one by itself, and join the DataFrames with `union`",
        )
    node, nodes = options.get("node", ""), [node.name for node in mirror.nodes]
    if node and node not in nodes:
        raise ConfigError(
            f"option node: the source has no node {node!r}",
            remedy=f"name one of source.nodes: {', '.join(nodes)}",
        )
    return _Place(name, mirror, topic, side == "source", node)


def _ranges(options: Mapping[str, str]) -> list[Range]:
    _refuse_unknown(options, _OPTIONS, "the format relay")
    place = _place(options)
    if "window" in options:
        return _window_ranges(place, options["window"])
    if "chunks" in options:
        return _chunk_ranges(place, _given_chunks(options["chunks"]))
    with place.client() as client:
        partitions = place.topic_partitions(client)
        starts = _offsets(client, partitions, "start", options.get("start", "earliest"))
        ends = _offsets(client, partitions, "end", options.get("end", "latest"))
    return [
        Range(place.cluster, OffsetRange(topic_partition, start, end))
        for topic_partition in partitions
        if (end := ends[topic_partition]) > (start := starts[topic_partition])
    ]


def _given_chunks(text: str) -> dict[int, Intervals]:
    try:
        return {
            int(partition): tuple((int(start), int(end)) for start, end in chunks)
            for partition, chunks in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"option chunks: {text!r} is not JSON of partition to offsets",
            remedy='write {"0": [[120, 240], [250, 260]]}',
        ) from None


def _chunk_ranges(place: _Place, chunks: Mapping[int, Intervals]) -> list[Range]:
    """Return what to read: at the destination, where others may write, all chunks at once.

    Raises:
        RetentionPassedError: a chunk is no longer there; each attempt of a task would find it out
            again.
    """
    found = []
    for partition, some in chunks.items():
        tp = TopicPartition(place.target.topic, partition)
        if place.at_source:
            found += [Range(place.cluster, OffsetRange(tp, *offsets)) for offsets in some]
        elif some:
            found.append(Range(place.cluster, OffsetRange(tp, some[0][0], some[-1][1]), some))
    with place.client() as client:
        low = client.list_offsets(
            {each.wanted.topic_partition for each in found}, EARLIEST, READ_COMMITTED
        )
    for offsets in (each.wanted for each in found):
        if offsets.start < low[offsets.topic_partition]:
            raise RetentionPassedError(
                f"{place.cluster.name} no longer has the records before offset"
                f" {low[offsets.topic_partition]}, and the chunks begin at {offsets.start}",
                remedy="retention has deleted them: read later ones, or the other side",
                topic_partition=offsets.topic_partition,
                offset=offsets.start,
            )
    return found


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
    client: ClusterClient, partitions: Sequence[TopicPartition], option: str, text: str
) -> dict[TopicPartition, int]:
    """Return the offset that an option means in every topic-partition, within its log.

    Raises:
        ConfigError: it means none, or one outside the log.
    """
    low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
    end = client.list_offsets(partitions, LATEST, READ_COMMITTED)
    if text in {"earliest", "latest"}:
        return low if text == "earliest" else end
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if type(given) is int:  # `true` is none
        found = dict.fromkeys(partitions, given)
    elif isinstance(given, dict):
        found = _given_offsets(partitions, option, given)
    else:
        times = client.first_offsets(_timestamp_ms(option, text), end)
        return {tp: min(max(offset, low[tp]), end[tp]) for tp, offset in times.items()}
    default = EARLIEST if option == "start" else LATEST
    bounds = {EARLIEST: low, LATEST: end}  # -2 and -1, as spark-sql-kafka writes them, too
    offsets = {tp: found.get(tp, default) for tp in partitions}
    return {
        tp: bounds[offset][tp]
        if offset in bounds
        else _within_log(option, tp, offset, (low[tp], end[tp]))
        for tp, offset in offsets.items()
    }


def _given_offsets(
    partitions: Sequence[TopicPartition], option: str, given: Mapping[str, Any]
) -> dict[TopicPartition, int]:
    """Return the offsets of JSON, of partition to offset or, as spark-sql-kafka has it, by topic.

    Raises:
        ConfigError: a partition or topic is not there, or what it has is no offset.
    """
    if not partitions:  # the pinned one is not there
        return {}
    by_name = {str(tp.partition): tp for tp in partitions}
    topic = partitions[0].topic
    inner = given.get(topic)
    offsets = inner if isinstance(inner, dict) and len(given) == 1 else given
    for name, offset in offsets.items():
        if name not in by_name or type(offset) is not int:
            raise ConfigError(
                f"option {option}: {json.dumps({name: offset})} is not an offset of a partition of"
                f" topic {topic}",
                remedy=f"name some of its partitions {', '.join(by_name)}, as in"
                f' {{"{partitions[0].partition}": 120}}',
            )
    return {by_name[name]: offset for name, offset in offsets.items()}


def _within_log(option: str, tp: TopicPartition, offset: int, log: tuple[int, int]) -> int:
    low, end = log
    if not low <= offset <= end:
        raise ConfigError(
            f"option {option}: {tp} has offsets {low} to {end}, and not {offset}",
            remedy="write earliest or latest (in JSON -2 or -1), or an offset that it has",
        )
    return offset


def _timestamp_ms(option: str, text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError:
        raise ConfigError(
            f"option {option}: {text!r} is not a position in a topic",
            remedy='write earliest, latest, 2026-01-31T12:00:00Z, an offset, or {"0": 120}',
        ) from None


def _window_ranges(place: _Place, key: str) -> list[Range]:
    mirror, topic = place.mirror, place.topic
    entries = window_entries(place.name, mirror, topic, [key])
    if not entries:
        raise ConfigError(
            f"the ledger has no entries of topic {topic!r} in window {key!r}",
            remedy="see `relay ledger`; another window may have copied its offsets",
        )
    last = entries[-1].node
    if not place.node and last in {node.name for node in mirror.nodes}:
        place = replace(place, node=last)
    offsets = source_offsets if place.at_source else destination_offsets
    return _chunk_ranges(place, offsets(entries))


def window_entries(
    name: str, mirror: Mirror, topic: str, windows: Sequence[str]
) -> list[LedgerEntry]:
    """Return the chunks of a topic that were copied in these windows, in order."""
    ledger_records = read_ledger(
        *(mirror.destination_cluster, name, mirror.copy_options, SystemClock()),
        planned_ms(windows),
    )
    return [
        record.entry
        for record in ledger_records
        if record.entry.window in windows
        and record.entry.source.topic_partition.topic == topic
        and not record.entry.gap
    ]


def planned_ms(windows: Sequence[str]) -> int | None:
    """When the first of them was planned at the earliest; None if a key does not say it.

    The ledger grows with the mirror, and a window has no entries from before.
    """
    with suppress(ValueError):
        planned = min(moment_ms(key.rpartition("-")[0]) for key in windows)
        return max(0, planned - CLOCK_SKEW_MS)
    return None

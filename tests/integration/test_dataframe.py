"""The Spark data source `relay`: records of either side as a DataFrame."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.errors import PySparkException

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.dataframe import register
from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.ledger_columns import COLUMNS as LEDGER_COLUMNS
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Status, TopicPartition
from relay_pipelines.output.formatting import format_time
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from relay_pipelines.window_frame import windows_as_frame
from tests.copying import Clusters, Mirror
from tests.support import commands
from tests.support.data_source import reading
from tests.support.independent import CREATE_TIME, Record, create, delete_before, write

NOON_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """Twenty records, one per minute from noon on, of which a window has copied ten."""
    return mirrored(sides, topic_name)


@pytest.fixture(scope="module")
def shared(source_cluster: LocalCluster, destination_cluster: LocalCluster) -> Mirror:
    """The same for tests that only read."""
    sides = source_cluster.cluster(), destination_cluster.cluster()
    return mirrored(sides, f"frame-{uuid.uuid4().hex[:8]}")


def mirrored(sides: Clusters, topic: str) -> Mirror:
    made = Mirror(*sides, topic)
    made.write(
        [
            Record(
                b"k%d" % number,
                None if number == 3 else b"v%d" % number,
                (("n", b"%d" % number),),
                (CREATE_TIME, NOON_MS + number * 60_000),
            )
            for number in range(20)
        ]
    )
    made.copy(0, 10)
    return made


@pytest.fixture
def spark(local_session: Any) -> Any:
    """The shared Spark session with the data source registered."""
    register(local_session)
    return local_session


def streaming(spark: Any, copied: Mirror, folder: Path, **options: str) -> Any:
    """Return a reader of the mirror's topic as a stream."""
    section = commands.mirror(copied.source, copied.destination, copied.topic)
    config = commands.configured(folder, {copied.name: section})
    named = {"config": str(config), "mirror": copied.name, "topic": copied.topic}
    return spark.readStream.format("relay").options(**named | options)


T = TypeVar("T")


def patiently(run: Callable[[], T]) -> T:
    """Run a query that begins again where it was: a busy machine may take too long for a worker.

    Spark gives the Python of a stream's source ten seconds to start.
    """
    for _ in range(3):
        try:
            return run()
        except PySparkException as error:
            if "worker failed to connect back" not in str(error):
                raise
    return run()


def test_every_column_is_read(spark: Any, shared: Mirror, tmp_path: Path) -> None:
    """All columns are as an independent client reads them.

    A schema may name some of them in its own order, and SQL runs over it. A notebook registers once
    more, and with a second session, while the first is active.
    """
    spark.createDataFrame([(1,)], "one int")
    register(spark)
    other = spark.newSession()
    register(other)
    assert other.sparkContext._jvm.SparkSession.active().equals(other._jsparkSession)
    assert reading(spark, shared, tmp_path).load().columns == list(COLUMNS)[:-1]
    frame = reading(other, shared, tmp_path, includeHeaders="true").load()
    rows = frame.orderBy("offset").collect()
    assert [(row.key, row.value, row.offset) for row in rows] == [
        (record.key, record.value, number) for number, record in enumerate(shared.original())
    ]
    assert rows[4].asDict(recursive=True) | {"timestamp": None} == {
        "key": bytearray(b"k4"),
        "value": bytearray(b"v4"),
        "topic": shared.topic,
        "partition": 0,
        "offset": 4,
        "timestamp": None,
        "timestampType": 0,
        "headers": [{"key": "n", "value": bytearray(b"4")}],
    }
    times_ms = [int(row.timestamp.timestamp() * 1000) for row in rows]
    assert times_ms == [NOON_MS + row.offset * 60_000 for row in rows]
    assert list(rows[0].asDict()) == list(COLUMNS)
    frame = reading(spark, shared, tmp_path).schema("value binary, partition int").load()
    assert frame.columns == ["value", "partition"]
    assert frame.where("value like '%1%'").count() == 11
    assert frame.where("value is null").count() == 1


def test_either_side_and_any_range(spark: Any, shared: Mirror, tmp_path: Path) -> None:
    """Offsets, times, windows and parts select the records of either side."""

    def offsets(**options: str) -> list[int]:
        found = reading(spark, shared, tmp_path, **options).schema("offset long").load()
        return sorted(row.offset for row in found.collect())

    assert offsets(side="destination", minPartitions="3") == list(range(10))
    assert offsets(startingTimestamp="2026-01-01T12:17:30Z", minPartitions="2") == [18, 19]
    assert offsets(start="latest") == []
    by_topic = f'{{"{shared.topic}": {{"0": %d}}}}'
    assert offsets(startingOffsets=by_topic % 5, endingOffsets=by_topic % 8) == [5, 6, 7]
    assert offsets(window="a-window") == list(range(10))
    assert offsets(window="a-window", side="destination") == list(range(10))


def test_filters_stay_with_spark(spark: Any, shared: Mirror, tmp_path: Path) -> None:
    """Whether or not a program lets other sources push filters down, all rows are there.

    What one query pushes down, all queries of its DataFrame get in Spark 4.3, see ADR 39.
    """
    enabled = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(enabled, "true")
    try:
        frame = reading(spark, shared, tmp_path).schema("offset long").load()
        few, others = frame.where("offset < 5"), frame.where("offset >= 15")
        assert few.union(others).count() == 10
        assert frame.count() == 20
    finally:
        spark.conf.unset(enabled)


def test_the_windows_of_a_run(spark: Any, mirror: Mirror, tmp_path: Path) -> None:
    """Records say which window has copied them; what others wrote between is left out."""
    now = format_time(SystemClock().now_ms())
    keys = [f"{now}-000", f"{now}-001", "2999-01-01T00:00:00Z-000"]
    for key, end in zip(keys, (14, 17), strict=False):
        if key != keys[0]:
            write(mirror.destination, mirror.at, [Record(b"k", b"of another producer")])
        (done,) = copy_ranges(replace(mirror.job, window=key), [mirror.range(0, end)])
        assert done.status is Status.DONE
    section = commands.mirror(mirror.source, mirror.destination, mirror.topic)
    settings = load(commands.configured(tmp_path, {mirror.name: section})).mirror(mirror.name)

    def rows(*windows: str, columns: Sequence[str] = ("window", "value")) -> list[Any]:
        found = windows_as_frame(spark, mirror.name, settings, mirror.topic, windows, columns)
        return sorted((tuple(row) for row in found.collect()), key=repr)

    values = [record.value for record in mirror.original()]
    later = [(keys[1], value) for value in values[14:17]]
    assert rows(*keys) == [(keys[0], value) for value in values[10:14]] + later
    assert rows(keys[1]) == later
    assert (None, b"k3") in rows("a-window", columns=["value", "key"])
    assert rows(keys[2], columns=()) == [], "another window has copied its offsets"
    assert rows(keys[1], columns=())[0][-1] == keys[1]
    with pytest.raises(ConfigError, match="no column 'vlaue'; did you mean 'value'"):
        rows(keys[0], columns=["vlaue"])

    home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(mirror.name, mirror.at))
    delete_before(mirror.destination, home, 1)
    with pytest.raises(ConfigError, match="the ledger no longer has the time of window '2000-01-"):
        rows(keys[0], "2000-01-01T00:00:00Z-000")


def test_the_ledger(spark: Any, mirror: Mirror, tmp_path: Path) -> None:
    """A row per committed chunk, of all topics or one, of all windows or one."""
    mirror.copy(10)
    settings = commands.mirror(mirror.source, mirror.destination, mirror.topic)
    config = str(commands.configured(tmp_path, {mirror.name: settings}))

    def rows(**options: str) -> list[Any]:
        given = {"config": config, "what": "ledger"} | options
        found = spark.read.format("relay").options(**given).load()
        assert found.columns == list(LEDGER_COLUMNS)
        return sorted(found.collect(), key=lambda row: row.number)

    (first, second), entries = rows(), mirror.entries()
    assert [(row.start, row.end, row.records, row.digest) for row in (first, second)] == [
        (entry.source.start, entry.source.end, entry.records, entry.digest) for entry in entries
    ]
    assert (first.previous, first.previous_at, first.skipped) == ("start", None, {})
    assert (second.previous, second.previous_at) == (first.hash, first.committed_at)
    assert second.hash == mirror.checkpoint().ledger_head.hash
    assert int(second.committed_at.timestamp() * 1000) == entries[1].committed_at_ms
    assert len(rows(topic=mirror.topic, window="a-window")) == 2
    assert rows(topic="other") == rows(window="other") == []


def test_a_stream_of_several_topics_resumes(
    spark: Any, shared: Mirror, tmp_path: Path, topic_name: str
) -> None:
    """What the checkpoint has is not read again; there is no stream of the ledger."""
    create(shared.source, topic_name, 2)

    def write_at(partition: int, count: int) -> None:
        write(shared.source, TopicPartition(topic_name, partition), [Record(b"k", b"v")] * count)

    def read() -> list[tuple[str, int, int]]:
        rows: list[tuple[str, int, int]] = []
        options = {"topic": f"{shared.topic},{topic_name}", "max_offsets": "15"}
        frame = streaming(spark, shared, tmp_path, **options)
        found = frame.schema("topic string, partition int, offset long").load()
        query = found.writeStream.trigger(availableNow=True)
        query.foreachBatch(lambda frame, _: rows.extend(map(tuple, frame.collect())))
        query.option("checkpointLocation", str(tmp_path / "query")).start().awaitTermination(60)
        return sorted(rows)

    write_at(0, 3)
    first = [(shared.topic, 0, offset) for offset in range(20)]
    assert patiently(read) == sorted(first + [(topic_name, 0, offset) for offset in range(3)])
    write_at(0, 1)
    write_at(1, 2)
    assert patiently(read) == [(topic_name, 0, 3), (topic_name, 1, 0), (topic_name, 1, 1)]

    found = streaming(spark, shared, tmp_path, what="ledger").load()
    query = found.writeStream.format("noop").trigger(availableNow=True)
    line = "a stream of the format relay has no ledger; read it with spark.read"
    with pytest.raises(PySparkException, match=line):
        patiently(lambda: query.start().awaitTermination(60))


@pytest.mark.parametrize(
    ("schema", "options", "line"),
    [
        ("", {"subscribed": "a"}, "the format relay has no option 'subscribed'; did you"),
        ("vlaue binary", {}, "the format relay has no column 'vlaue'; did you mean 'value'?"),
        ("timestamp_type int", {}, "no column 'timestamp_type'; did you mean 'timestampType'?"),
        ("offset int", {}, "column offset of the format relay is bigint, and not int; correct the"),
        (
            "headers array<struct<name: string, value: binary>>",
            {},
            "is array<struct<key:string,value:binary>>, and not array<struct<name:string,value:",
        ),
    ],
)
def test_what_is_wrong_is_in_sparks_error(
    spark: Any, shared: Mirror, tmp_path: Path, schema: str, options: dict[str, str], line: str
) -> None:
    frame = reading(spark, shared, tmp_path, **options)
    with pytest.raises(Exception, match=re.escape(line)):
        (frame.schema(schema) if schema else frame).load().count()

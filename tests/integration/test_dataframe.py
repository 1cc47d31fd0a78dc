"""The Spark data source `relay`: records of either side as a DataFrame."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.dataframe import register
from relay_pipelines.dataframe.stream_offsets import next_offsets, refuse_losses
from relay_pipelines.errors import ConfigError, DataLossError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.ledger_columns import COLUMNS as LEDGER_COLUMNS
from relay_pipelines.model import Status, TopicPartition
from relay_pipelines.output.formatting import format_time
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from relay_pipelines.window_frame import windows_as_frame
from tests.copying import Mirror
from tests.integration.spark_driver import ON_LOOPBACK
from tests.support import commands
from tests.support.data_source import reading
from tests.support.independent import CREATE_TIME, Record, create, delete, delete_before, write

NOON_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from relay_pipelines.dataframe import register

spark = eval(sys.argv[1]).getOrCreate()
register(spark)
register(spark)
frame = spark.read.format("relay").options(**eval(sys.argv[2])).load()
print(frame.where("value like '%1%'").count())
spark.stop()
"""


@pytest.fixture
def mirror(source_cluster: Any, destination_cluster: Any, topic_name: str) -> Mirror:
    """Twenty records, one per minute from noon on, of which a window has copied ten."""
    made = Mirror(source_cluster.cluster(), destination_cluster.cluster(), topic_name)
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


def test_a_second_session_registers_it_too(spark: Any) -> None:
    """A notebook registers once more, and with a second session, while the first is active."""
    spark.createDataFrame([(1,)], "one int")
    register(spark)
    other = spark.newSession()
    register(other)
    assert other.sparkContext._jvm.SparkSession.active().equals(other._jsparkSession)


@pytest.mark.parametrize("kind", ["standalone_master", "connect_remote"])
def test_registering_is_all_that_a_cluster_needs(
    mirror: Mirror, kind: str, bare_python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Executors whose Python lacks the package receive it, and run the Python of the setting."""
    address = request.getfixturevalue(kind)
    conf = ON_LOOPBACK | {"spark.pyspark.python": str(bare_python)}
    session = (
        f"SparkSession.builder.remote({address!r})"
        if kind == "connect_remote"
        else f"SparkSession.builder.master({address!r}).config(map={conf})"
    )
    settings = commands.mirror(mirror.source, mirror.destination, mirror.topic)
    config = commands.configured(tmp_path, {mirror.name: settings})
    options = {"config": str(config), "topic": mirror.topic}
    unset = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, session, str(options)],
        cwd=tmp_path,
        env=unset | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "11\n", done.stderr[-3000:]
    assert "has been added already" not in done.stderr


def streaming(spark: Any, copied: Mirror, folder: Path, **options: str) -> Any:
    """Return a reader of the mirror's topic as a stream."""
    settings = commands.mirror(copied.source, copied.destination, copied.topic)
    config = commands.configured(folder, {copied.name: settings})
    return spark.readStream.format("relay").options(
        **{"config": str(config), "mirror": copied.name, "topic": copied.topic} | options
    )


def test_every_column_is_read(spark: Any, mirror: Mirror, tmp_path: Path) -> None:
    """All columns are as an independent client reads them."""
    assert reading(spark, mirror, tmp_path).load().columns == list(COLUMNS)[:-1]
    frame = reading(spark, mirror, tmp_path, includeHeaders="true").load()
    rows = frame.orderBy("offset").collect()
    assert [(row.key, row.value, row.offset) for row in rows] == [
        (record.key, record.value, number) for number, record in enumerate(mirror.original())
    ]
    assert rows[4].asDict(recursive=True) | {"timestamp": None} == {
        "key": bytearray(b"k4"),
        "value": bytearray(b"v4"),
        "topic": mirror.topic,
        "partition": 0,
        "offset": 4,
        "timestamp": None,
        "timestampType": 0,
        "headers": [{"key": "n", "value": bytearray(b"4")}],
    }
    assert {
        int(row.timestamp.timestamp() * 1000) - NOON_MS - row.offset * 60_000 for row in rows
    } == {0}
    assert list(rows[0].asDict()) == list(COLUMNS)


def test_either_side_and_any_range(spark: Any, mirror: Mirror, tmp_path: Path) -> None:
    """Offsets, timestamps and windows select the records of either side."""

    def offsets(**options: str) -> list[int]:
        found = reading(spark, mirror, tmp_path, **options).schema("offset long").load()
        return sorted(row.offset for row in found.collect())

    assert offsets(side="destination") == list(range(10))
    assert offsets(start="5", end="8") == [5, 6, 7]
    assert offsets(start='{"0": 18}') == [18, 19]
    assert offsets(start="2026-01-01T12:17:30Z") == [18, 19]
    assert offsets(end="2026-01-01T12:02:00+00:00") == [0, 1]
    assert offsets(start="latest") == []
    assert offsets(start="-2", end="-1") == list(range(20))
    assert offsets(startingOffsets='{"0": -1}') == []
    by_topic = f'{{"{mirror.topic}": {{"0": %d}}}}'
    assert offsets(startingOffsets=by_topic % 5, endingOffsets=by_topic % 8) == [5, 6, 7]
    assert offsets(startingOffsets="earliest", end="3") == [0, 1, 2]
    assert offsets(window="a-window") == list(range(10))
    assert offsets(window="a-window", side="destination") == list(range(10))


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


def test_only_selected_columns_are_read(spark: Any, mirror: Mirror, tmp_path: Path) -> None:
    """A schema may name some columns in its own order, and SQL runs over it."""
    frame = reading(spark, mirror, tmp_path).schema("value binary, partition int").load()
    assert frame.columns == ["value", "partition"]
    assert frame.where("value like '%1%'").count() == 11
    assert frame.where("value is null").count() == 1


def test_a_stream_stops_at_the_end_and_resumes(spark: Any, mirror: Mirror, tmp_path: Path) -> None:
    """Trigger.AvailableNow reads up to where the topic ends, in batches; the next one goes on."""

    def read(**options: str) -> list[list[int]]:
        """Run the query, and return the offsets of its micro-batches."""
        batches: list[list[int]] = []
        found = streaming(spark, mirror, tmp_path, **options).schema("offset long").load()
        query = (
            found.writeStream.foreachBatch(
                lambda frame, _: batches.append(sorted(row.offset for row in frame.collect()))
            )
            .option("checkpointLocation", str(tmp_path / "query"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        return batches

    numbers = list(range(20))
    assert read(start="3", max_offsets="8") == [numbers[3:11], numbers[11:19], numbers[19:]]
    assert read(maxOffsetsPerTrigger="8") == []
    mirror.write([Record(b"k", b"later")])
    assert read() == [[20]]

    at = TopicPartition(mirror.topic, 0)
    delete_before(mirror.source, at, 21)
    mirror.write([Record(b"k", b"newest")])
    assert read() == [[21]], "what was read may be deleted"
    mirror.write([Record(b"k", b"lost"), Record(b"k", b"kept")])
    delete_before(mirror.source, at, 23)
    with pytest.raises(Exception, match="offsets 22 to 23 are gone: retention deleted them before"):
        read()


def test_a_stream_does_not_go_on_in_a_topic_of_the_same_name(
    spark: Any, mirror: Mirror, tmp_path: Path
) -> None:
    """Its offsets are those of other records, however many it has."""

    def read() -> None:
        found = streaming(spark, mirror, tmp_path).schema("offset long").load()
        query = found.writeStream.format("noop").trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "query")).start().awaitTermination(60)

    read()
    delete(mirror.source, mirror.topic)
    create(mirror.source, mirror.topic, 1)
    mirror.write([Record(b"k", b"%d" % number) for number in range(30)])
    with pytest.raises(Exception, match=f"topic {mirror.topic} was created again since the stream"):
        read()


def test_a_stream_of_the_destination(spark: Any, mirror: Mirror, tmp_path: Path) -> None:
    """It reads what is committed; offsets of transaction markers have no records."""
    found = streaming(spark, mirror, tmp_path, side="destination").load()
    query = found.writeStream.format("memory").queryName("copies").trigger(availableNow=True)
    query.start().awaitTermination(60)
    copies = sorted(spark.table("copies").collect(), key=lambda row: row.offset)
    assert [row.value for row in copies] == [record.value for record in mirror.original()[:10]]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"end": "5"}, "a stream of the format relay has no option 'end'; it has config"),
        ({"what": "ledger"}, "a stream of the format relay has no ledger; read it with spark.read"),
        ({"max_offsets": "many"}, "option max_offsets: 'many' is not a number"),
    ],
)
def test_bad_options_of_a_stream_are_refused(
    spark: Any, mirror: Mirror, tmp_path: Path, options: dict[str, str], line: str
) -> None:
    def said() -> str:
        try:
            found = streaming(spark, mirror, tmp_path, **options).load()
            query = found.writeStream.format("noop").trigger(availableNow=True).start()
            query.awaitTermination(60)
        except PySparkException as refused:
            return str(refused)
        return ""

    # Spark gives its Python worker ten seconds to start, which a busy machine may exceed
    tries = (said() for _ in range(3))
    assert line in next(text for text in tries if "worker failed to connect back" not in text)


@pytest.mark.parametrize(
    ("start", "line"),
    [
        ({"0": 4}, "^t-0 at offset 4: offsets 4 to 5 are gone: retention deleted them before the"),
        (
            {"0": 5, "1": 8},
            "^t-1 at offset 8: it ends at offset 7, and the stream has read up to 8: the",
        ),
        (
            {"0": 5, "2": 1},
            "^t-2 at offset 1: it ends at offset 0, and the stream has read up to 1: the",
        ),
    ],
)
def test_a_stream_refuses_to_skip_records(start: dict[str, int], line: str) -> None:
    """It stops instead of guessing; what is still there may be read to the end."""
    refuse_losses("t", {"0": 5, "1": 7}, {"0": 5, "1": 0}, {"0": 9, "1": 7})
    with pytest.raises(DataLossError, match=line):
        refuse_losses("t", start, {"0": 5, "1": 0}, {"0": 9, "1": 7})


@pytest.mark.parametrize(
    ("begins", "ends", "limit", "found"),
    [
        ({"0": 5, "1": 7}, {"0": 9, "1": 7}, None, {"0": 9, "1": 7}),
        ({"0": 0, "1": 0}, {"0": 90, "1": 10}, 10, {"0": 9, "1": 1}),
        ({"0": 0, "1": 0, "2": 0}, {"0": 5, "1": 5, "2": 5}, 1, {"0": 1, "1": 0, "2": 0}),
        ({"0": 5, "1": 0}, {"0": 5, "1": 5}, 1, {"0": 5, "1": 1}),
        ({"0": 0, "1": 3}, {"0": 5}, 100, {"0": 5, "1": 3}),
        ({"0": 8}, {"0": 5}, None, {"0": 8}),
        ({}, {}, 5, {}),
    ],
    ids=["all", "in proportion", "few", "one is done", "a new one", "ends before", "none"],
)
def test_where_a_micro_batch_ends(begins, ends, limit, found) -> None:
    """It keeps to the limit, goes on while anything is left, and never goes back."""
    assert next_offsets(begins, ends, limit) == found


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"side": "left"}, "option side: 'left' is neither source nor destination"),
        ({"topic": ""}, "option topic is missing; name a topic of the source"),
        ({"mirror": "nobody"}, "no mirror is called 'nobody'"),
        ({"start": "noon"}, "option start: 'noon' is not a position in a topic; write earliest"),
        (
            {"start": "0", "end": "999"},
            r"option end: \S+-0 has offsets 0 to 20, and not 999; write",
        ),
        ({"start": '{"0": -3}'}, r"option start: \S+-0 has offsets 0 to 20, and not -3; write"),
        ({"startingOffsets": '{"7": 1}'}, 'option start: {"7": 1} is not an offset of a partition'),
        ({"start": '{"0": "x"}'}, 'option start: {"0": "x"} is not an offset of a partition'),
        ({"end": "5", "endingOffsets": "5"}, "options end and endingOffsets mean the same; give"),
        ({"topic": "a,b"}, "option topic: 'a,b' is more than one topic; read each one by itself"),
        ({"window": "w"}, "the ledger has no entries of topic"),
        ({"began": "1"}, "the format relay has no option 'began'; it has config"),
        ({"includeHeaders": "1"}, "option includeHeaders: '1' is neither true nor false"),
        ({"what": "all"}, "option what: 'all' is neither records nor ledger"),
        ({"what": "ledger", "side": "source"}, "with what=ledger, the format relay has no option"),
    ],
)
def test_bad_options_are_refused(
    spark: Any, mirror: Mirror, tmp_path: Path, options: dict[str, str], line: str
) -> None:
    """Spark's error contains the line that says what is wrong."""
    with pytest.raises(Exception, match=line):
        reading(spark, mirror, tmp_path, **options).load().count()


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ("vlaue binary", "the format relay has no column 'vlaue'; did you mean 'value'?"),
        ("timestamp_type int", "no column 'timestamp_type'; did you mean 'timestampType'?"),
        ("offset int", "column offset of the format relay is bigint, and not int; correct the"),
        (
            "headers array<struct<name: string, value: binary>>",
            "is array<struct<key:string,value:binary>>, and not array<struct<name:string,value:",
        ),
    ],
)
def test_a_column_that_is_none(
    spark: Any, mirror: Mirror, tmp_path: Path, schema: str, line: str
) -> None:
    with pytest.raises(Exception, match=re.escape(line)):
        reading(spark, mirror, tmp_path).schema(schema).load().count()

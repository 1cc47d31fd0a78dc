"""The Spark data source `relay`: which offsets it reads, in which parts, and as a DataFrame."""

import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.dataframe import register
from relay_pipelines.dataframe.option_names import our_names
from relay_pipelines.dataframe.stream_reader import StreamReader
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.ledger_columns import COLUMNS as LEDGER_COLUMNS
from relay_pipelines.ledger.verified import read_verified_ledger
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, Status, TopicPartition
from relay_pipelines.output.formatting import format_time
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from relay_pipelines.window_frame import windows_as_frame
from tests.copying import KEPT, Clusters, Mirror, write_transaction
from tests.support import commands, independent
from tests.support.data_source import Query, offset_ranges, offsets_in, patiently, planned, reading
from tests.support.independent import (
    CREATE_TIME,
    Record,
    create,
    delete,
    delete_before,
    read,
    write,
)

NOON_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z


def at_minutes(*minutes: int) -> list[Record]:
    """Records of some minutes after noon."""
    return [
        Record(b"k", b"%d" % m, (), (independent.CREATE_TIME, NOON_MS + m * 60_000))
        for m in minutes
    ]


@dataclass
class Topics:
    """Topics of a mirror, of which `private` is denied, and copies of the first partitions."""

    source: Cluster
    destination: Cluster
    folder: Path
    name: str = field(default_factory=lambda: f"f{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        create(self.source, self.named("orders"), 2, KEPT)
        write(self.source, TopicPartition(self.named("orders"), 0), at_minutes(*range(20)))
        write(self.source, TopicPartition(self.named("orders"), 1), at_minutes(*range(10)))
        create(self.source, self.named("private"), 1, KEPT)
        write(self.source, TopicPartition(self.named("private"), 0), at_minutes(1))
        for topic, minutes in (("orders", ()), ("payments", (30, 10, 20, 40, 10))):
            copied = Mirror(
                self.source,
                self.destination,
                self.named(topic),
                to=TopicPartition(self.copy(topic), 0),
                name=self.name,
            )
            if minutes:
                copied.write(at_minutes(*minutes))
            copied.copy()
        self.config = self.configured(rename="copy.{topic}")

    def named(self, topic: str) -> str:
        return f"{self.name}.{topic}"

    def copy(self, topic: str) -> str:
        """The name at the destination."""
        return f"copy.{self.name}.{topic}"

    def configured(self, **topics: Any) -> Path:
        """Write relay.yaml with some keys of `topics`."""
        section = commands.mirror(
            *(self.source, self.destination, rf"{self.name}\..*"),
            topics={"deny": [r".*\.private"]} | topics,
        )
        return commands.configured(self.folder, {self.name: section})

    def ranges(self, **options: str) -> dict[str, tuple[int, int]]:
        """Return offsets by topic-partition; `$` in an option is the prefix of the topics."""
        filled = {key: value.replace("$", f"{self.name}.") for key, value in options.items()}
        found = offset_ranges(planned(self.config, **filled))
        assert len({each.topic_partition for each in found}) == len(found)
        return {
            str(each.topic_partition).replace(f"{self.name}.", ""): (each.start, each.end)
            for each in found
        }


@pytest.fixture(scope="module")
def topics(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Topics:
    """For tests that only read."""
    clusters = source_cluster.cluster(), destination_cluster.cluster()
    return Topics(*clusters, tmp_path_factory.mktemp("topics"))


ORDERS = {"orders-0": (0, 20), "orders-1": (0, 10)}
PAYMENTS = {"payments-0": (0, 5)}


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({"topic": "$orders"}, ORDERS),
        ({"subscribe": "$orders, $payments,$orders"}, ORDERS | PAYMENTS),
        ({"subscribe": "$private,$payments"}, PAYMENTS | {"private-0": (0, 1)}),
        ({"subscribePattern": ".*"}, ORDERS | PAYMENTS),
        ({"subscribePattern": r"f.*\.(orders|private)"}, ORDERS),
        ({"assign": '{"$payments": [0], "$orders": [1, 1]}'}, {"orders-1": (0, 10)} | PAYMENTS),
    ],
)
def test_topics_of_the_source(
    topics: Topics, options: dict[str, str], ranges: dict[str, tuple[int, int]]
) -> None:
    """A list, a pattern over what the mirror copies, or partitions."""
    assert topics.ranges(**options) == ranges


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({"subscribe": "$orders,$payments"}, ["copy.orders-0", "copy.payments-0"]),
        ({"subscribePattern": r"f.*\.pay.*"}, ["copy.payments-0"]),
        ({"assign": '{"$orders": [0]}'}, ["copy.orders-0"]),
        ({"topic": "$orders", "start": '{"$orders": {"0": 2}}'}, ["copy.orders-0"]),
    ],
)
def test_topics_of_the_destination(
    topics: Topics, options: dict[str, str], copies: list[str]
) -> None:
    """Options have the names at the source; a pattern is of what the mirror has copied."""
    assert list(topics.ranges(side="destination", **options)) == copies


def test_where_copies_are_read(topics: Topics) -> None:
    """Where a window was copied to, by another name now; a partition that topics share, once."""
    renamed = topics.configured(rename="now.{topic}")
    subscribed = f"{topics.named('orders')},{topics.named('payments')}"
    options = {"side": "destination", "subscribe": subscribed, "window": "a-window"}
    ranges = planned(renamed, **options)
    assert [each.topic_partition.topic for each in offset_ranges(ranges)] == [
        topics.copy("orders"),
        topics.copy("payments"),
    ]
    assert len(offsets_in(ranges)) == 25
    shared = f"all.{topics.name}"
    create(topics.destination, shared, 2, KEPT)
    write(topics.destination, TopicPartition(shared, 1), at_minutes(1, 2))
    names = topics.named("orders"), topics.named("payments")
    config = topics.configured(rename=dict.fromkeys(names, f"{shared}:1"))
    (only,) = planned(config, side="destination", subscribe=",".join(names))
    assert only.offset_range.topic_partition == TopicPartition(shared, 1)


BOTH = {"subscribe": "$orders,$payments"}


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        (
            {
                "startingOffsets": '{"$orders": {"0": 5, "1": -1}, "$payments": {"0": -2}}',
                "endingOffsets": '{"$orders": {"0": 8}}',
            },
            {"orders-0": (5, 8), "payments-0": (0, 5)},
        ),
        ({"start": "earliest", "end": '{"$payments": {"0": 1}}'}, ORDERS | {"payments-0": (0, 1)}),
        (
            {"startingTimestamp": str(NOON_MS + 9 * 60_000)},
            {"orders-0": (9, 20), "orders-1": (9, 10), "payments-0": (0, 5)},
        ),
        (
            {"startingTimestamp": "2026-01-01T12:05:00Z", "endingTimestamp": "2026-01-01T12:31Z"},
            {"orders-0": (5, 20), "orders-1": (5, 10), "payments-0": (0, 3)},
        ),
        ({"start": "2026-01-01T12:15:00Z"}, {"orders-0": (15, 20), "payments-0": (0, 5)}),
    ],
)
def test_where_reading_begins_and_ends(
    topics: Topics, options: dict[str, str], ranges: dict[str, tuple[int, int]]
) -> None:
    """By topic and partition, and by time: the first record that is not older."""
    assert topics.ranges(**BOTH, **options) == ranges


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_what_is_before_a_time_is_older(topics: Topics, kind: str, topic_name: str) -> None:
    """Whatever the order of timestamps: a broker finds the first record that is not older."""
    at = TopicPartition(topic_name, 0)
    dense = {"index.interval.bytes": "1", "message.timestamp.type": kind}
    create(topics.source, topic_name, 1, KEPT | dense)
    chosen = random.Random(5)
    batches = [at_minutes(*(chosen.randrange(60) for _ in range(3))) for _ in range(25)]
    write(topics.source, at, *batches)
    times = [record.timestamp[1] for _, record in read(topics.source, at)]
    assert (times == sorted(times)) == (kind == "LogAppendTime")
    for ms in {time + delta for time in times for delta in (0, 1)}:
        expected = next((n for n, time in enumerate(times) if time >= ms), len(times))
        found = offset_ranges(planned(topics.config, topic=topic_name, endingTimestamp=str(ms)))
        assert ([each.end for each in found if each] or [0]) == [expected]


def test_parts_have_every_record_once(topics: Topics, topic_name: str) -> None:
    """Cuts go through batches, transactions that were aborted, and their markers."""
    at = TopicPartition(topic_name, 0)
    create(topics.source, topic_name, 1, KEPT)
    for number in range(6):
        write_transaction(topics.source, at, at_minutes(*range(7)), commit=number % 2 == 0)
    write(topics.source, at, at_minutes(*range(10)))
    expected = [offset for offset, _ in read(topics.source, at)]
    assert len(expected) == 31
    for parts in (1, 2, 5, 13, 58, 1000):
        ranges = planned(topics.config, topic=topic_name, minPartitions=str(parts))
        assert len(ranges) == min(parts, 58)
        assert offsets_in(ranges) == expected


def test_a_stream_of_several_topics(topics: Topics, topic_name: str) -> None:
    """Topics and partitions that are new are read from their beginning, and nothing twice."""
    prefix = f"{topics.name}.{topic_name}"
    names = [f"{prefix}-{number}" for number in range(3)]
    for name in names[:2]:
        create(topics.source, name, 1, KEPT)
        write(topics.source, TopicPartition(name, 0), at_minutes(*range(6)))
    options = {"subscribePattern": f"{prefix}-.", "maxOffsetsPerTrigger": "8", "minPartitions": "4"}
    query = Query(topics.config, **options)
    batches = list(query.batches())
    assert len(batches[0]) == 4
    assert [sum(map(len, batch)) for batch in batches] == [8, 4]

    create(topics.source, names[2], 1, KEPT)
    write(topics.source, TopicPartition(names[2], 0), at_minutes(1, 2, 3))
    delete_before(topics.source, TopicPartition(names[2], 0), 1)
    again = Query(topics.config, query.kept, **options)
    start = again.kept
    (batch,) = list(again.batches())
    assert [(part.start, part.end) for part in batch] == [(1, 2), (2, 3)]
    delete_before(topics.source, TopicPartition(names[2], 0), 2)
    assert offset_ranges(again.ranges(start, again.kept)) == batch, "run again, it is the same one"

    fewer = options | {"subscribePattern": f"{prefix}-[12]"}
    with pytest.raises(RelayError, match="-0-0 at offset 6: it is not among the topics any more"):
        list(Query(topics.config, again.kept, **fewer).batches())
    delete(topics.source, names[1])
    with pytest.raises(RelayError, match="-1-0 at offset 6: it is not among the topics any more"):
        list(Query(topics.config, again.kept, **options).batches())


def test_a_stream_that_stops_leaves_new_topics_to_the_next(topics: Topics, topic_name: str) -> None:
    """It reads nothing that came after it has begun."""
    prefix = f"{topics.name}.{topic_name}"
    first, second = f"{prefix}-1", f"{prefix}-2"
    create(topics.source, first, 1, KEPT)
    write(topics.source, TopicPartition(first, 0), at_minutes(1))
    query = Query(topics.config, subscribePattern=f"{prefix}.*")
    query.stop_at_the_end()
    create(topics.source, second, 1, KEPT)
    for name in (first, second):
        write(topics.source, TopicPartition(name, 0), at_minutes(2))
    assert [sum(map(len, batch)) for batch in query.batches()] == [1]
    following = Query(topics.config, query.kept, subscribePattern=f"{prefix}.*")
    assert [sum(map(len, batch)) for batch in following.batches()] == [2]


def test_a_batch_of_a_stream_is_run_again(topics: Topics, topic_name: str) -> None:
    """It has the same records, or is refused, where its topic was created again."""
    at = TopicPartition(topic_name, 0)
    create(topics.source, topic_name, 1, KEPT)
    write(topics.source, at, at_minutes(1, 2))
    options = {"topic": topic_name, "startingOffsets": "latest"}
    query = Query(topics.config, **options)
    write(topics.source, at, at_minutes(3, 4, 5))
    (batch,) = query.batches()
    write(topics.source, at, at_minutes(6))
    again = Query(topics.config, **options)
    begun = again.kept
    assert offset_ranges(again.ranges(begun, query.kept)) == batch
    assert [(each.start, each.end) for each in batch] == [(2, 5)]

    following = Query(topics.config, query.kept, topic=topic_name)
    assert offset_ranges(following.ranges(begun, query.kept)) == batch
    delete(topics.source, topic_name)
    create(topics.source, topic_name, 1, KEPT)
    write(topics.source, at, at_minutes(*range(6)))
    with pytest.raises(RelayError, match="was created again since the stream has read it"):
        following.ranges(begun, query.kept)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"side": "sauce"}, "option side: 'sauce' is neither source nor destination; did you mean"),
        (
            {"upstream": "ones"},
            "option upstream: the source has no upstream 'ones'; did you mean 'one'?",
        ),
        ({"topic": ""}, "option topic is missing; name topics of the source"),
        ({"topic": " ,"}, "option topic is missing; name topics of the source"),
        ({"mirror": "nobody"}, "no mirror is called 'nobody'"),
        ({"assign": "{}"}, "options topic and assign exclude each other; give one of them"),
        ({"start": "noon"}, "option start: 'noon' is not earliest, latest, a time, an offset, or"),
        ({"start": "1969-12-31T23:59:59.999Z"}, "is not a time since 1970; write earliest, lat"),
        ({"start": "0", "end": "999"}, "orders-0 has offsets 0 to 20, and not 999; write"),
        ({"start": '{"0": -3}'}, "orders-0 has offsets 0 to 20, and not -3; write earliest"),
        ({"startingOffsets": '{"7": 1}'}, 'option start: {"7": 1} is not of a partition of topic'),
        ({"start": '{"0": "x"}'}, 'option start: {"0": "x"} is not an offset; write earliest, la'),
        ({"start": '{"$order": {"0": 1}}'}, "is not one of the topics that are read; did you mea"),
        ({"start": '{"$orders": 1}'}, ": 1} is not of a partition of topic"),
        ({"startingTimestamp": "noon"}, "'noon' is not a time; write 2026-01-31T12:00:00Z, or mi"),
        ({"startingTimestamp": "-1"}, "option startingTimestamp: '-1' is not a time since 1970"),
        (
            {"startingTimestamp": "2026-01-01T12:15:00Z"},
            "orders-1 has no record at or after 2026-01-01 12:15:00+00:00; write an earlier time",
        ),
        ({"startingTimestamp": "1", "start": "1"}, "options start and startingTimestamp exclude"),
        ({"window": "w", "end": "1"}, "options window and end exclude each other"),
        ({"window": "w"}, "the ledger has no entries of topic"),
        ({"chunks": "[]"}, "option chunks: '[]' is not JSON of partition to offsets"),
        ({"chunks": '{"0": [[5, 9], [8, 10]]}'}, "is not JSON of partition to offsets in order"),
        ({"minPartitions": "0"}, "option minPartitions: '0' is not a number above 0; write a num"),
        ({"began": "1"}, "the format relay has no option 'began'; valid options: assign, chunks"),
        # a name of the destination may be another topic's name at the source
        (
            {"side": "destination", "start": '{"copy.$orders": {"0": 2}}'},
            "is not one of the topics that are read",
        ),
        # without the usual topic
        ({"topic": None, "assign": '{"$orders": [2]}'}, "has no partition 2; name some of 0, 1"),
        ({"topic": None, "assign": '{"$orders": 0}'}, "is not JSON of topic to partitions; write"),
        ({"topic": None, "subscribePattern": r"f.*\.order"}, "Pattern matches no topic of mirror"),
        ({"topic": None, "subscribePattern": ".*", "window": "w"}, "window is of whole topics; na"),
        ({"topic": None, "subscribe": "a,b", "chunks": "{}"}, "chunks is of one topic; name it in"),
    ],
)
def test_bad_options_are_refused(topics: Topics, options: dict[str, Any], line: str) -> None:
    """One line says what is wrong, and what is right."""
    given = {"topic": "$orders"} | options
    with pytest.raises(RelayError, match=re.escape(line)):
        topics.ranges(**{key: value for key, value in given.items() if value is not None})


def test_bad_options_of_a_stream_are_refused(topics: Topics) -> None:
    given = {"config": str(topics.config), "topic": topics.named("orders")}
    for option, value, line in (
        ("end", "5", "a stream of the format relay has no option 'end'; leave it out; valid"),
        ("max_offsets", "many", "option max_offsets: 'many' is not a number above 0"),
    ):
        with pytest.raises(ConfigError, match=line):
            StreamReader(our_names(given | {option: value}), ["offset"])


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


def test_every_column_is_read(spark: Any, shared: Mirror, tmp_path: Path) -> None:
    """As an independent client reads them, or some, in any order; a program may register again."""
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


def test_filters_stay_with_spark(spark: Any, shared: Mirror, tmp_path: Path) -> None:
    """All rows are there, whether or not a program lets sources push filters down (ADR 39)."""
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
    sides = Sides(mirror.name, settings)

    def rows(*keys: str, columns: Sequence[str] = ("window", "value")) -> list[Any]:
        windows = [FrozenWindow(key, ()) for key in keys]
        found = windows_as_frame(spark, sides, mirror.topic, windows, columns)
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
    *_, last = read_verified_ledger(sides).chains[mirror.at].records
    delete_before(mirror.destination, home, last.offset)
    with pytest.raises(ConfigError, match=f"the ledger no longer has the time of window '{now}-"):
        rows(keys[0])


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

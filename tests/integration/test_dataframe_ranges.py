"""Which offsets the data source reads, and in which parts: real clusters, and no Spark."""

from __future__ import annotations

import json
import random
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.dataframe.option_names import our_names
from relay_pipelines.dataframe.stream_reader import StreamReader
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from tests.copying import KEPT, Mirror
from tests.support import commands, independent
from tests.support.data_source import Query, offset_ranges, offsets_in, planned
from tests.support.independent import Record, create, delete, delete_before, put, read, write

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
        """The name at the source."""
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


def test_a_window_is_read_where_it_was_copied_to(topics: Topics) -> None:
    """Of several topics, also if topics.rename has changed since."""
    renamed = topics.configured(rename="now.{topic}")
    subscribed = f"{topics.named('orders')},{topics.named('payments')}"
    options = {"side": "destination", "subscribe": subscribed, "window": "a-window"}
    ranges = planned(renamed, **options)
    assert [each.topic_partition.topic for each in offset_ranges(ranges)] == [
        topics.copy("orders"),
        topics.copy("payments"),
    ]
    assert len(offsets_in(ranges)) == 25


def test_topics_that_share_a_partition_are_read_once(topics: Topics) -> None:
    """Both are pinned to it: its records are there once, whatever is subscribed to."""
    shared = f"all.{topics.name}"
    create(topics.destination, shared, 2, KEPT)
    write(topics.destination, TopicPartition(shared, 1), at_minutes(1, 2))
    names = topics.named("orders"), topics.named("payments")
    config = topics.configured(rename=dict.fromkeys(names, f"{shared}:1"))
    (only,) = planned(config, side="destination", subscribe=",".join(names))
    assert only.wanted.topic_partition == TopicPartition(shared, 1)


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
        (
            {
                "startingTimestamp": "2026-01-01T12:15:00Z",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            {"orders-0": (15, 20), "payments-0": (0, 5)},
        ),
        (
            {
                "startingOffsetsByTimestamp": json.dumps({"$payments": {"0": NOON_MS + 2_400_000}}),
                "endingOffsetsByTimestamp": json.dumps(
                    {"$orders": {"0": NOON_MS + 120_000, "1": NOON_MS * 2}}
                ),
            },
            {"orders-0": (0, 2), "orders-1": (0, 10), "payments-0": (3, 5)},
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
    sender = independent.transactional(topics.source, topic_name)
    for number in range(6):
        sender.begin_transaction()
        put(sender, at, at_minutes(*range(7)))
        sender.flush()  # what has not been sent, an abort would forget
        (sender.abort_transaction if number % 2 else sender.commit_transaction)()
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
    """Spark asks again where a query begins that has failed in its first batch.

    In a topic that was created again, its offsets are those of other records.
    """
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
        ({"node": "ones"}, "option node: the source has no node 'ones'; did you mean 'one'?"),
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
        ({"startingOffsetsByTimestamp": "1"}, 'is not JSON by topic and partition; write {"'),
        (
            {"startingOffsetsByTimestampStrategy": "latst"},
            "'latst' is neither error nor latest; did you mean 'latest'?",
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
    ],
)
def test_bad_options_are_refused(topics: Topics, options: dict[str, str], line: str) -> None:
    """One line says what is wrong, and what is right."""
    with pytest.raises(RelayError, match=re.escape(line)):
        topics.ranges(**{"topic": "$orders"} | options)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"assign": '{"$orders": [2]}'}, "has no partition 2; name some of 0, 1"),
        ({"assign": '{"$orders": 0}'}, "is not JSON of topic to partitions; write {"),
        ({"subscribePattern": r"f.*\.order"}, "option subscribePattern matches no topic of mirror"),
        ({"subscribePattern": ".*", "window": "w"}, "option window is of whole topics; name them"),
        ({"subscribe": "a,b", "chunks": "{}"}, "option chunks is of one topic; name it in the"),
    ],
)
def test_bad_topics_are_refused(topics: Topics, options: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)):
        topics.ranges(**options)


def test_bad_options_of_a_stream_are_refused(topics: Topics) -> None:
    given = {"config": str(topics.config), "topic": topics.named("orders")}
    for option, value, line in (
        ("end", "5", "a stream of the format relay has no option 'end'; leave it out; valid"),
        ("max_offsets", "many", "option max_offsets: 'many' is not a number above 0"),
    ):
        with pytest.raises(ConfigError, match=line):
            StreamReader(our_names(given | {option: value}), ["offset"])

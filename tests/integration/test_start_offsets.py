"""Where a new topic starts: at a timestamp, at offsets, or at a consumer group's offsets."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from relay_pipelines.errors import ConfigError
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from tests.copying import KEPT, Clusters, ensure_homes
from tests.support import commands
from tests.support.independent import CREATE_TIME, Record, client, create, read, write
from tests.support.planned_copy import copy_planned, prepared

CLOCK = SystemClock()
NOON_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z


class Begun:
    """Two topic-partitions with ten records each, one a minute; the second begins an hour later."""

    def __init__(self, source: Cluster, destination: Cluster, topic: str) -> None:
        self.source, self.destination, self.topic = source, destination, topic
        create(source, topic, 2, KEPT)
        create(destination, f"copy.{topic}", 2, KEPT)
        ensure_homes(destination)
        for partition, hour in ((0, 0), (1, 1)):
            self.write(partition, NOON_MS + hour * 3_600_000, 10)

    def write(self, partition: int, from_ms: int, count: int) -> None:
        records = [
            Record(None, b"%d" % number, timestamp=(CREATE_TIME, from_ms + number * 60_000))
            for number in range(count)
        ]
        write(self.source, TopicPartition(self.topic, partition), records)

    def mirror(self, start: Any) -> Mirror:
        rename = {"rename": "copy.{topic}"}
        return Mirror.model_validate(
            commands.mirror(
                self.source, self.destination, self.topic, node="only", topics=rename, start=start
            )
        )

    def copy(self, start: Any) -> list[int]:
        """Copy what is new; return the start offset of each range, or -1."""
        taken = prepared(f"start-{self.topic[-8:]}", self.mirror(start))
        new = [each.source for each in copy_planned(taken)]
        begun = {each.topic_partition.partition: each.start for each in new}
        return [begun.get(partition, -1) for partition in range(2)]

    def arrived(self, partition: int) -> int:
        return len(read(self.destination, TopicPartition(f"copy.{self.topic}", partition)))


@pytest.fixture
def begun(sides: Clusters, topic_name: str) -> Begun:
    return Begun(*sides, topic_name)


@pytest.mark.parametrize(
    ("moment", "begins"),
    [
        ("2026-01-01T12:04:30Z", [5, 0]),
        ("2026-01-01T14:05:00+01:00", [-1, 5]),
        ("2026-01-01", [0, 0]),
        ("2027-01-01", [-1, -1]),
    ],
    ids=["within", "behind one", "before all", "behind all"],
)
def test_start_at_a_timestamp(begun: Begun, moment: str, begins: list[int]) -> None:
    """The copy starts at the first record that is not older; if there is none, at the end."""
    start = {"timestamp": moment}
    assert begun.copy(start) == begins
    arrived = [10 - offset if offset >= 0 else 0 for offset in begins]
    assert [begun.arrived(partition) for partition in range(2)] == arrived
    begun.write(0, NOON_MS, 1)
    assert begun.copy(start) == [10, -1], "what comes later is not looked up by its time"
    assert begun.arrived(0) == arrived[0] + 1


def test_start_at_offsets(begun: Begun) -> None:
    """Partitions without an offset start at the earliest; an offset out of range is an error."""
    with pytest.raises(
        ConfigError,
        match=rf"start.offsets: {begun.topic}-1 ends at 10 on only, before 11; give an offset",
    ):
        begun.copy({"offsets": {f"{begun.topic}-1": 11}})
    assert begun.copy({"offsets": {f"{begun.topic}-1": 7, "another-3": 5}}) == [0, 7]
    assert (begun.arrived(0), begun.arrived(1)) == (10, 3)


def test_start_at_a_consumer_group(begun: Begun) -> None:
    """Partitions without a commit start at the earliest; a group without commits is an error."""
    group = f"group-{begun.topic}"
    with pytest.raises(ConfigError, match="has committed no offset of the mirrored topics on only"):
        begun.copy({"group": group})
    consumer = Consumer(client(begun.source) | {"group.id": group})
    consumer.commit(offsets=[KafkaTopicPartition(begun.topic, 1, 4)], asynchronous=False)
    consumer.close()
    assert begun.copy({"group": group}) == [0, 4]
    assert (begun.arrived(0), begun.arrived(1)) == (10, 6)

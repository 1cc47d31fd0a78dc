"""Ten topics that share a transaction: their ranges, and what a task makes of them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from relay_pipelines import model
from relay_pipelines.copy import task
from relay_pipelines.model import Cluster, CopyOptions, CopyRange, Outcome, Status, TopicPartition
from tests.support.fake_cluster import FakeCluster
from tests.support.filled import AT_ONCE, Clock

OWNER = "relay.m./1"
TOPICS = "abcdefghij"
RECORDS = 20
SOURCE, DESTINATION = Cluster("source", ("fake:1",)), Cluster("destination", ("fake:2",))
OTHER = Cluster("other", ("fake:3",))
OPTIONS = replace(AT_ONCE, chunk_bytes=6_000, fetch_max_bytes=900, give_up_after_ms=200)
IMPATIENT = replace(OPTIONS, give_up_after_ms=300, chunk_bytes=1 << 20)


def ranges(
    topics: Iterable[str] = TOPICS, owner: str = OWNER, end: int = RECORDS, **changed: Any
) -> list[CopyRange]:
    places = [TopicPartition(topic, 0) for topic in topics]
    return [CopyRange(model.OffsetRange(at, 0, end), at, owner=owner, **changed) for at in places]


def copy(
    wanted: list[CopyRange], options: CopyOptions = IMPATIENT, clock: Any = None, **job: Any
) -> dict[str, Outcome]:
    """Copy in one task; `job` may have other upstreams. Return the outcomes by topic."""
    made = model.CopyJob("m", "run", job.pop("upstream", SOURCE), DESTINATION, options, **job)
    found = list(task.copy_ranges(made, wanted, clock or Clock()))
    return {outcome.range.topic_partition.topic: outcome for outcome in found}


def copied(copies: FakeCluster, topic: str) -> list[bytes]:
    return [record.value for record in copies.logs[topic].committed()]


def done(outcomes: dict[str, Outcome]) -> set[str]:
    return {topic for topic, outcome in outcomes.items() if outcome.status is Status.DONE}


class TwoBrokers(FakeCluster):
    """A cluster with a second broker, which leads some topics."""

    led_by_second = ""
    second = "down"

    def _metadata(self, asked: Any) -> Any:
        answer = super()._metadata(asked)
        answer["brokers"].append({"node_id": 2, "host": self.second, "port": 1})
        for topic in answer["topics"]:
            for partition in topic["partitions"]:
                if topic["name"] in self.led_by_second:
                    partition["leader_id"] = 2
        return answer


class SteppedClock(Clock):
    """A clock that only waiting moves on; all of them show the same time."""

    now = 0.0

    def monotonic(self) -> float:
        SteppedClock.now += 0.000_001
        return SteppedClock.now

    def sleep(self, seconds: float) -> None:
        SteppedClock.now += seconds

"""Queries to a source: offsets by time, health, the age of the oldest uncopied record."""

import socket
from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import lag, offsets_by_time, read_clusters, upstream_selection
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, opened
from tests.support.independent import CREATE_TIME, Record, create, delete_before, write

DAY_MS = 86_400_000
T0 = 1_700_000_000_000
DOWN = "127.0.0.1:1"
CLOCK = SystemClock()
Span = tuple[int, int]


class Question:
    """A topic of two partitions at the source, and a mirror of it."""

    def __init__(
        self, source: LocalCluster, destination: LocalCluster, topic: str, **config: str
    ) -> None:
        self.source = source.cluster()
        self.destination = destination.cluster()
        self.topic = topic
        self.first, self.second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        create(self.source, topic, 2, KEPT | config)

    def mirror(
        self, *upstreams: str, health: dict[str, str] | None = None, **topics: Any
    ) -> Mirror:
        """The settings of the mirror, by default with the source as its only upstream."""
        named = [
            {"name": f"n{index}", "bootstrap_servers": server}
            for index, server in enumerate(upstreams or [self.serving])
        ]
        return Mirror.model_validate(
            {
                "source": {"upstreams": named, "health": health or {}},
                "destination": {"bootstrap_servers": ",".join(self.destination.bootstrap_servers)},
                "topics": {"allow": [self.topic], **topics},
                "copy": {"request_timeout": "5s"},
            }
        )

    @property
    def serving(self) -> str:
        return ",".join(self.source.bootstrap_servers)

    def snapshot(self) -> ClusterSnapshot:
        """Take a snapshot of both clusters."""
        return read_clusters.take_snapshot(Sides(f"q-{self.topic[-8:]}", self.mirror(), CLOCK))

    def write(self, at: TopicPartition, *times_ms: int) -> None:
        """Write one batch of one record per timestamp."""
        write(
            self.source, at, *([Record(None, b"%d" % ms, (), (CREATE_TIME, ms))] for ms in times_ms)
        )

    def between(self, since: int, until: int | None) -> list[tuple[int, int]]:
        """Return the offsets of a time span per partition."""
        ranges = offsets_by_time.ranges_between(self.snapshot(), since, until)
        assert [offset_range.topic_partition for offset_range in ranges] == [
            self.first,
            self.second,
        ]
        return [(offset_range.start, offset_range.end) for offset_range in ranges]

    def oldest_ms(self, taken: ClusterSnapshot | None = None) -> float | None:
        """Return the timestamp of the oldest uncopied record, to the second."""
        now_ms = CLOCK.now_ms()
        lags = lag.measure(taken or self.snapshot())
        age = lag.oldest_seconds(lags.values())
        return round(now_ms - age * 1000, -3) if age else None


@pytest.fixture
def question(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> Question:
    """A topic without records."""
    return Question(source_cluster, destination_cluster, topic_name)


SPANS: dict[str, tuple[int, int | None, Span, Span]] = {
    "all there is": (0, None, (0, 5), (0, 1)),
    "the last moment is not in it": (T0, T0 + 5 * DAY_MS, (0, 5), (0, 1)),
    "in the middle": (T0 + DAY_MS, T0 + 3 * DAY_MS, (1, 3), (0, 1)),
    "between two records": (T0 + DAY_MS + 1, T0 + 3 * DAY_MS + 1, (2, 4), (0, 1)),
    "since": (T0 + 2 * DAY_MS, None, (2, 5), (0, 1)),
    "one topic-partition has nothing": (T0 + 3 * DAY_MS, None, (3, 5), (1, 1)),
    "a gap in the middle": (T0 + DAY_MS + 1, T0 + 2 * DAY_MS, (2, 2), (0, 0)),
    "before the first record": (T0 - 2 * DAY_MS, T0 - DAY_MS, (0, 0), (0, 0)),
    "behind the last record": (T0 + 9 * DAY_MS, None, (5, 5), (1, 1)),
    "a span behind the last record": (T0 + 9 * DAY_MS, T0 + 10 * DAY_MS, (5, 5), (1, 1)),
}


def test_a_time_span_becomes_offsets(question: Question) -> None:
    """The start is inclusive and the end exclusive; without records the range is empty."""
    assert question.between(T0, T0 + DAY_MS) == question.between(T0, None) == [(0, 0), (0, 0)]
    question.write(question.first, *(T0 + day * DAY_MS for day in range(5)))
    question.write(question.second, T0 + 2 * DAY_MS)
    found = {title: question.between(since, until) for title, (since, until, *_) in SPANS.items()}
    assert found == {title: spans for title, (_, _, *spans) in SPANS.items()}


def test_what_is_not_there_is_in_no_span(question: Question) -> None:
    """It begins at the low watermark, ends at an open transaction; late records stay in place."""
    question.write(question.first, T0, T0 + 2 * DAY_MS, T0 + DAY_MS, T0 + 3 * DAY_MS)
    assert question.between(T0 + DAY_MS, T0 + 2 * DAY_MS)[0] == (1, 1)
    assert question.between(T0 + DAY_MS, T0 + 3 * DAY_MS)[0] == (1, 3)
    delete_before(question.source, question.first, 2)
    assert question.between(T0, T0 + 3 * DAY_MS)[0] == (2, 3)
    assert question.between(T0, T0 + DAY_MS)[0] == (2, 2)
    late = [Record(None, b"open", (), (CREATE_TIME, T0 + 4 * DAY_MS))]
    sender = opened(question.source, question.first, late, question.topic)
    assert question.between(T0, None)[0] == (2, 4)
    assert question.between(T0 + 4 * DAY_MS, None)[0] == (4, 4)
    sender.abort_transaction(30)


def test_all_upstreams_are_asked_at_once(question: Question) -> None:
    """One that is down or hangs has its own verdict, and delays no other; mirrored topics count."""
    question.write(question.first, T0, T0, T0)
    question.write(question.second, T0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"127.0.0.1:{silent.getsockname()[1]}"
        patience = {"request_timeout": "700ms"}
        mirror = question.mirror(DOWN, question.serving, hanging, health=patience)
        down, serving, hung = upstream_selection.probe(Sides("q", mirror, CLOCK))
    servers = question.source.bootstrap_servers
    assert (down.cluster, serving.cluster) == (Cluster("n0", (DOWN,)), Cluster("n1", servers))
    assert DOWN in str(down.error)
    assert "\n" not in str(down.error)
    assert "no answer within 0.7 s" in str(hung.error)
    assert (serving.error, sum(log.end for log in serving.logs.values())) == (None, 4)
    assert 0 < serving.latency_ms < 700
    (state,) = upstream_selection.probe(Sides("q", question.mirror(deny=[question.topic]), CLOCK))
    assert (state.error, state.logs) == (None, {})


def test_the_oldest_uncopied_record_counts(question: Question) -> None:
    """Whichever topic-partition holds it; the first one after the checkpoint."""
    question.write(question.first, T0 + 2 * DAY_MS, T0 + 3 * DAY_MS)
    question.write(question.second, T0 + DAY_MS, T0 + 4 * DAY_MS)
    assert question.oldest_ms() == T0 + DAY_MS
    assert question.oldest_ms(copied_up_to(1, question.snapshot())) == T0 + 3 * DAY_MS


def test_what_a_guard_holds_back_waits_too(question: Question) -> None:
    """As far as the source still has it."""
    question.write(question.first, *[T0 - DAY_MS] * 5, *[T0] * 4)
    question.write(question.second, T0 + DAY_MS)
    delete_before(question.source, question.first, 5)
    assert question.oldest_ms(copied_up_to(0, question.snapshot())) == T0


def test_append_time_counts_where_the_broker_sets_it(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> None:
    """With LogAppendTime the timestamp of the producer does not count."""
    config = {"message.timestamp.type": "LogAppendTime"}
    stamped = Question(source_cluster, destination_cluster, topic_name, **config)
    before = CLOCK.now_ms()
    stamped.write(stamped.first, T0)
    found = stamped.oldest_ms()
    assert found is not None
    assert before - 1_000 <= found <= CLOCK.now_ms() + 1_000


def test_topics_of_two_lanes_must_not_share_a_destination(question: Question) -> None:
    other = f"{question.topic}-other"
    create(question.source, other, 1, KEPT)
    mirror = question.mirror(allow=[question.topic, other], rename={other: question.topic})
    for topic in (question.topic, other):
        taken = read_clusters.take_snapshot(Sides("q", mirror, CLOCK), belongs=topic.__eq__)
        assert list(taken.facts.refused) == [topic]
        assert "would both be copied to" in str(taken.facts.refused[topic])
        assert topic not in taken.accepted_topics


def copied_up_to(next_offset: int, taken: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot with each checkpoint at an offset, or at its end."""
    positions = [
        replace(each, next_offset=min(next_offset, each.end_offset)) for each in taken.positions
    ]
    return replace(taken, positions=positions)

"""Queries to a source: offsets by time, healthy nodes, the age of the oldest uncopied record."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot, lag, node_selection, offsets_by_time
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

    def mirror(self, *nodes: str, health: dict[str, str] | None = None, **topics: Any) -> Mirror:
        """The settings of the mirror, by default with the source as its only node."""
        named = [
            {"name": f"n{index}", "bootstrap_servers": server}
            for index, server in enumerate(nodes or [self.serving])
        ]
        return Mirror.model_validate(
            {
                "source": {"nodes": named, "health": health or {}},
                "destination": {"bootstrap_servers": ",".join(self.destination.bootstrap_servers)},
                "topics": {"allow": [self.topic], **topics},
                "copy": {"request_timeout": "5s"},
            }
        )

    @property
    def serving(self) -> str:
        """The address of the source."""
        return ",".join(self.source.bootstrap_servers)

    def snapshot(self) -> ClusterSnapshot:
        """Take a snapshot of both clusters."""
        return cluster_snapshot.take_snapshot(f"q-{self.topic[-8:]}", self.mirror(), CLOCK)

    def write(self, at: TopicPartition, *times_ms: int) -> None:
        """Write one batch of one record per timestamp."""
        write(
            self.source, at, *([Record(None, b"%d" % ms, (), (CREATE_TIME, ms))] for ms in times_ms)
        )

    def between(self, since: int, until: int | None) -> list[tuple[int, int]]:
        """Return the offsets of a time span per partition."""
        ranges = offsets_by_time.ranges_between(
            self.snapshot(), since, until, self.mirror().copy_options, CLOCK
        )
        assert [offset_range.topic_partition for offset_range in ranges] == [
            self.first,
            self.second,
        ]
        return [(offset_range.start, offset_range.end) for offset_range in ranges]

    def oldest_ms(self, taken: ClusterSnapshot | None = None) -> float | None:
        """Return the timestamp of the oldest uncopied record, to the second."""
        now_ms = CLOCK.now_ms()
        lags = lag.measure(taken or self.snapshot(), self.mirror().copy_options, CLOCK)
        age = lag.oldest_seconds(lags.values())
        return round(now_ms - age * 1000, -3) if age else None


@pytest.fixture
def question(
    source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> Question:
    """A topic without records."""
    return Question(source_cluster, destination_cluster, topic_name)


class TestOffsetsByTime:
    """The offsets of a time span."""

    @pytest.mark.parametrize(
        ("since", "until", "first", "second"),
        [
            (0, None, (0, 5), (0, 1)),
            (T0, T0 + 5 * DAY_MS, (0, 5), (0, 1)),
            (T0 + DAY_MS, T0 + 3 * DAY_MS, (1, 3), (0, 1)),
            (T0 + DAY_MS + 1, T0 + 3 * DAY_MS + 1, (2, 4), (0, 1)),
            (T0 + 2 * DAY_MS, None, (2, 5), (0, 1)),
            (T0 + 3 * DAY_MS, None, (3, 5), (1, 1)),
            (T0 + DAY_MS + 1, T0 + 2 * DAY_MS, (2, 2), (0, 0)),
            (T0 - 2 * DAY_MS, T0 - DAY_MS, (0, 0), (0, 0)),
            (T0 + 9 * DAY_MS, None, (5, 5), (1, 1)),
            (T0 + 9 * DAY_MS, T0 + 10 * DAY_MS, (5, 5), (1, 1)),
        ],
        ids=[
            "all there is",
            "the last moment is not in it",
            "in the middle",
            "between two records",
            "since",
            "one topic-partition has nothing",
            "a gap in the middle",
            "before the first record",
            "behind the last record",
            "a span behind the last record",
        ],
    )
    def test_a_time_span_becomes_offsets(
        self, question: Question, since: int, until: int | None, first: Span, second: Span
    ) -> None:
        """The start is inclusive and the end exclusive; without records the range is empty."""
        question.write(question.first, *(T0 + day * DAY_MS for day in range(5)))
        question.write(question.second, T0 + 2 * DAY_MS)
        assert question.between(since, until) == [first, second]

    def test_what_is_not_there_is_in_no_span(self, question: Question) -> None:
        """Ranges start at the low watermark, and a late record is where its offset is."""
        assert question.between(T0, T0 + DAY_MS) == [(0, 0), (0, 0)]
        assert question.between(T0, None) == [(0, 0), (0, 0)]
        question.write(question.first, T0, T0 + 2 * DAY_MS, T0 + DAY_MS, T0 + 3 * DAY_MS)
        assert question.between(T0 + DAY_MS, T0 + 2 * DAY_MS)[0] == (1, 1)
        assert question.between(T0 + DAY_MS, T0 + 3 * DAY_MS)[0] == (1, 3)
        delete_before(question.source, question.first, 2)
        assert question.between(T0, T0 + 3 * DAY_MS)[0] == (2, 3)
        assert question.between(T0, T0 + DAY_MS)[0] == (2, 2)

    def test_an_open_transaction_ends_the_span(self, question: Question) -> None:
        """A range ends at the last stable offset, because nothing after it can be copied."""
        question.write(question.first, T0)
        sender = opened(
            question.source,
            question.first,
            [Record(None, b"open", (), (CREATE_TIME, T0 + DAY_MS))],
            question.topic,
        )
        assert question.between(T0, None)[0] == (0, 1)
        assert question.between(T0 + DAY_MS, None)[0] == (1, 1)
        sender.abort_transaction(30)


class TestNodes:
    """Probes of all nodes of a source at once."""

    def test_a_node_that_is_down_beside_one_that_serves(self, question: Question) -> None:
        """Every node has its own verdict in the order of the configuration."""
        question.write(question.first, T0, T0, T0)
        question.write(question.second, T0)
        down, serving = node_selection.probe("q", question.mirror(DOWN, question.serving), CLOCK)
        servers = question.source.bootstrap_servers
        assert (down.node, serving.node) == (Cluster("n0", (DOWN,)), Cluster("n1", servers))
        assert DOWN in down.error
        assert "\n" not in down.error
        assert (serving.error, sum((serving.end_offsets or {}).values())) == ("", 4)
        assert serving.latency_ms > 0

    def test_only_mirrored_topics_count(self, question: Question) -> None:
        """A node's position depends only on topics that are mirrored."""
        question.write(question.first, T0)
        (state,) = node_selection.probe("q", question.mirror(deny=[question.topic]), CLOCK)
        assert (state.error, state.end_offsets) == ("", {})

    def test_a_node_that_hangs_does_not_delay_the_others(self, question: Question) -> None:
        """A node that never answers is given up after `request_timeout`; the others answer."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hanging = f"127.0.0.1:{silent.getsockname()[1]}"
            mirror = question.mirror(hanging, question.serving, health={"request_timeout": "700ms"})
            hung, serving = node_selection.probe("q", mirror, CLOCK)
        assert "no answer within 0.7 s" in hung.error
        assert not serving.error
        assert serving.latency_ms < 700


class TestLag:
    """The age of the oldest uncopied record."""

    def test_the_oldest_uncopied_record_counts(self, question: Question) -> None:
        """Whichever topic-partition holds it; the first one after the checkpoint."""
        question.write(question.first, T0 + 2 * DAY_MS, T0 + 3 * DAY_MS)
        question.write(question.second, T0 + DAY_MS, T0 + 4 * DAY_MS)
        assert question.oldest_ms() == T0 + DAY_MS
        taken = question.snapshot()
        at_the_second = [replace_next(position, 1) for position in taken.positions]
        assert question.oldest_ms(with_positions(taken, at_the_second)) == T0 + 3 * DAY_MS

    def test_a_topic_partition_with_a_data_loss_counts(self, question: Question) -> None:
        """Records that a guard holds back wait, too, as far as the source still has them."""
        question.write(question.first, *[T0 - DAY_MS] * 5, *[T0] * 4)
        question.write(question.second, T0 + DAY_MS)
        delete_before(question.source, question.first, 5)
        taken = question.snapshot()
        behind = [replace_next(position, 0) for position in taken.positions]
        assert question.oldest_ms(with_positions(taken, behind)) == T0

    def test_append_time_counts_where_the_broker_sets_it(
        self, source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
    ) -> None:
        """With LogAppendTime the timestamp of the producer does not count."""
        stamped = Question(
            source_cluster,
            destination_cluster,
            topic_name,
            **{"message.timestamp.type": "LogAppendTime"},
        )
        before = CLOCK.now_ms()
        stamped.write(stamped.first, T0)
        found = stamped.oldest_ms()
        assert found is not None
        assert before - 1_000 <= found <= CLOCK.now_ms() + 1_000


class TestSnapshot:
    """Checks of a lane's snapshot that involve other lanes."""

    def test_topics_of_two_lanes_must_not_share_a_destination(self, question: Question) -> None:
        """Two lanes must not copy to one destination topic: each refuses its own topic."""
        other = f"{question.topic}-other"
        create(question.source, other, 1, KEPT)
        mirror = question.mirror(allow=[question.topic, other], rename={other: question.topic})
        for topic in (question.topic, other):
            taken = cluster_snapshot.take_snapshot("q", mirror, CLOCK, belongs=topic.__eq__)
            assert list(taken.refused) == [topic]
            assert "would both be copied to" in str(taken.refused[topic])
            assert topic not in taken.accepted_targets


def replace_next(position: Position, next_offset: int) -> Position:
    """The position with its checkpoint at `next_offset`, or at its end."""
    return replace(position, next_offset=min(next_offset, position.end_offset))


def with_positions(taken: ClusterSnapshot, positions: list[Position]) -> ClusterSnapshot:
    """The snapshot with these checkpoints."""
    return replace(taken, positions=positions)

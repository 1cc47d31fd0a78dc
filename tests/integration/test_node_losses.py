"""Records are lost only if no node of the source has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from relay_pipelines.console import tables
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.errors import RetentionPassedError, SourceError, TopicRecreatedError
from relay_pipelines.model import Cluster, CopyJob, Outcome, TopicPartition
from relay_pipelines.prepare import prepared_snapshot
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, ensure_homes, numbered
from tests.support.independent import create, delete, delete_before, records_of, until, write

CLOCK = SystemClock()
DOWN = "127.0.0.1:1"
COPIED, WRITTEN = 10, 30


@dataclass
class Pair:
    """Two identical nodes with two topic-partitions; ten records of each were copied from `a`."""

    a: Cluster
    b: Cluster
    destination: Cluster
    topic: str

    def __post_init__(self) -> None:
        for cluster in (self.a, self.b):
            create(cluster, self.topic, 2, KEPT)
        create(self.destination, f"pair.{self.topic}", 2, KEPT)
        ensure_homes(self.destination)
        self.write(0, COPIED)
        assert self.copy(self.snapshot("fail")) == {0: (0, COPIED), 1: (0, COPIED)}
        self.write(COPIED, WRITTEN - COPIED)

    def write(self, first: int, count: int) -> None:
        for cluster in (self.a, self.b):
            for partition in range(2):
                write(cluster, TopicPartition(self.topic, partition), numbered(count, first=first))

    def retention(self, node: str, partition: int, offset: int) -> None:
        """Delete the records before an offset from a node."""
        delete_before(
            self.a if node == "a" else self.b, TopicPartition(self.topic, partition), offset
        )

    def create_again(self, node: str, *, low: int, count: int = WRITTEN) -> None:
        """Delete the topic on a node and create it with other records, from a low watermark on."""
        cluster = self.a if node == "a" else self.b
        delete(cluster, self.topic)
        create(cluster, self.topic, 2, KEPT)
        for partition in range(2):
            at = TopicPartition(self.topic, partition)
            write(cluster, at, numbered(count, first=100))
            if low:
                self.retention(node, partition, low)

    def snapshot(self, on_data_loss: str, *, down: str = "") -> ClusterSnapshot:
        """Take a snapshot for a copy; one of the nodes may be down."""
        servers = {"a": self.a.bootstrap_servers[0], "b": self.b.bootstrap_servers[0], down: DOWN}
        mirror = Mirror.model_validate(
            {
                "source": {
                    "nodes": [{"name": name, "bootstrap_servers": servers[name]} for name in "ab"],
                    "health": {"request_timeout": "10s"},
                },
                "give_up_after": "1s",
                "destination": {"bootstrap_servers": self.destination.bootstrap_servers[0]},
                "topics": {"allow": [self.topic, f"{self.topic}.new"], "rename": "pair.{topic}"},
                "on_data_loss": on_data_loss,
            }
        )
        take = lambda: cluster_snapshot.take_snapshot(f"pair-{self.topic[-8:]}", mirror, CLOCK)  # noqa: E731  # asked again after a decision
        return prepared_snapshot.prepare_snapshot(take, mirror, CLOCK)

    def outcomes(self, taken: ClusterSnapshot) -> list[Outcome]:
        """Copy what is new, from any of the nodes."""
        job = CopyJob(taken.mirror, "run", taken.node, self.destination)
        ranges = run_plan.plan(taken).ranges
        return list(copy_ranges(replace(job, other_nodes=taken.other_nodes), ranges))

    def copy(self, taken: ClusterSnapshot) -> dict[int, tuple[int, int]]:
        """Copy what is new; return start and end by partition."""
        ranges, outcomes = run_plan.plan(taken).ranges, self.outcomes(taken)
        assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)
        ends = {copy_range.source.topic_partition: copy_range.source.end for copy_range in ranges}
        until(lambda: ends.items() <= self._reached().items(), "the checkpoints")
        return {
            copy_range.source.topic_partition.partition: (
                copy_range.source.start,
                copy_range.source.end,
            )
            for copy_range in ranges
        }

    def _reached(self) -> dict[TopicPartition, int]:
        return {
            at: committed.next_offset for at, committed in self.snapshot("fail").checkpoints.items()
        }

    def arrived(self, partition: int) -> list[bytes | None]:
        at = TopicPartition(f"pair.{self.topic}", partition)
        return [record.value for record in records_of(self.destination, at)]

    def written(self, lost: range = range(0)) -> list[bytes | None]:
        """Return the records of each topic-partition without the lost ones."""
        return [
            record.value for number, record in enumerate(numbered(WRITTEN)) if number not in lost
        ]


@pytest.fixture(scope="module")
def second_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    cluster = EmbeddedCluster("second", folder=tmp_path_factory.mktemp("second"))
    cluster.start()
    yield cluster
    cluster.discard()


@pytest.fixture
def pair(
    source_cluster: EmbeddedCluster,
    second_node: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    topic_name: str,
) -> Pair:
    return Pair(
        source_cluster.cluster(), second_node.cluster(), destination_cluster.cluster(), topic_name
    )


@pytest.mark.parametrize("on_data_loss", ["fail", "continue"])
def test_the_node_with_the_records_is_chosen(pair: Pair, on_data_loss: str) -> None:
    """The node whose records retention deleted is not read, and nothing is lost."""
    pair.retention("a", 0, 25)
    taken = pair.snapshot(on_data_loss)
    assert (taken.node.name, taken.accepted, run_plan.plan(taken).data_losses) == ("b", (), ())
    at = TopicPartition(pair.topic, 0)
    assert (
        f"a: {at} begins at 25 on this node, and the copy resumes at 10: retention took the"
        f" records between them" in taken.node_why
    )
    assert pair.copy(taken) == {0: (10, 30), 1: (10, 30)}
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written()] * 2


@pytest.mark.parametrize("on_data_loss", ["fail", "continue"])
def test_a_node_that_does_not_answer_may_have_the_records(pair: Pair, on_data_loss: str) -> None:
    """One line names the node and the missing records; once it is back, all are copied."""
    pair.retention("a", 0, 25)
    with pytest.raises(SourceError) as caught:
        pair.snapshot(on_data_loss, down="b")
    assert (caught.value.exit_code, "\n" in str(caught.value)) == (1, False)
    assert f"a: {pair.topic}-0 begins at 25 on this node, and the copy resumes at 10" in str(
        caught.value
    )
    assert f"; b: b broker {DOWN} cannot be reached" in str(caught.value)
    assert "start the nodes that do not answer, or remove them from source.nodes" in str(
        caught.value
    )

    pair.copy(pair.snapshot(on_data_loss))
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written()] * 2


def test_a_node_that_is_not_needed_may_be_down(pair: Pair) -> None:
    """While one node has everything, the other one may be down."""
    pair.retention("a", 0, 25)
    taken = pair.snapshot("continue", down="a")
    assert (taken.node.name, taken.accepted) == ("b", ())
    assert pair.copy(taken) == {0: (10, 30), 1: (10, 30)}


def test_records_that_no_node_has_are_lost(pair: Pair) -> None:
    """The copy gives up only the records that every node has lost."""
    pair.retention("a", 0, 25)
    pair.retention("b", 0, 20)

    held = run_plan.plan(pair.snapshot("fail"))
    (loss,) = held.data_losses
    assert (type(loss), loss.exit_code) == (RetentionPassedError, 3)
    assert "retention took the offsets [10, 20) before they were copied" in str(loss)

    taken = pair.snapshot("continue")
    assert [type(loss) for loss in taken.accepted] == [RetentionPassedError]
    assert pair.copy(taken) == {0: (20, 30), 1: (10, 30)}
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written(range(10, 20)), pair.written()]


def test_each_node_may_lack_other_records(pair: Pair) -> None:
    """A topic-partition that only another node can continue is held back; the rest is copied."""
    pair.retention("a", 0, 25)
    pair.retention("b", 1, 20)

    taken = pair.snapshot("continue")

    assert (taken.node.name, taken.accepted) == ("a", ())
    (held,) = run_plan.plan(taken).data_losses
    assert (type(held), held.exit_code, held.topic_partition) == (
        SourceError,
        1,
        TopicPartition(pair.topic, 0),
    )
    assert (
        "retention took the offsets [10, 25) before they were copied, "
        "but node b has them; copy them with" in str(held)
    )
    assert pair.copy(taken) == {1: (10, 30)}
    taken = pair.snapshot("continue")
    assert (taken.node.name, taken.accepted) == ("b", ()), "by now it lacks nothing"
    assert pair.copy(taken) == {0: (10, 30)}
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written()] * 2


@pytest.mark.parametrize(
    ("low", "end"),
    [(COPIED, WRITTEN), (0, WRITTEN), (0, 5)],
    ids=["record gone", "another record", "fewer records"],
)
def test_a_topic_created_again_on_all_nodes_is_held_back(pair: Pair, low: int, end: int) -> None:
    """As with one node: the guard stops it, accepts it if asked, and quarantines no node."""
    before = pair.snapshot("fail")
    for node in "ab":
        pair.create_again(node, low=low, count=end)
    copies = pair.outcomes(before)
    assert [outcome.error_kind for outcome in copies] == ["TopicRecreatedError"] * 2
    assert not any(outcome.diverged for outcome in copies)

    held = run_plan.plan(pair.snapshot("fail"))
    assert [(type(loss), loss.exit_code) for loss in held.data_losses] == [
        (TopicRecreatedError, 3)
    ] * 2
    assert "deleted and created again" in str(held.data_losses[0])
    taken = pair.snapshot("fail", down="b")
    assert [type(loss) for loss in run_plan.plan(taken).data_losses] == [SourceError] * 2
    assert "node b does not answer" in str(run_plan.plan(taken).data_losses[0])

    taken = pair.snapshot("continue")
    assert [type(loss) for loss in taken.accepted] == [TopicRecreatedError] * 2
    assert pair.copy(taken) == {0: (low, end), 1: (low, end)}


def test_a_topic_created_again_on_one_node_is_read_from_the_other(pair: Pair) -> None:
    """Nothing proves the log of one node: the other one, with the log that was copied, is read."""
    pair.create_again("a", low=COPIED)
    assert pair.copy(pair.snapshot("fail")) == {0: (10, 30), 1: (10, 30)}
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written()] * 2


def test_a_node_is_proved_before_it_is_needed(pair: Pair) -> None:
    """While both nodes answer they are compared, so that either may lose the last record copied."""
    checkpoints = pair.snapshot("fail").checkpoints.values()
    assert [sorted(known.topic_ids) for known in checkpoints] == [["a", "b"]] * 2
    pair.retention("b", 0, COPIED)
    assert pair.copy(pair.snapshot("fail", down="a")) == {0: (10, 30), 1: (10, 30)}
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written()] * 2


def test_a_node_that_nothing_proves_is_not_read(pair: Pair) -> None:
    """A topic created again on a node that was never read, while the other node is down."""
    pair.create_again("b", low=COPIED)
    taken = pair.snapshot("continue", down="a")
    assert (taken.accepted, list(run_plan.plan(taken).windows)) == ((), [])
    losses = run_plan.plan(taken).data_losses
    assert [(type(loss), loss.exit_code) for loss in losses] == [(SourceError, 1)] * 2
    assert "node a does not answer" in str(losses[0])
    assert pair.copy(pair.snapshot("continue")) == {0: (10, 30), 1: (10, 30)}
    assert [pair.arrived(0), pair.arrived(1)] == [pair.written()] * 2


def test_newer_records_of_another_node_are_said(pair: Pair) -> None:
    """They are copied once the node that is read has them; until then, its lag says it."""
    assert pair.snapshot("fail").node_behind == 0
    write(pair.b, TopicPartition(pair.topic, 0), numbered(20))
    taken = pair.snapshot("fail")
    assert (taken.node.name, taken.node_behind) == ("a", 20)
    document = {"node": taken.node.name, "node_behind": taken.node_behind}
    assert tables.node_in_words(document) == "a, itself 20 behind"


@pytest.mark.parametrize("is_a_read", [False, True])
def test_a_new_topic_begins_at_the_node_that_holds_most(pair: Pair, *, is_a_read: bool) -> None:
    """What only another node has of it is copied from there, or held back by name."""
    old, more = (TopicPartition(f"{pair.topic}.new", partition) for partition in range(2))
    create(pair.a, old.topic, 1, KEPT)
    create(pair.b, old.topic, 2, KEPT)
    for cluster, at in ((pair.a, old), (pair.b, old), (pair.b, more)):
        write(cluster, at, numbered(COPIED))
    delete_before(pair.a, old, 6)
    if is_a_read:
        for partition in range(2):
            pair.retention("b", partition, 25)
    taken = pair.snapshot("fail")
    assert taken.node.name == ("a" if is_a_read else "b")
    planned = run_plan.plan(taken)
    new = {each.source.topic_partition: each.source for each in planned.ranges}
    if not is_a_read:
        assert [(new[at].start, new[at].end) for at in (old, more)] == [(0, COPIED)] * 2
        assert not planned.data_losses
        return
    assert not new.keys() & {old, more}
    assert [(type(error), error.topic_partition) for error in planned.data_losses] == [
        (SourceError, old),
        (SourceError, more),
    ]
    first, second = map(str, planned.data_losses)
    assert "begins at 6 on node a, but node b has the offsets before it" in first
    assert "node a does not have it, but node b has its offsets [0, 10)" in second

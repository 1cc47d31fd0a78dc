"""Two identical nodes: which one the next run reads, when one is down, late, or came back without its records."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event

import pytest

from relay_pipelines.copy.clock import SystemClock
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.driver import planning, survey
from relay_pipelines.driver.survey import Survey
from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.errors import DataLossError, SourceError
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, Status, TopicPartition
from relay_pipelines.plan.windows import StartPolicy
from relay_pipelines.settings import Mirror
from tests.copying import KEPT, ensure_homes
from tests.independent import Record, create, records_of, until, write

CLOCK = SystemClock()
DOWN = "127.0.0.1:1"


class Halting(SystemClock):
    """Halts the copy in its middle, before a commit, until it may go on."""

    def __init__(self, before_commit: int) -> None:
        self._commits_left = before_commit
        self.halted, self.go_on = Event(), Event()

    def now_ms(self) -> int:
        """Asked once per commit."""
        self._commits_left -= 1
        if self._commits_left == 0:
            self.halted.set()
            assert self.go_on.wait(60)
        return super().now_ms()


@dataclass
class Pair:
    """A mirror of two nodes, `a` and `b`; `b` is the source of the test run."""

    a: EmbeddedCluster
    b: Cluster
    destination: Cluster
    topic: str

    def mirror(self, **health: object) -> Mirror:
        """The mirror; `a` is where it is, or where nobody is."""
        servers = self.a.cluster().bootstrap_servers if self.a.brokers[0].running else (DOWN,)
        nodes = [
            {"name": "a", "bootstrap_servers": ",".join(servers)},
            {"name": "b", "bootstrap_servers": ",".join(self.b.bootstrap_servers)},
        ]
        return Mirror.model_validate(
            {
                "source": {"nodes": nodes, "health": {"request_timeout": "5s", **health}},
                "destination": {"bootstrap_servers": ",".join(self.destination.bootstrap_servers)},
                "topics": {"allow": [self.topic], "rename": "pair.{topic}"},
            }
        )

    def write(self, count: int, *, to: str = "ab") -> None:
        """Write the same records to the nodes."""
        records = [Record(b"k", f"{number}".encode()) for number in range(count)]
        for name in to:
            write(self.a.cluster() if name == "a" else self.b, TopicPartition(self.topic, 0), records)

    def survey(self, retry: int = 0, **health: object) -> Survey:
        """What a run begins with."""
        return survey.take(f"pair-{self.topic[-8:]}", self.mirror(**health), CLOCK, first_node=retry)

    def copy(self, **health: object) -> str:
        """Copy everything new, and return the node that was read."""
        taken = self.survey(**health)
        ranges = planning.plan(taken, StartPolicy.EARLIEST).ranges
        create(self.destination, f"pair.{self.topic}", 1, KEPT)
        outcomes = list(copy_ranges(CopyJob(taken.mirror, "run", taken.node, self.destination), ranges))
        assert [one.error for one in outcomes] == [""] * len(outcomes)
        # a commit is answered before its markers are written: readers see it a moment later
        ends = {one.source.topic_partition: one.source.end for one in ranges}
        until(lambda: ends.items() <= self._reached(taken.mirror).items(), "the checkpoint")
        return taken.node.name

    def _reached(self, name: str) -> dict[TopicPartition, int]:
        return {at: one.next_offset for at, one in survey.stored(name, self.mirror(), CLOCK).checkpoints.items()}

    def arrived(self) -> int:
        """How many records are at the destination."""
        return len(records_of(self.destination, TopicPartition(f"pair.{self.topic}", 0)))


@pytest.fixture(scope="module")
def node_a(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """A node that may be killed and started again."""
    cluster = EmbeddedCluster("node-a", folder=tmp_path_factory.mktemp("node-a"))
    cluster.start()
    yield cluster
    cluster.discard()


@pytest.fixture
def pair(node_a: EmbeddedCluster, source_cluster: EmbeddedCluster, destination_cluster: EmbeddedCluster, topic_name: str) -> Pair:
    """Both nodes up, with an empty topic."""
    made = Pair(node_a, source_cluster.cluster(), destination_cluster.cluster(), topic_name)
    for cluster in (node_a.cluster(), made.b):
        create(cluster, topic_name, 1, KEPT)
    ensure_homes(made.destination)
    return made


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_a_node_fails_in_the_middle_of_a_range(pair: Pair, how: str) -> None:
    """The task goes on from the other node within seconds; nothing lost or doubled, and the outcome tells who gave what."""
    for _ in range(300):
        pair.write(10)
    taken = pair.survey()
    assert (taken.node.name, [one.name for one in taken.other_nodes]) == ("a", ["b"])
    create(pair.destination, f"pair.{pair.topic}", 1, KEPT)
    options = CopyOptions(chunk_bytes=1, fetch_max_bytes=500, coalesce_below_bytes=0, backoff_max_ms=1_000)
    job = CopyJob(taken.mirror, "run", taken.node, pair.destination, options, "", taken.other_nodes, 2_000)
    ranges = planning.plan(taken, StartPolicy.EARLIEST).ranges
    broker, clock = pair.a.brokers[0], Halting(before_commit=20)
    with ThreadPoolExecutor(1) as elsewhere:
        copying = elsewhere.submit(lambda: list(copy_ranges(job, ranges, clock)))
        assert clock.halted.wait(60)
        before = pair.arrived()
        (broker.kill if how == "killed" else broker.pause)()
        failed = CLOCK.monotonic()
        clock.go_on.set()
        try:
            until(lambda: pair.arrived() > before + 10, "the first records from the other node")
            resumed = CLOCK.monotonic() - failed
            (outcome,) = copying.result(120)
        finally:
            (broker.start if how == "killed" else broker.resume)()
    assert outcome.status is Status.DONE, outcome.error
    assert resumed < 15, "it takes 5 s at most where nothing else runs"
    assert [one.node for one in outcome.segments] == ["a", "b"]
    assert [one.start for one in outcome.segments] == [0, outcome.segments[0].end]
    assert outcome.segments[-1].end == 3000
    at = TopicPartition(pair.topic, 0)
    assert records_of(pair.destination, TopicPartition(f"pair.{pair.topic}", 0)) == records_of(pair.b, at)


def test_a_diverged_node_is_not_read(pair: Pair) -> None:
    """A node whose record differs where the copy stands is refused, with what, where and the remedy; nothing of it is copied."""
    pair.write(10)
    assert pair.copy() == "a"
    write(pair.a.cluster(), TopicPartition(pair.topic, 0), [Record(b"k", b"only here")])
    assert pair.copy() == "a"
    for _ in range(3):
        write(pair.b, TopicPartition(pair.topic, 0), [Record(b"k", b"something else")])
    taken = pair.survey()
    ranges = planning.plan(
        replace(taken, positions=[replace(one, end_offset=13) for one in taken.positions]), StartPolicy.EARLIEST
    ).ranges
    (b,) = taken.other_nodes

    (outcome,) = copy_ranges(CopyJob(taken.mirror, "run", b, pair.destination), ranges)

    assert (outcome.status, outcome.error_kind, outcome.exit_code) == (Status.FAILED, "DivergedNodeError", 3)
    assert outcome.error == (
        f"{pair.topic}-0 at offset 10: node b holds another record than a, from which it was copied;"
        " find out which node is right, rebuild the other one, then `relay nodes --clear b`"
    )
    assert pair.arrived() == 11


def test_sticky_and_around_when_one_dies(pair: Pair) -> None:
    """The node read last is read again; when it is dead, the next one is, from where the copy stands; nothing twice."""
    pair.write(10)
    assert pair.copy() == "a"
    pair.write(10)
    assert pair.copy() == "a"
    pair.write(5)
    pair.a.brokers[0].kill()
    try:
        taken = pair.survey()
        assert taken.node.name == "b"
        assert taken.node_why.startswith("the next healthy one; a: ")
        assert "cannot be reached" in taken.node_why
        assert pair.copy() == "b"
    finally:
        pair.a.brokers[0].start()
    assert pair.arrived() == 25
    assert pair.copy() == "b", "without failback it stays"
    assert pair.survey(failback="when_healthy").node.name == "a"


def test_a_retry_begins_elsewhere(pair: Pair) -> None:
    """What failed from one healthy node is tried from the other."""
    pair.write(10)
    assert pair.copy() == "a"
    assert [pair.survey(retry).node.name for retry in (0, 1, 2)] == ["a", "b", "a"]


def test_a_late_node_is_left(pair: Pair) -> None:
    """More than the threshold behind the other, the node is not read, though it was read last."""
    pair.write(10)
    assert pair.copy(lag_threshold=5) == "a"
    pair.write(6, to="b")
    taken = pair.survey(lag_threshold=5)
    assert taken.node.name == "b"
    assert "6 records behind, more than lag_threshold=5" in taken.node_why
    assert pair.survey(lag_threshold=6).node.name == "a"


def test_a_node_without_the_records_is_not_read(pair: Pair) -> None:
    """A node that ends before what was copied is not eligible; when the other one is down, nothing is copied, and why is said."""
    pair.write(10, to="b")
    pair.write(4, to="a")
    assert pair.copy(lag_threshold=1) == "b"
    taken = pair.survey()
    assert taken.node.name == "b"
    mirror = pair.mirror()
    (a, b) = mirror.source.nodes
    only_short = mirror.model_copy(
        update={"source": mirror.source.model_copy(update={"nodes": (a, b.model_copy(update={"bootstrap_servers": (DOWN,)}))})}
    )
    with pytest.raises(SourceError, match=r"no node of the source can be read: a: .* ends at 4 there, and was copied up to 10"):
        survey.take(f"pair-{pair.topic[-8:]}", only_short, CLOCK)


def test_all_nodes_lost_what_was_copied(pair: Pair) -> None:
    """When every node answers and none has it, the guard says so, which no retry mends."""
    pair.write(10, to="b")
    assert pair.copy(lag_threshold=1) == "b"
    mirror = pair.mirror()
    (a, _) = mirror.source.nodes
    twins = (a, a.model_copy(update={"name": "b"}))
    both_short = mirror.model_copy(update={"source": mirror.source.model_copy(update={"nodes": twins})})
    taken = survey.take(f"pair-{pair.topic[-8:]}", both_short, CLOCK)
    (loss,) = planning.plan(taken, StartPolicy.EARLIEST).data_losses
    assert isinstance(loss, DataLossError)
    assert "above the source's end offset 0" in str(loss)

"""Two identical nodes: which one a run reads when one is down, late, or has lost records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
import yaml

from relay_pipelines import model
from relay_pipelines.copy.row_reader import MARKER, read_rows
from relay_pipelines.copy.task import copy_kept, copy_ranges
from relay_pipelines.errors import DataLossError, SourceError
from relay_pipelines.ledger import checkpoint as checkpoints
from relay_pipelines.ledger import reader
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.metrics import MetricsObserver
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, CopyRange, Status, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan, spark_jobs
from relay_pipelines.run.run import run
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot, node_selection, start_offsets
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import (
    KEPT,
    Clusters,
    copy_as_rows,
    end_of,
    ensure_homes,
    numbered,
    records_of,
    write_transaction,
)
from tests.support import commands, independent
from tests.support.commands import error_line, relay_here
from tests.support.independent import Record, assert_equal, create, read, settled_end, until, write
from tests.support.planned_copy import copy_planned
from tests.support.segments import flip_bit

CLOCK = SystemClock()
DOWN = "127.0.0.1:1"


class Sleeping(SystemClock):
    """A clock that advances only by sleeping, at once."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._now += seconds


class Halting(SystemClock):
    """A clock that halts the copy before a commit until it may continue."""

    def __init__(self, before_commit: int) -> None:
        self._commits_left = before_commit
        self.halted, self.go_on = Event(), Event()

    def now_ms(self) -> int:
        """Every commit calls this once."""
        self._commits_left -= 1
        if self._commits_left == 0:
            self.halted.set()
            assert self.go_on.wait(300)
        return super().now_ms()


@dataclass
class Pair:
    """A mirror of two nodes, `a` and `b`; `b` is the shared source cluster."""

    a: LocalCluster
    b: Cluster
    destination: Cluster
    topic: str

    def mirror(self, **health: object) -> Mirror:
        """The settings of the mirror; `a` is unreachable unless an address is given."""
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
            write(
                self.a.cluster() if name == "a" else self.b, TopicPartition(self.topic, 0), records
            )

    def snapshot(self, retry: int = 0, **health: Any) -> ClusterSnapshot:
        """Take the snapshot with which a run begins."""
        return cluster_snapshot.take_snapshot(
            f"pair-{self.topic[-8:]}", self.mirror(**health), CLOCK, first_node=retry
        )

    def copy(self, **health: Any) -> str:
        """Copy everything new, and return the node that was read."""
        taken = self.snapshot(**health)
        create(self.destination, f"pair.{self.topic}", 1, KEPT)
        copy_planned(taken)
        return taken.node.name

    def arrived(self) -> int:
        """Return the number of records at the destination."""
        return len(read(self.destination, TopicPartition(f"pair.{self.topic}", 0)))


def copied_by(name: str, wanted: Mirror) -> ClusterSnapshot:
    """Copy what a mirror plans, create its topics, and wait until readers see it."""
    taken = cluster_snapshot.take_snapshot(name, wanted, CLOCK)
    for each in run_plan.plan(taken).ranges:
        create(taken.destination, each.destination.topic, 1, KEPT)
    for each in copy_planned(taken):
        settled_end(taken.destination, each.destination)
    return taken


def mirror_of(source: Cluster, to: Cluster, *allow: str, **topics: Any) -> Mirror:
    settings = commands.mirror(source, to, *allow, node="only", topics=topics)
    return Mirror.model_validate(settings)


def refusal_of(taken: ClusterSnapshot) -> str:
    """Why the only topic of a mirror is not copied."""
    assert run_plan.plan(taken).windows == []
    (error,) = taken.refused.values()
    return str(error)


def mirror_file(name: str, mirror: Mirror) -> str:
    """Return a relay.yaml that holds only this mirror."""
    nodes = [
        {"name": node.name, "bootstrap_servers": list(node.bootstrap_servers)}
        for node in mirror.source.nodes
    ]
    destination = {"bootstrap_servers": list(mirror.destination.bootstrap_servers)}
    topics = {"allow": list(mirror.topics.allow), "rename": mirror.topics.rename}
    return yaml.safe_dump(
        {
            "mirrors": {
                name: {"source": {"nodes": nodes}, "destination": destination, "topics": topics}
            }
        }
    )


@pytest.fixture
def pair(own_cluster: LocalCluster, sides: Clusters, topic_name: str) -> Pair:
    """Two nodes that are up, with an empty topic."""
    made = Pair(own_cluster, *sides, topic_name)
    for cluster in (own_cluster.cluster(), made.b):
        create(cluster, topic_name, 1, KEPT)
    ensure_homes(made.destination)
    return made


@pytest.mark.quick
@pytest.mark.parametrize(
    ("how", "way"), [("killed", copy_ranges), ("hangs", copy_ranges), ("killed", copy_as_rows)]
)
def test_a_node_fails_in_the_middle_of_a_range(
    pair: Pair, how: str, way: Callable[..., Iterable[model.Outcome]]
) -> None:
    """The task fails over without loss, and the outcome names the nodes."""
    for _ in range(300):
        pair.write(10)
    taken = pair.snapshot()
    assert (taken.node.name, [node.name for node in taken.other_nodes]) == ("a", ["b"])
    create(pair.destination, f"pair.{pair.topic}", 1, KEPT)
    options = CopyOptions(
        chunk_bytes=1,
        fetch_max_bytes=500,
        coalesce_below_bytes=0,
        coalesce_to_bytes=100,
        backoff_max_ms=1_000,
    )
    job = CopyJob(
        taken.mirror, "run", taken.node, pair.destination, options, "", taken.other_nodes, 2_000
    )
    ranges = run_plan.plan(taken).ranges
    broker, clock = pair.a.brokers[0], Halting(before_commit=20)
    with ThreadPoolExecutor(1) as elsewhere:
        copying = elsewhere.submit(lambda: list(way(job, ranges, clock)))
        assert clock.halted.wait(300)
        before = pair.arrived()
        (broker.kill if how == "killed" else broker.pause)()
        clock.go_on.set()
        try:
            until(lambda: pair.arrived() > before + 10, "the first records from the other node")
            (outcome,) = copying.result(600)
        finally:
            (broker.start if how == "killed" else broker.resume)()
    assert outcome.status is Status.DONE, outcome.error
    assert [segment.node for segment in outcome.segments] == ["a", "b"]
    assert [segment.start for segment in outcome.segments] == [0, outcome.segments[0].end]
    assert outcome.segments[-1].end == 3000
    at = TopicPartition(pair.topic, 0)
    copy = TopicPartition(f"pair.{pair.topic}", 0)
    assert_equal(records_of(pair.b, at), records_of(pair.destination, copy))


@pytest.fixture
def damaged_nodes(
    own_cluster: LocalCluster, source_cluster: LocalCluster, topic_name: str
) -> tuple[Cluster, Cluster]:
    """Two nodes with the same topics p, q and r; p is corrupt on the first, q on the second."""
    for node, corrupt in ((own_cluster, "p"), (source_cluster, "q")):
        for name in "pqr":
            at = TopicPartition(f"{name}-{topic_name}", 0)
            create(node.cluster(), at.topic, 1, KEPT)
            write(node.cluster(), at, numbered(10), numbered(10, first=10))
        flip_bit(node.folder, TopicPartition(f"{corrupt}-{topic_name}", 0), b"%08d" % 15)
    a, b = own_cluster.cluster(), source_cluster.cluster()
    return replace(a, name="a"), replace(b, name="b")


def test_neighbours_need_different_nodes(
    damaged_nodes: tuple[Cluster, Cluster], destination_cluster: LocalCluster, topic_name: str
) -> None:
    """Ranges that share an id are each read from a node that holds them, in any order."""
    a, b = damaged_nodes
    destination = destination_cluster.cluster()
    ensure_homes(destination)
    options = CopyOptions(give_up_after_ms=5_000, backoff_max_ms=500, coalesce_below_bytes=0)
    for order in ("pqr", "rqp"):
        ranges = []
        for name in order:
            at = TopicPartition(f"{name}-{topic_name}", 0)
            to = TopicPartition(f"{order}.{at.topic}", 0)
            create(destination, to.topic, 1, KEPT)
            ranges.append(
                CopyRange(model.OffsetRange(at, 0, end_of(a, at)), to, owner="relay.ab./1")
            )
        job = CopyJob(f"{order}-{topic_name[-8:]}", "run", a, destination, options, "", (b,))
        outcomes = dict(zip(order, copy_ranges(job, ranges), strict=True))
        assert [outcome.error for outcome in outcomes.values()] == [""] * 3
        for name, node in (("p", "b"), ("q", "a"), ("r", "a")):
            outcome = outcomes[name]
            assert ([each.node for each in outcome.segments], outcome.node) == ([node], node)
            assert_equal(numbered(20), records_of(destination, outcome.destination))


def test_a_task_does_not_fail_over_to_an_empty_node(pair: Pair) -> None:
    """During a range the task fails over to the node with the records, not to an empty one."""
    for _ in range(40):
        pair.write(10)
    create(
        pair.destination, pair.topic, 1, KEPT
    )  # the destination's broker plays a node without records
    empty, taken = replace(pair.destination, name="empty"), pair.snapshot()
    (b,) = taken.other_nodes
    create(pair.destination, f"pair.{pair.topic}", 1, KEPT)
    options = CopyOptions(
        chunk_bytes=1, fetch_max_bytes=500, coalesce_below_bytes=0, backoff_max_ms=500
    )
    job = CopyJob(taken.mirror, "run", taken.node, pair.destination, options, "", (empty, b), 2_000)
    clock = Halting(before_commit=5)
    with ThreadPoolExecutor(1) as elsewhere:
        ranges = run_plan.plan(taken).ranges
        copying = elsewhere.submit(lambda: list(copy_ranges(job, ranges, clock)))
        assert clock.halted.wait(300)
        pair.a.brokers[0].kill()
        clock.go_on.set()
        try:
            (outcome,) = copying.result(300)
        finally:
            pair.a.brokers[0].start()
    assert outcome.status is Status.DONE, outcome.error
    assert [segment.node for segment in outcome.segments] == ["a", "b"]
    until(lambda: pair.arrived() == 400, "all records")


def test_a_rebuilt_node_is_compared(pair: Pair) -> None:
    """A node with a recreated topic is read only if its records are the same."""
    pair.write(10, to="b")
    original = [record for _, record in read(pair.b, TopicPartition(pair.topic, 0))]
    write(pair.a.cluster(), TopicPartition(pair.topic, 0), original)
    assert pair.copy() == "a"
    for more, records, node in ((5, original, "a"), (20, [Record(b"k", b"other")] * 15, "b")):
        independent.delete(pair.a.cluster(), pair.topic)
        create(pair.a.cluster(), pair.topic, 1, KEPT)
        write(pair.a.cluster(), TopicPartition(pair.topic, 0), records)
        pair.write(more)
        taken = pair.snapshot()
        assert taken.node.name == node
        ranges = run_plan.plan(taken).ranges
        options = CopyOptions(give_up_after_ms=0)
        (outcome,) = copy_ranges(
            CopyJob(
                taken.mirror, "run", taken.node, pair.destination, options, "", taken.other_nodes
            ),
            ranges,
        )
        assert (outcome.status, outcome.diverged) == (Status.DONE, {}), outcome.error
    assert f"nothing proves that {pair.topic}-0 on this node is the log" in taken.node_why


def test_a_diverged_node_is_kept_out_until_it_is_cleared(
    pair: Pair, local_session: Any, tmp_path: Path
) -> None:
    """A run fails over from a diverged node; no run reads the node until it is cleared."""
    at = TopicPartition(pair.topic, 0)
    pair.write(10)
    assert pair.copy() == "a"
    write(pair.a.cluster(), at, [Record(b"k", b"only here")])
    assert pair.copy() == "a"
    write(pair.b, at, [Record(b"k", b"something else")])
    pair.write(5)
    name, mirror, metrics = f"pair-{pair.topic[-8:]}", pair.mirror(), MetricsObserver(CLOCK)
    taken = pair.snapshot(retry=1)
    result = run(run_plan.plan(taken), mirror, lambda: local_session, [metrics], CLOCK)
    assert taken.node.name == "b"
    assert (result.exit_code, list(result.diverged)) == (0, ["b"]), result
    assert "node b holds another record than a" in result.diverged["b"]
    assert pair.arrived() == 16
    quarantined = "kafka_relay_source_quarantined", {"node_id": "b"}
    assert metrics.registry.get_sample_value(*quarantined) == 1

    assert reader.read_checkpoints(name, mirror, CLOCK).quarantined == result.diverged
    pair.write(5)
    taken = pair.snapshot(retry=1)
    assert (taken.node.name, taken.other_nodes) == ("a", ())
    assert {each.name: each.quarantined for each in taken.verdicts} == {"a": False, "b": True}

    config = tmp_path / "relay.yaml"
    config.write_text(mirror_file(name, mirror))
    (shown,) = json.loads(relay_here(config, "nodes", "--json").stdout)["mirrors"]
    assert [node["why"].startswith("quarantined: ") for node in shown["nodes"]] == [False, True]
    assert "its value differs; " in shown["nodes"][1]["why"]
    assert "its value differs; " in relay_here(config, "status").stdout
    wrong = relay_here(config, "nodes", "--clear", "c")
    assert (wrong.returncode, error_line(wrong)) == (2, "no node is called 'c'; valid nodes: a, b")
    cleared = relay_here(config, "nodes", "--clear", "b")
    assert cleared.returncode == 0
    assert cleared.stdout.startswith(
        f"{name}: node b: cleared; it was in quarantine: {at} at offset 10: node b holds another"
    )
    again = relay_here(config, "nodes", "--clear", "b")
    assert (again.returncode, again.stdout) == (0, f"{name}: node b: not in quarantine\n")
    stored = reader.read_checkpoints(name, mirror, CLOCK)
    assert not stored.quarantined

    assert pair.snapshot(retry=1).node.name == "b"
    # whichever node's record is the last one copied, both hold it
    for node in (taken.node, Cluster("b", pair.b.bootstrap_servers)):
        known = stored.checkpoints.values()
        assert node_selection.find_divergence(name, node, known, CopyOptions(), CLOCK) is None


def test_no_node_can_be_read(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """After `give_up_after`, one line names every node and its error."""
    clock = Sleeping()
    mirror = pair.mirror()
    down = {"bootstrap_servers": (DOWN,)}
    nobody = with_nodes(mirror, *(node.model_copy(update=down) for node in mirror.source.nodes))
    with pytest.raises(SourceError) as caught:
        cluster_snapshot.take_snapshot("nobody", nobody, clock)
    line = str(caught.value)
    assert line.startswith("no node of the source can be read: a: ")
    assert "; b: " in line
    assert line.count("cannot be reached") == 2
    assert caught.value.exit_code == 1
    assert sum(clock.waits) == pytest.approx(60)
    assert all(
        min(5, 0.1 * 2**n) / 2 <= wait <= min(5, 0.1 * 2**n)
        for n, wait in enumerate(clock.waits[:-1])
    ), clock.waits
    assert all(
        record.message.startswith(f"nobody: {line}; trying again for ") for record in caplog.records
    )
    assert 60 / 10 - 1 < len(caplog.records) <= 60 / 5
    clock.waits.clear()
    caplog.clear()
    with pytest.raises(SourceError):
        cluster_snapshot.take_snapshot("nobody", nobody, clock, patient=False)
    assert sum(clock.waits) == pytest.approx(5)
    assert not caplog.records


def test_copies_must_not_loop(pair: Pair) -> None:
    """A topic that the source itself has from the destination is refused, to prevent a loop."""
    pair.write(3, to="b")
    ensure_homes(pair.b)
    ensure_homes(pair.destination)
    b, there = pair.b, f"there-{pair.topic[-8:]}"
    chain = f"{there}.chain"

    def why_not(source: Cluster, topic: str, to: str) -> str:
        around = mirror_of(source, b, topic, rename={topic: to})
        return refusal_of(cluster_snapshot.take_snapshot("around", around, CLOCK))

    onwards = mirror_of(b, pair.destination, pair.topic, rename={pair.topic: there})
    copied_by(there, onwards)
    why = why_not(pair.destination, there, "x")
    assert f"topic '{there}' at source node only" in why
    assert f"is a copy of topic '{pair.topic}' of the" in why
    copied_by(f"{there}-2", mirror_of(b, b, pair.topic, rename={pair.topic: chain}))
    copied_by(f"{there}-3", mirror_of(b, b, chain, rename={chain: f"{chain}.on"}))
    why = why_not(b, chain, pair.topic)
    assert f"copying it would create a loop; add '{chain}' to topics.deny" in why


def test_a_copy_that_comes_while_a_snapshot_is_taken(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two mirrors that begin at once copy no copies back: what is below the ends was looked at."""
    here, there = f"here-{pair.topic[-8:]}", f"there-{pair.topic[-8:]}"
    write(pair.b, TopicPartition(pair.topic, 0), numbered(3))
    create(pair.destination, there, 1, KEPT)
    write(pair.destination, TopicPartition(there, 0), numbered(1))
    ensure_homes(pair.destination)
    onwards = mirror_of(pair.b, pair.destination, pair.topic, rename={pair.topic: there})
    back = mirror_of(pair.destination, pair.b, there, rename={there: here})
    before = start_offsets.new_starts

    def copy_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        copied_by("onwards", onwards)
        return before(*arguments)

    monkeypatch.setattr(start_offsets, "new_starts", copy_first)
    snapshot = cluster_snapshot.take_snapshot("back", back, CLOCK)
    assert [each.end_offset for each in snapshot.positions] == [5], "the copies are below the end"
    assert "copying it would create a loop" in refusal_of(snapshot)


def test_hops_that_an_open_transaction_hides(pair: Pair) -> None:
    """A round of a session waits for them, too: it copies nothing that returns."""
    here, at = f"here-{pair.topic[-8:]}", TopicPartition(f"there-{pair.topic[-8:]}", 0)
    name, original = f"m-{pair.topic[-8:]}", TopicPartition(pair.topic, 0)
    create(pair.destination, at.topic, 1, KEPT)
    ensure_homes(pair.destination)
    with ClusterClient(pair.b, SourceError) as known:
        ids = {"only": known.metadata().cluster_id}
    hidden = replace(model.Checkpoint.initial(name, original, at, 1), cluster_ids=ids)
    key, value, _ = checkpoints.to_record(hidden)
    home = checkpoints.home(checkpoints.TOPIC, key)
    opened, copying = (independent.transactional(pair.destination, f"{who}-{name}") for who in "ab")
    opened.begin_transaction()
    opened.produce(home.topic, b"", b"open", home.partition)
    assert opened.flush(30) == 0
    copying.begin_transaction()
    copying.produce(at.topic, b"a copy", partition=0)
    copying.produce(home.topic, value, key, home.partition)
    copying.commit_transaction(30)
    settled_end(pair.destination, at)

    class Waiting(SystemClock):
        """The transaction ends once somebody waits."""

        waits = 0

        def sleep(self, seconds: float) -> None:
            self.waits += 1
            if self.waits == 1:
                opened.abort_transaction(30)
            super().sleep(seconds)

    back = mirror_of(pair.destination, pair.b, at.topic, rename={at.topic: here})
    clock = Waiting()
    taken = cluster_snapshot.take_snapshot("back", back, clock, patient=False, run_id="run")
    if not clock.waits:
        opened.abort_transaction(30)
    assert [each.end_offset for each in taken.positions] == [2], "the copy is below the end"
    assert "copying it would create a loop" in refusal_of(taken)


def test_a_ring_of_three_clusters_is_refused(pair: Pair) -> None:
    """By the mirror that would close it, with the path; with prefixes, nothing returns."""
    a, b, c = pair.a.cluster(), pair.b, pair.destination
    name = pair.topic[-8:]
    write(a, TopicPartition(pair.topic, 0), numbered(3))
    for cluster in (a, b):
        ensure_homes(cluster)

    def copy(mirror_name: str, source: Cluster, to: Cluster, **topics: Any) -> dict[str, str]:
        """Return why topics are refused, after all others were copied."""
        taken = copied_by(f"{mirror_name}{name}", mirror_of(source, to, f".*{name}", **topics))
        return {topic: str(error) for topic, error in taken.refused.items()}

    # the mirror in the middle has begun before there is a copy
    assert copy("bc", b, c) == {}
    assert copy("ab", a, b) == {}
    assert copy("bc", b, c) == {}
    (why,) = copy("ca", c, a).values()
    way = (
        f"is a copy of topic '{pair.topic}' of the destination ('{pair.topic}' at the destination"
        f" -> '{pair.topic}' at ID (mirror 'ab{name}')"
        f" -> '{pair.topic}' at the source (mirror 'bc{name}')): copying it would create a loop;"
        f" add '{pair.topic}' to topics.deny"
    )
    assert re.search(re.escape(way).replace("ID", r"\S{22}"), why), why
    assert len(records_of(a, TopicPartition(pair.topic, 0))) == 3
    # the hub's other side, under a prefix
    assert copy("cb", c, b, rename="c.{topic}", deny=[pair.topic]) == {}


def test_a_diverged_node_is_not_read(pair: Pair) -> None:
    """A node that differs at the checkpoint is refused with a remedy, and not copied.

    The same record at another time is another one.
    """
    pair.write(10)
    assert pair.copy() == "a"
    last = Record(b"k", b"v")
    write(pair.a.cluster(), TopicPartition(pair.topic, 0), [last])
    assert pair.copy() == "a"
    type_, ms = last.timestamp
    for _ in range(3):
        write(pair.b, TopicPartition(pair.topic, 0), [last._replace(timestamp=(type_, ms + 1))])
    taken = pair.snapshot()
    ranges = run_plan.plan(
        replace(taken, positions=[replace(position, end_offset=13) for position in taken.positions])
    ).ranges
    (b,) = taken.other_nodes

    (outcome,) = copy_ranges(CopyJob(taken.mirror, "run", b, pair.destination), ranges)

    facts = outcome.status, outcome.error_kind, outcome.exit_code
    assert facts == (Status.FAILED, "DivergedNodeError", 3)
    assert outcome.error == (
        f"{pair.topic}-0 at offset 10: "
        "node b holds another record than a, from which it was copied: its timestamp differs"
        " (timestamps count);"
        " find out which node is right, rebuild the other one, then `relay nodes --clear b`"
    )
    assert pair.arrived() == 11


def test_the_last_node_is_kept_until_it_fails(pair: Pair) -> None:
    """The node read last is read again, and by a retry the other one.

    If it is down, the other one continues the copy.
    """
    for _ in range(2):
        pair.write(10)
        assert pair.copy() == "a"
    assert [pair.snapshot(retry).node.name for retry in (0, 1, 2)] == ["a", "b", "a"]
    pair.write(5)
    pair.a.brokers[0].kill()
    try:
        taken = pair.snapshot()
        assert taken.node.name == "b"
        assert taken.node_why.startswith("the next healthy one; a: ")
        assert "cannot be reached" in taken.node_why
        assert pair.copy() == "b"
    finally:
        pair.a.brokers[0].start()
    assert pair.arrived() == 25
    assert pair.copy() == "b", "without failback it stays"
    assert [pair.snapshot(retry).node.name for retry in (0, 1, 2)] == ["b", "a", "b"]
    until(lambda: pair.snapshot(failback="when_healthy").node.name == "a", "the first node")


def test_leader_epochs_of_one_node_mean_nothing_on_another(pair: Pair) -> None:
    """A checkpoint written from one node must not carry the leader epoch of another node."""
    at = TopicPartition(pair.topic, 0)
    pair.a.brokers[0].kill()
    pair.a.brokers[0].start()  # a new epoch
    pair.write(10)
    assert pair.copy() == "a"
    checkpoint = reader.read_checkpoints(pair.snapshot().mirror, pair.mirror(), CLOCK).checkpoints[
        at
    ]
    assert checkpoint.leader_epoch > 0
    for cluster in (pair.a.cluster(), pair.b):
        write_transaction(cluster, at, [Record(b"k", b"never")], commit=False)
        assert settled_end(cluster, at) == 12
    pair.a.brokers[0].kill()
    try:
        assert pair.copy() == "b"
        checkpoint = reader.read_checkpoints(
            pair.snapshot().mirror, pair.mirror(), CLOCK
        ).checkpoints[at]
        assert (checkpoint.leader_epoch, checkpoint.leader_epoch_end) == (0, 12), (
            "the epoch of the marker, on this node"
        )
        assert not run_plan.plan(pair.snapshot()).data_losses
    finally:
        pair.a.brokers[0].start()


def test_a_node_with_too_much_lag_is_not_read(pair: Pair) -> None:
    """A node whose lag exceeds the threshold is not read, even if it was read last."""
    pair.write(10)
    assert pair.copy(lag_threshold=5) == "a"
    pair.write(6, to="b")
    taken = pair.snapshot(lag_threshold=5)
    assert taken.node.name == "b"
    assert "6 records behind, more than lag_threshold=5" in taken.node_why
    assert pair.snapshot(lag_threshold=6).node.name == "a"


def test_a_node_without_the_records_is_not_read(pair: Pair) -> None:
    """A node that ends before the checkpoint is not eligible, and the run says why."""
    pair.write(10, to="b")
    pair.write(4, to="a")
    assert pair.copy(lag_threshold=1) == "b"
    taken = pair.snapshot()
    assert taken.node.name == "b"
    mirror = pair.mirror()
    (a, b) = mirror.source.nodes
    nodes = a, b.model_copy(update={"bootstrap_servers": (DOWN,)})
    only_short = with_nodes(mirror, *nodes)
    why = (
        r"no node of the source can be read: a: .* ends at 4 on this node, and was copied up to 10"
    )
    with pytest.raises(SourceError, match=why):
        cluster_snapshot.take_snapshot(f"pair-{pair.topic[-8:]}", only_short, Sleeping())


def with_nodes(mirror: Mirror, *nodes: Any) -> Mirror:
    source = mirror.source.model_copy(update={"nodes": nodes})
    return mirror.model_copy(update={"source": source})


def test_all_nodes_lost_what_was_copied(pair: Pair) -> None:
    """When every node answers and none has the records, the guard reports a loss."""
    pair.write(10, to="b")
    assert pair.copy(lag_threshold=1) == "b"
    mirror = pair.mirror()
    (a, _) = mirror.source.nodes
    both_short = with_nodes(mirror, a, a.model_copy(update={"name": "b"}))
    taken = cluster_snapshot.take_snapshot(f"pair-{pair.topic[-8:]}", both_short, CLOCK)
    (loss,) = run_plan.plan(taken).data_losses
    assert isinstance(loss, DataLossError)
    assert "above the source's end offset 0" in str(loss)


def _selected(job: CopyJob, copy_range: CopyRange) -> list[pa.RecordBatch]:
    """Read a range on the job's node, and select the records whose value is divisible by 3."""
    selected = []
    for batch in read_rows(job, [copy_range], range(1), ("offset", "value"), CLOCK):
        keep = [
            marker is not None or int(value) % 3 == 0
            for marker, value in zip(
                batch.column(MARKER).to_pylist(), batch.column("value").to_pylist(), strict=True
            )
        ]
        selected.append(batch.filter(pa.array(keep)))
    return selected


def _shifted_pair(pair: Pair) -> CopyJob:
    """Write 20 records to both nodes, with something that was aborted on b in the middle."""
    at = TopicPartition(pair.topic, 0)
    numbers = [Record(b"k", f"{number}".encode()) for number in range(20)]
    for cluster, aborts in ((pair.a.cluster(), False), (pair.b, True)):
        write(cluster, at, numbers[:10])
        sender = independent.transactional(cluster, f"{pair.topic}-{aborts}")
        if aborts:
            sender.begin_transaction()
            independent.put(sender, at, [Record(b"k", b"-1")])
            sender.flush()
            sender.abort_transaction(30)
        write(cluster, at, numbers[10:])
        settled_end(cluster, at)
    create(pair.destination, f"pair.{pair.topic}", 1, KEPT)
    options = CopyOptions(give_up_after_ms=10_000, coalesce_below_bytes=0)
    node = replace(pair.a.cluster(), name="a")
    return CopyJob(f"pair-{pair.topic[-8:]}", "run", node, pair.destination, options)


def _range(pair: Pair, job: CopyJob, start: int, end: int) -> CopyRange:
    at = TopicPartition(pair.topic, 0)
    committed = reader.read_checkpoints(job.mirror, pair.mirror(), CLOCK)
    return CopyRange(
        model.OffsetRange(at, start, end),
        TopicPartition(f"pair.{pair.topic}", 0),
        checkpoint=committed.checkpoints.get(at),
    )


def _on(job: CopyJob, pair: Pair, node: str) -> CopyJob:
    cluster = pair.a.cluster() if node == "a" else pair.b
    return replace(job, node=replace(cluster, name=node))


@pytest.mark.parametrize(("reader", "writer"), [("a", "b"), ("b", "a")])
def test_a_selection_is_not_applied_to_another_log(pair: Pair, reader: str, writer: str) -> None:
    """What a predicate kept on one node is never applied to the records of another."""
    job = _shifted_pair(pair)
    at = TopicPartition(pair.topic, 0)
    ends = {"a": settled_end(pair.a.cluster(), at), "b": settled_end(pair.b, at)}
    copy_range = _range(pair, job, 0, ends["a"])
    selected = _selected(_on(job, pair, reader), copy_range)
    (stale,) = copy_kept(_on(job, pair, writer), [copy_range], selected, CLOCK)
    assert (stale.status, stale.error_kind) == (Status.FAILED, "StalePlanError"), stale
    assert f"selected records of node {reader}, and node {writer} is read now" in stale.error
    assert stale.records == 0
    assert spark_jobs._may_pass(stale), "the driver plans it again"
    whole = _range(pair, job, 0, ends[writer])
    again = _selected(_on(job, pair, writer), whole)
    (done,) = copy_kept(_on(job, pair, writer), [whole], again, CLOCK)
    assert (done.status, done.error) == (Status.DONE, "")
    copies = records_of(pair.destination, TopicPartition(f"pair.{pair.topic}", 0))
    assert [int(record.value or b"") for record in copies] == [0, 3, 6, 9, 12, 15, 18]


def test_a_selection_on_two_logs_is_used_as_far_as_its_own_goes(pair: Pair) -> None:
    """If the reader changed nodes halfway, what it selected on the writer's node is copied."""
    job = _shifted_pair(pair)
    end = settled_end(pair.b, TopicPartition(pair.topic, 0))
    whole = _range(pair, job, 0, end)
    on_a = _selected(_on(job, pair, "a"), _range(pair, job, 0, 10))[:-1]
    on_b = _selected(_on(job, pair, "b"), _range(pair, job, 10, end))
    (stale,) = copy_kept(_on(job, pair, "a"), [whole], [*on_a, *on_b[1:]], CLOCK)
    assert (stale.error_kind, stale.next_offset, stale.records) == ("StalePlanError", 10, 4)
    rest = _range(pair, job, 0, end)
    (done,) = copy_kept(_on(job, pair, "b"), [rest], _selected(_on(job, pair, "b"), rest), CLOCK)
    assert (done.status, done.error) == (Status.DONE, "")
    copies = records_of(pair.destination, TopicPartition(f"pair.{pair.topic}", 0))
    assert [int(record.value or b"") for record in copies] == [0, 3, 6, 9, 12, 15, 18]

"""Small ranges share transactions, and each topic-partition has one owner at a time."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import DestinationError, FencedError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.fencing import take_over
from relay_pipelines.model import (
    Cluster,
    CopyJob,
    CopyOptions,
    CopyRange,
    Outcome,
    Status,
    TopicPartition,
)
from relay_pipelines.plan.owners import shared_id, with_owners
from relay_pipelines.prepare import owners
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import encode
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, Clusters, ensure_homes, numbered, records_of
from tests.support import commands
from tests.support.independent import Record, create, write
from tests.support.planned_copy import at_destination
from tests.support.sleeping_clock import Untiring

CLOCK = SystemClock()
PARTITIONS = 32  # eight of them share an id


class Topic:
    """A topic whose partitions share four ids, with three records in each."""

    def __init__(self, source: Cluster, destination: Cluster, name: str) -> None:
        self.source, self.destination, self.name = source, destination, name
        self.mirror_name = f"owners-{name[-8:]}"
        self.records = 0
        for cluster in (source, destination):
            create(cluster, name, PARTITIONS, KEPT)
        ensure_homes(destination)
        self.write()

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(PARTITIONS)]

    @property
    def mirror(self) -> Mirror:
        return Mirror.model_validate(commands.mirror(self.source, self.destination, self.name))

    def write(self) -> None:
        for partition in self.partitions:
            write(self.source, partition, numbered(3, first=self.records))
        self.records += 3

    def snapshot(self) -> ClusterSnapshot:
        return read_clusters.take_snapshot(Sides(self.mirror_name, self.mirror, CLOCK))

    def planned(self, scope: str = "") -> list[CopyRange]:
        snapshot = self.snapshot()
        ranges = with_owners(self.mirror_name, scope, run_plan.plan(snapshot).ranges, {})
        at_destination(snapshot, partial(owners.claim, ranges=ranges))
        return ranges

    def copy(self, ranges: list[CopyRange], clock: SystemClock = CLOCK) -> list[Outcome]:
        clusters, options = (self.source, self.destination), self.mirror.copy_options
        return list(
            copy_ranges(CopyJob(self.mirror_name, "run", *clusters, options), ranges, clock)
        )

    def arrived(self, partition: TopicPartition) -> list[Record]:
        return records_of(self.destination, partition)

    def assert_copied(self) -> None:
        for partition in self.partitions:
            expected = records_of(self.source, partition)
            assert self.arrived(partition) == expected
            assert len(expected) == self.records


@pytest.fixture
def topic(sides: Clusters, topic_name: str) -> Topic:
    return Topic(*sides, topic_name)


def statuses(outcomes: list[Outcome]) -> set[Status]:
    return {outcome.status for outcome in outcomes}


def test_ranges_of_one_owner_share_a_transaction(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many commits as owners; what had none is claimed from its own id."""
    commits = []

    def failpoint(point: Failpoint) -> None:
        if point is Failpoint.AFTER_END_TXN:
            commits.append(point)

    assert statuses(topic.copy(run_plan.plan(topic.snapshot()).ranges[:12])) == {Status.DONE}
    assert topic.snapshot().state.owners == {}
    topic.write()
    ranges = topic.planned()
    monkeypatch.setattr(transaction, "failpoint", failpoint)

    outcomes = topic.copy(ranges)

    found = [(outcome.status, outcome.records, outcome.chunks) for outcome in outcomes]
    assert Counter(found) == {(Status.DONE, 3, 1): 12, (Status.DONE, 6, 1): PARTITIONS - 12}
    assert len(commits) == len({copy_range.owner for copy_range in ranges}) == 4
    topic.assert_copied()
    topic.write()
    assert statuses(topic.copy(topic.planned())) == {Status.DONE}
    topic.assert_copied()
    recorded = topic.snapshot().state.owners
    assert recorded == {at: shared_id(topic.mirror_name, "", at) for at in topic.partitions}


def test_runs_of_two_scopes_claim_at_once(topic: Topic) -> None:
    """However their claims and copies interleave, no record is lost or doubled."""
    together = threading.Barrier(2)

    def run(scope: str) -> set[Status]:
        together.wait(150)
        try:
            return statuses(topic.copy(topic.planned(scope)))
        except FencedError:
            return {Status.FENCED}

    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            found = set().union(*pool.map(run, ["a", "b"]))
        assert found <= {Status.DONE, Status.FENCED}
        topic.write()
    topic.copy(topic.planned("a"))
    topic.assert_copied()


def test_what_a_killed_attempt_left_open_is_aborted_at_once(topic: Topic) -> None:
    """A transaction of the task's last id hides the checkpoints of its first one for a moment."""
    ranges = topic.planned()
    last = max(copy_range.owner for copy_range in ranges)
    with ClusterClient(topic.destination, DestinationError) as client:
        killed = take_over(client, last)
        state = checkpoint.homes(checkpoint.TOPIC)
        killed.add(state)
        for home in state:
            killed.send(home, encode(b"key", b"value", 0))
        killed.drain()
        clock = Untiring(seconds=CopyOptions().transaction_timeout_ms / 2_000)
        assert statuses(topic.copy(ranges, clock)) == {Status.DONE}
    topic.assert_copied()

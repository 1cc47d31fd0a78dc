"""Two tasks on one topic-partition: only the later one can commit, whatever the earlier one does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.clock import SystemClock
from relay_pipelines.copy.faults import Point
from relay_pipelines.copy.producer import TransactionalProducer
from relay_pipelines.copy.transaction import transactional_id
from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.errors import DestinationError
from relay_pipelines.model import Status
from relay_pipelines.wire.cluster import ClusterClient
from tests.copying import Mirror, numbered
from tests.independent import until


@pytest.fixture
def mirror(source_cluster: EmbeddedCluster, destination_cluster: EmbeddedCluster, topic_name: str) -> Mirror:
    """A topic of several chunks."""
    made = Mirror(source_cluster.cluster(), destination_cluster.cluster(), topic_name).with_options(chunk_bytes=20_000)
    made.write(*(numbered(100, 100, first) for first in range(0, 1000, 100)))
    return made


def take_over(mirror: Mirror) -> None:
    """Do what a newer task does first."""
    with ClusterClient(mirror.destination, DestinationError) as client:
        name = transactional_id(mirror.name, mirror.at)
        TransactionalProducer(client, name, mirror.options, SystemClock()).start()


@pytest.mark.parametrize("point", [Point.MID_CHUNK, Point.BEFORE_CHECKPOINT, Point.BEFORE_END_TXN, Point.AFTER_END_TXN])
def test_a_task_that_was_overtaken_stops_and_commits_no_more(
    mirror: Mirror, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a newer task takes over, the older one is told that it is fenced, and what it had not committed is not there."""
    passes = 0

    def reach(reached: Point) -> None:
        nonlocal passes
        passes += reached is point
        if reached is point and passes == 2:
            take_over(mirror)

    with monkeypatch.context() as patched:
        patched.setattr(transaction, "reach", reach)
        outcome = mirror.try_copy()
    assert (outcome.status, outcome.error_kind) == (Status.FENCED, "FencedError")
    assert "\n" not in outcome.error
    assert outcome.next_offset < 1000
    assert len(mirror.copied()) == outcome.records == outcome.next_offset
    mirror.copy()
    mirror.assert_equal()


def test_an_overtaken_task_does_not_take_its_id_back_after_losing_its_connections(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry asks for the id as the holder of its old epoch, and is refused: it must not fence the newer task."""

    def reach(reached: Point) -> None:
        if reached is Point.BEFORE_CHECKPOINT:
            take_over(mirror)
            raise DestinationError("the connection is lost")

    with monkeypatch.context() as patched:
        patched.setattr(transaction, "reach", reach)
        outcome = mirror.try_copy()
    assert outcome.status is Status.FENCED
    assert mirror.copied() == []
    mirror.copy()
    mirror.assert_equal()


def test_four_tasks_at_once_on_the_same_range(mirror: Mirror) -> None:
    """Tasks that race for one range may all fail but one; together with a last run they copy every record once."""
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: mirror.try_copy(), range(4)))
    assert {outcome.status for outcome in outcomes} <= {Status.DONE, Status.FENCED}
    mirror.copy()
    mirror.assert_equal()


def test_an_expired_producer_id_is_not_taken_back(
    source_cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator forgets an id that was idle for too long; by then it may be another task's, so the old one stops."""
    settings = {
        "transactional.id.expiration.ms": 3_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    }
    with EmbeddedCluster("forgetful", folder=tmp_path_factory.mktemp("forgetful"), config=settings) as forgetful:
        mirror = Mirror(source_cluster.cluster(), forgetful.cluster(), topic_name).with_options(chunk_bytes=1)
        mirror.write(numbered(10, 10_000), numbered(10, 10_000, 10))
        name = transactional_id(mirror.name, mirror.at)
        idled = False

        def reach(reached: Point) -> None:
            nonlocal idled
            if reached is Point.AFTER_END_TXN and not idled:
                idled = True
                until(lambda: not known(mirror, name), "the coordinator forgets the id")
                raise DestinationError("the connection is lost")

        with monkeypatch.context() as patched:
            patched.setattr(transaction, "reach", reach)
            outcome = mirror.try_copy()
        assert (outcome.status, outcome.error_kind) == (Status.FENCED, "FencedError")
        mirror.known = (mirror.checkpoint(), 0)
        mirror.copy()
        mirror.assert_equal()


def known(mirror: Mirror, transactional_id: str) -> bool:
    """Whether the coordinator knows a transactional id."""
    with ClusterClient(mirror.destination, DestinationError) as client:
        coordinator = client.coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (found,) = client.call(coordinator, request, 0).transaction_states
        return found.error_code == 0

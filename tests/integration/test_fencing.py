"""Two tasks on one topic-partition: only the newer one can commit."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import DestinationError, FencedError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import home
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Status
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.producer import TransactionalProducer
from tests.copying import Clusters, Mirror, numbered
from tests.support.independent import until

WITNESS = home(checkpoint.TOPIC, b"any")


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of several chunks."""
    made = Mirror(*sides, topic_name).with_options(chunk_bytes=20_000)
    made.write(*(numbered(100, 100, first) for first in range(0, 1000, 100)))
    return made


def take_over(mirror: Mirror) -> None:
    """Fence the older task, as a newer one does first."""
    with ClusterClient(mirror.destination, DestinationError) as client:
        name = own_id(mirror.name, mirror.at)
        TransactionalProducer(client, name, mirror.options, WITNESS).start()


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.MID_CHUNK,
        Failpoint.BEFORE_CHECKPOINT,
        Failpoint.BEFORE_END_TXN,
        Failpoint.AFTER_END_TXN,
    ],
)
def test_an_overtaken_task_commits_nothing_more(
    mirror: Mirror, point: Failpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a newer task takes over, the older one is fenced, and its open chunk is aborted."""
    passes = 0

    def failpoint(reached: Failpoint) -> None:
        nonlocal passes
        passes += reached is point
        if reached is point and passes == 2:
            take_over(mirror)

    with monkeypatch.context() as patched:
        patched.setattr(transaction, "failpoint", failpoint)
        outcome = mirror.try_copy()
    assert (outcome.status, outcome.error_kind) == (Status.FENCED, "FencedError")
    assert "\n" not in outcome.error
    assert outcome.next_offset < 1000
    assert len(mirror.copied()) == outcome.records == outcome.next_offset
    mirror.copy()
    mirror.assert_equal()


def test_an_overtaken_task_does_not_fence_the_newer_one(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry presents the old epoch, so it is refused and cannot fence the newer task."""

    def failpoint(reached: Failpoint) -> None:
        if reached is Failpoint.BEFORE_CHECKPOINT:
            take_over(mirror)
            raise DestinationError("the connection is lost")

    with monkeypatch.context() as patched:
        patched.setattr(transaction, "failpoint", failpoint)
        outcome = mirror.try_copy()
    assert outcome.status is Status.FENCED
    assert outcome.error.startswith(f"{mirror.at}: ")
    assert mirror.copied() == []
    mirror.copy()
    mirror.assert_equal()


def test_an_expired_producer_id_is_not_reused(
    source_cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task whose producer id expired stops, because another task may own the id by now."""
    settings = {
        "transactional.id.expiration.ms": 3_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    }
    with LocalCluster(
        "forgetful", folder=tmp_path_factory.mktemp("forgetful"), config=settings
    ) as forgetful:
        mirror = Mirror(source_cluster.cluster(), forgetful.cluster(), topic_name).with_options(
            chunk_bytes=1
        )
        mirror.write(numbered(10, 10_000), numbered(10, 10_000, 10))
        name = own_id(mirror.name, mirror.at)
        idled = False

        def failpoint(reached: Failpoint) -> None:
            nonlocal idled
            if reached is Failpoint.AFTER_END_TXN and not idled:
                idled = True
                until(lambda: not known(mirror, name), "the coordinator forgets the id")
                raise DestinationError("the connection is lost")

        with monkeypatch.context() as patched:
            patched.setattr(transaction, "failpoint", failpoint)
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


def test_an_overtaken_task_with_an_unanswered_commit_stops(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unanswered commit, an epoch that is one higher means a takeover, not a timeout."""
    newer: list[TransactionalProducer] = []
    end = TransactionalProducer._end

    def lose(
        producer: TransactionalProducer, *, committed: bool, expected: frozenset[int] = frozenset()
    ) -> None:
        end(producer, committed=committed, expected=expected)
        if committed and not newer:
            newer.append(
                TransactionalProducer(
                    client, own_id(mirror.name, mirror.at), mirror.options, WITNESS
                )
            )
            newer[0].start()
            raise DestinationError("the connection is lost")

    with (
        ClusterClient(mirror.destination, DestinationError) as client,
        monkeypatch.context() as patched,
    ):
        patched.setattr(TransactionalProducer, "_end", lose)
        assert mirror.try_copy().status is Status.FENCED
        newer[0].start()  # it still owns the id
    mirror.copy()
    mirror.assert_equal()


def test_a_takeover_in_progress_is_fencing(mirror: Mirror) -> None:
    """A takeover that waits for our transaction to be aborted is fencing, not a timeout of ours."""
    name = own_id(mirror.name, mirror.at)
    with (
        ClusterClient(mirror.destination, DestinationError) as one,
        ClusterClient(mirror.destination, DestinationError) as two,
    ):
        older = TransactionalProducer(one, name, mirror.options, WITNESS)
        older.start()
        older.add([mirror.at])
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=20_000, producer_id=-1, producer_epoch=-1
        )
        assert (
            two.call(two.coordinator(name), request, 4).error_code == 51
        )  # CONCURRENT_TRANSACTIONS
        with pytest.raises(FencedError):
            older.add([WITNESS])

"""A failed attempt leaves no trace, and one that was overtaken by a newer task commits nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import (
    AbortableError,
    DestinationError,
    FencedError,
    RelayError,
    SourceError,
)
from relay_pipelines.formats import CHECKPOINTS
from relay_pipelines.ledger import checkpoint
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Checkpoint, Outcome, Status
from relay_pipelines.plan.owners import own_id
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.producer import TransactionalProducer
from tests.copying import KEPT, Clusters, Mirror, numbered, write_transaction
from tests.support.at_failpoint import at_failpoint
from tests.support.independent import create, delete, until
from tests.support.sleeping_clock import SleepingClock


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic and its copy, with the brokers' defaults."""
    return Mirror(*sides, topic_name)


class HurriedClock(SystemClock):
    """The system clock; once hurried, every reading advances it by one second."""

    def __init__(self) -> None:
        self.hurried = False
        self._ahead = 0

    def monotonic(self) -> float:
        self._ahead += self.hurried
        return super().monotonic() + self._ahead


class ForgivingClock(SleepingClock):
    """It gives a broker time to end a transaction, of which it asks again after up to 0.2 s."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        SystemClock().sleep(min(seconds, 0.2))


def fails(kind: type[RelayError], text: str = "made to fail") -> Callable[[], NoReturn]:
    def happen() -> NoReturn:
        raise kind(text)

    return happen


IN_A_CHUNK = [
    Failpoint.MID_CHUNK,
    Failpoint.BEFORE_CHECKPOINT,
    Failpoint.BEFORE_END_TXN,
    Failpoint.AFTER_END_TXN,
]


@pytest.mark.parametrize(
    ("point", "number", "kind"),
    [
        (Failpoint.AFTER_INIT_PRODUCER_ID, 1, DestinationError),
        *((point, number, DestinationError) for point in IN_A_CHUNK for number in (1, 2)),
        *((point, 2, AbortableError) for point in IN_A_CHUNK),
        (Failpoint.MID_CHUNK, 2, SourceError),
    ],
)
def test_a_failed_attempt_is_repeated(
    mirror: Mirror,
    point: Failpoint,
    number: int,
    kind: type[RelayError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever an attempt fails, the task retries, and every record arrives once and in order."""
    for first, size in ((0, 1000), (10, 20), (20, 20), (30, 1000), (40, 20)):
        mirror.write(numbered(10, size, first))
    passed = at_failpoint(monkeypatch, point, number, fails(kind))
    outcome = mirror.with_options(chunk_bytes=10_000, fetch_max_bytes=1000).try_copy()
    assert outcome.status is Status.DONE
    assert passed.count(point) >= number, "it has failed"
    mirror.assert_equal()
    mirror.assert_ledger_closes()


def test_a_fingerprint_is_only_taken_of_committed_records(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records read by an aborted attempt never become the fingerprint of a checkpoint."""
    write_transaction(mirror.source, mirror.at, numbered(10), commit=False)
    mirror.write(numbered(10, 1000, 10))
    clock = HurriedClock()

    def fail() -> NoReturn:
        clock.hurried = True
        raise DestinationError("made to fail")

    at_failpoint(monkeypatch, Failpoint.BEFORE_END_TXN, 1, fail)
    mirror.with_options(chunk_ms=500, fetch_max_bytes=1)
    (outcome,) = copy_ranges(mirror.job, [mirror.range()], clock)
    assert (outcome.error, outcome.records) == ("", 10)
    stored = [
        CHECKPOINTS.read(Checkpoint, each.value or b"") for each in mirror._own(checkpoint.TOPIC)
    ]
    first, *_, last = stored
    assert first.next_offset < 20
    assert first.fingerprint is None
    assert last.fingerprint is not None
    assert last.fingerprint.offset == 20
    mirror.assert_equal()


def test_give_up_after_counts_from_the_last_progress(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a range that makes no progress for `give_up_after` is given up."""
    mirror.write(*(numbered(10, 1000, first) for first in range(0, 60, 10)))
    # half of a wait is left to chance: of at least 15 s each, four fill the minute
    waits = dict.fromkeys(("backoff_min_ms", "backoff_max_ms"), 30_000)
    mirror.with_options(chunk_bytes=1, give_up_after_ms=60_000, **waits)

    def copied_to(end: int, fails_at: Callable[[int], bool]) -> tuple[Outcome, int, float]:
        """Copy while some commits fail; return also their number, and what was waited."""
        clock, passes = ForgivingClock(), 0

        def failpoint(point: Failpoint) -> None:
            nonlocal passes
            passes += point is Failpoint.BEFORE_END_TXN
            if point is Failpoint.BEFORE_END_TXN and fails_at(passes):
                raise DestinationError("made to fail")

        monkeypatch.setattr(transaction, "failpoint", failpoint)
        (outcome,) = copy_ranges(mirror.job, [mirror.range(0, end)], clock)
        return outcome, passes, sum(clock.waits)

    outcome, _, slept = copied_to(50, lambda passes: passes % 2 == 1)
    assert outcome.status is Status.DONE
    assert slept > 60, "longer than it would wait without progress"
    outcome, passes, slept = copied_to(60, lambda _: True)
    facts = outcome.status, outcome.error, outcome.next_offset
    assert facts == (Status.FAILED, "made to fail", 50)
    assert slept >= 60
    assert 2 < passes <= 5
    assert len(mirror.copied()) == 50


@pytest.mark.newer_kafka
def test_a_destination_topic_recreated_during_a_run_stops_it(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task reports the lost copy, and the checkpoint still names the topic that held it."""
    mirror.write(*(numbered(10, 1000, first) for first in range(0, 100, 10)))
    mirror.with_options(chunk_bytes=15_000, coalesce_below_bytes=0)
    commits = 0

    def failpoint(point: Failpoint) -> None:
        nonlocal commits
        commits += point is Failpoint.AFTER_END_TXN
        if commits == 2 and point is Failpoint.MID_CHUNK:
            commits = 99
            delete(mirror.destination, mirror.topic)
            create(mirror.destination, mirror.topic, 1, KEPT)
            raise DestinationError("the leader is moving")

    monkeypatch.setattr(transaction, "failpoint", failpoint)
    outcome = mirror.try_copy()
    facts = outcome.status, outcome.error_kind, outcome.exit_code
    assert facts == (Status.FAILED, "DestinationTopicLostError", 3)
    assert 0 < mirror.checkpoint().next_offset < 100
    with ClusterClient(mirror.destination, DestinationError) as client:
        copies = mirror.checkpoint().copies
        assert copies is not None
        assert client.topic(mirror.topic).topic_id != copies.topic_id


WITNESS = checkpoint.home(checkpoint.TOPIC, b"any")


def several_chunks(mirror: Mirror) -> None:
    mirror.write(*(numbered(100, 100, first) for first in range(0, 1000, 100)))
    mirror.with_options(chunk_bytes=20_000)


def take_over(mirror: Mirror) -> None:
    """Fence the older task, as a newer one does first."""
    with ClusterClient(mirror.destination, DestinationError) as client:
        name = own_id(mirror.name, mirror.at)
        TransactionalProducer(client, name, mirror.options, WITNESS).start()


@pytest.mark.parametrize(
    ("point", "loses_connection"),
    [*((point, False) for point in IN_A_CHUNK), (Failpoint.BEFORE_CHECKPOINT, True)],
)
def test_an_overtaken_task_commits_nothing_more(
    mirror: Mirror, point: Failpoint, monkeypatch: pytest.MonkeyPatch, *, loses_connection: bool
) -> None:
    """Wherever a newer task takes over: the older one is fenced, and a retry fences nobody."""
    several_chunks(mirror)

    def overtaken() -> None:
        take_over(mirror)
        if loses_connection:
            raise DestinationError("the connection is lost")

    with monkeypatch.context() as patched:
        at_failpoint(patched, point, 2, overtaken)
        outcome = mirror.try_copy()
    assert (outcome.status, outcome.error_kind) == (Status.FENCED, "FencedError")
    assert outcome.error.startswith(f"{mirror.at}: ")
    assert "\n" not in outcome.error
    assert outcome.next_offset < 1000
    assert len(mirror.copied()) == outcome.records == outcome.next_offset
    mirror.copy()
    mirror.assert_equal()


def test_an_expired_producer_id_is_not_reused(
    source_cluster: LocalCluster, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose producer id expired stops, because another task may own the id by now."""
    settings = {
        "transactional.id.expiration.ms": 3_000,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    }
    with LocalCluster("forgetful", folder=tmp_path, config=settings) as forgetful:
        mirror = Mirror(source_cluster.cluster(), forgetful.cluster(), topic_name)
        mirror.with_options(chunk_bytes=1).write(numbered(10, 10_000), numbered(10, 10_000, 10))
        name = own_id(mirror.name, mirror.at)

        def idle() -> NoReturn:
            until(lambda: not known(mirror, name), "the coordinator forgets the id")
            raise DestinationError("the connection is lost")

        with monkeypatch.context() as patched:
            at_failpoint(patched, Failpoint.AFTER_END_TXN, 1, idle)
            outcome = mirror.try_copy()
        assert (outcome.status, outcome.error_kind) == (Status.FENCED, "FencedError")
        mirror.known = (mirror.checkpoint(), 0)
        mirror.copy()
        mirror.assert_equal()


def known(mirror: Mirror, transactional_id: str) -> bool:
    with ClusterClient(mirror.destination, DestinationError) as client:
        coordinator = client.coordinator(transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (found,) = client.call(coordinator, request, 0).transaction_states
        return found.error_code == 0


def test_an_overtaken_task_with_an_unanswered_commit_stops(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unanswered commit, an epoch that is one higher means a takeover, not a timeout."""
    several_chunks(mirror)
    newer: list[TransactionalProducer] = []
    end = TransactionalProducer._end

    def lose(
        producer: TransactionalProducer, *, committed: bool, expected: frozenset[int] = frozenset()
    ) -> None:
        end(producer, committed=committed, expected=expected)
        if committed and not newer:
            name = own_id(mirror.name, mirror.at)
            newer.append(TransactionalProducer(client, name, mirror.options, WITNESS))
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
        concurrent_transactions = 51
        assert two.call(two.coordinator(name), request, 4).error_code == concurrent_transactions
        with pytest.raises(FencedError):
            older.add([WITNESS])

"""A failed attempt leaves no trace: the next one resumes from the checkpoint."""

from __future__ import annotations

import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import AbortableError, DestinationError, RelayError, SourceError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Status
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from tests.copying import KEPT, Clusters, Mirror, numbered, write_transaction
from tests.support.independent import create, delete


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic and its copy, with the brokers' defaults."""
    return Mirror(*sides, topic_name)


def fail_at(
    monkeypatch: pytest.MonkeyPatch,
    point: Failpoint,
    number: int,
    kind: type[RelayError],
    clock: HurriedClock | None = None,
) -> list[Failpoint]:
    """Fail when the copy passes a failpoint for the n-th time, and hurry the clock after that.

    Returns:
        what has failed so far.
    """
    passes, failed = 0, []

    def failpoint(reached: Failpoint) -> None:
        nonlocal passes
        passes += reached is point
        if reached is point and passes == number:
            if clock is not None:
                clock.hurried = True
            failed.append(reached)
            raise kind("made to fail")

    monkeypatch.setattr(transaction, "failpoint", failpoint)
    return failed


class HurriedClock(SystemClock):
    """The system clock; once hurried, every reading advances it by one second."""

    def __init__(self) -> None:
        self.hurried = False
        self._ahead = 0

    def monotonic(self) -> float:
        self._ahead += self.hurried
        return super().monotonic() + self._ahead


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
    mirror.write(
        *(
            numbered(10, size, first)
            for first, size in ((0, 1000), (10, 20), (20, 20), (30, 1000), (40, 20))
        )
    )
    failed = fail_at(monkeypatch, point, number, kind)
    assert (
        mirror.with_options(chunk_bytes=10_000, fetch_max_bytes=1000).try_copy().status
        is Status.DONE
    )
    assert failed == [point]
    mirror.assert_equal()
    mirror.assert_ledger_closes()


def test_a_fingerprint_is_only_taken_of_committed_records(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records read by an aborted attempt never become the fingerprint of a checkpoint."""
    write_transaction(mirror.source, mirror.at, numbered(10), commit=False)
    mirror.write(numbered(10, 1000, 10))
    clock = HurriedClock()
    fail_at(monkeypatch, Failpoint.BEFORE_END_TXN, 1, DestinationError, clock)
    mirror.with_options(chunk_ms=500, fetch_max_bytes=1)
    (outcome,) = copy_ranges(mirror.job, [mirror.range()], clock)
    assert (outcome.error, outcome.records) == ("", 10)
    first, *_, last = [
        checkpoint.from_record(record.value or b"") for record in mirror._own(checkpoint.TOPIC)
    ]
    assert first.next_offset < 20
    assert first.fingerprint is None
    assert last.fingerprint is not None
    assert last.fingerprint.offset == 20
    mirror.assert_equal()


class SleepingClock(SystemClock):
    """A clock that advances only by sleeping, at once."""

    def __init__(self) -> None:
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_give_up_after_counts_from_the_last_progress(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a range that makes no progress for `give_up_after` is given up."""
    mirror.write(*(numbered(10, 1000, first) for first in range(0, 60, 10)))
    mirror.with_options(chunk_bytes=1, give_up_after_ms=1_000, backoff_min_ms=600)
    clock, passes = SleepingClock(), 0

    def every_other(point: Failpoint) -> None:
        nonlocal passes
        passes += point is Failpoint.BEFORE_END_TXN
        if point is Failpoint.BEFORE_END_TXN and passes % 2:
            raise DestinationError("made to fail")

    monkeypatch.setattr(transaction, "failpoint", every_other)
    (outcome,) = copy_ranges(mirror.job, [mirror.range(0, 50)], clock)
    assert outcome.status is Status.DONE
    assert clock.slept > 1, "longer than it would wait without progress"
    clock.slept, passes = 0.0, 0

    def always(point: Failpoint) -> None:
        nonlocal passes
        if point is Failpoint.BEFORE_END_TXN:
            passes += 1
            raise DestinationError("made to fail")

    monkeypatch.setattr(transaction, "failpoint", always)
    (outcome,) = copy_ranges(mirror.job, [mirror.range(0, 60)], clock)
    facts = outcome.status, outcome.error, outcome.next_offset
    assert facts == (Status.FAILED, "made to fail", 50)
    assert 1 <= clock.slept < 2, "attempts wait as well, for the transaction before"
    assert passes > 1
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

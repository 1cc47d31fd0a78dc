"""How long operations are retried, how long they wait, and for which part of a request."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import pytest

from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.errors import DestinationError, PermissionDeniedError, RelayError, SourceError
from relay_pipelines.model import Cluster, CopyOptions, TopicPartition
from relay_pipelines.prepare.topics import wait_for_leaders
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.retries import retry, retry_until_no_progress
from tests.support.sleeping_clock import SleepingClock

AWAY = SourceError("away")


def options(give_up_after_ms: int) -> CopyOptions:
    return CopyOptions(give_up_after_ms=give_up_after_ms, backoff_min_ms=100, backoff_max_ms=1_000)


def test_the_last_attempt_starts_when_the_time_is_over() -> None:
    """Waits double up to the longest, and the last one ends with the time limit."""
    clock, began = SleepingClock(), []

    def ask() -> None:
        began.append(clock.now - 100)
        raise AWAY

    with pytest.raises(SourceError, match="away"):
        retry_until_no_progress(options(10_000), clock)(ask)
    assert began[-1] == pytest.approx(10)
    assert all(
        min(0.1 * 2**n, 1) / 2 <= wait <= min(0.1 * 2**n, 1)
        for n, wait in enumerate(clock.waits[:-1])
    ), clock.waits


def test_progress_resets_the_time_limit_and_the_waits() -> None:
    """Rare progress is enough to keep trying; the first wait after it is the shortest again."""
    clock, progress_at = SleepingClock(), [100.0]

    def ask() -> None:
        if clock.now - progress_at[0] > 4 and clock.now < 130:
            progress_at[0] = clock.now
        raise AWAY

    with pytest.raises(SourceError):
        retry_until_no_progress(options(5_000), clock, lambda: progress_at[0])(ask)
    assert progress_at[0] > 125
    assert clock.now == pytest.approx(progress_at[0] + 5)
    assert sum(wait <= 0.1 for wait in clock.waits) > 5


def test_what_is_asked_for_ever_or_once() -> None:
    """The longest wait stays; a limit of zero allows one; a wrong password is asked once."""
    clock = SleepingClock()
    answers = Mock(side_effect=[*[AWAY] * 3_000, "answer"])
    assert retry_until_no_progress(options(-1), clock)(answers) == "answer"
    assert (len(clock.waits), max(clock.waits) <= 1) == (3_000, True)
    refused = PermissionDeniedError("refused")
    for limit, error in ((0, AWAY), (-1, refused)):
        clock = SleepingClock()
        with pytest.raises(type(error)):
            retry_until_no_progress(options(limit), clock)(Mock(side_effect=error))
        assert not clock.waits


class SlowClient:
    """A client of a broker that hangs: each answer takes as long as it may."""

    def __init__(self, clock: SleepingClock) -> None:
        self.clock, self.limit = clock, 30.0
        self.limits: list[float] = []

    def close(self) -> None:
        """Nothing is open."""

    @contextmanager
    def waiting_at_most(self, seconds: float) -> Iterator[None]:
        self.limit = min(30.0, seconds)
        yield

    def ask(self) -> None:
        self.limits.append(self.limit)
        self.clock.now += self.limit
        raise AWAY


@pytest.mark.parametrize(
    ("give_up_after_ms", "limits"),
    [(20_000, [20]), (60_000, [30, pytest.approx(29.5, abs=0.5)]), (0, [5])],
    ids=["less than a request may take", "two requests", "nothing"],
)
def test_no_attempt_waits_beyond_the_time_limit(give_up_after_ms: int, limits: list[float]) -> None:
    """A broker that hangs would take the time of one request more, or of several brokers."""
    clock = SleepingClock()
    client = SlowClient(clock)
    with pytest.raises(SourceError):
        retry(client.ask, "m", options(give_up_after_ms), clock, client)
    assert client.limits == limits


def pay(throttle: Throttle, clock: SleepingClock, size: int) -> None:
    throttle.spend(size)
    owed = throttle.throttled_seconds()
    if owed:
        clock.sleep(owed)


def test_the_average_rate_is_kept() -> None:
    """In batches of any size; a pause allows one second at once, without a limit nothing waits."""
    for size in (1_000, 50_000, 300_000):
        clock = SleepingClock()
        throttle = Throttle(CopyOptions(max_bytes_per_second=100_000), clock)
        for _ in range(3_000_000 // size):
            pay(throttle, clock, size)
        assert 29.0 <= clock.now - 100 <= 30.1
    clock, limited = SleepingClock(), CopyOptions(max_bytes_per_second=100_000)
    throttle = Throttle(limited, clock)
    clock.now += 3_600
    throttle.spend(500_000)
    assert throttle.throttled_seconds() == 4.0
    throttle = Throttle(replace(limited, transaction_timeout_ms=8_000), clock)
    throttle.spend(5_000_000)
    assert throttle.throttled_seconds() == 50.0
    throttle = Throttle(CopyOptions(), clock)
    for _ in range(10):
        pay(throttle, clock, 1 << 30)
    assert not clock.waits


SECONDS_A_LOG = 0.1
NEW = {f"t-{number:04}": 2 for number in range(50)}


class Opening(ClusterClient):
    """A destination whose broker has opened no more logs than it had time for."""

    def __init__(self, clock: SleepingClock, logs: int) -> None:
        options = CopyOptions(give_up_after_ms=5_000)
        super().__init__(Cluster("d", ("127.0.0.1:1",)), DestinationError, "", options, clock)
        self._logs = logs
        self._opened: set[TopicPartition] = set()

    def unserved(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, RelayError]:
        wanted = list(topic_partitions)
        time = int((self.clock.monotonic() - 100) / SECONDS_A_LOG)
        closed = [tp for tp in wanted if tp not in self._opened]
        self._opened.update(closed[: min(time, self._logs) - len(self._opened)])
        return {tp: DestinationError("not yet") for tp in wanted if tp not in self._opened}


def test_how_long_leaders_are_waited_for() -> None:
    """While logs are opened, for longer than `give_up_after`, which begins with the last one."""
    clock = SleepingClock()
    wait_for_leaders(Opening(clock, 100), NEW)
    assert 0 <= clock.now - 100 - 100 * SECONDS_A_LOG < 0.5
    clock = SleepingClock()
    with pytest.raises(DestinationError, match="not yet"):
        wait_for_leaders(Opening(clock, 30), NEW)
    assert clock.now - 100 == pytest.approx(30 * SECONDS_A_LOG + 5, abs=0.5)


TOPICS = {f"t-{number:04}": number for number in range(1_000)}
THREE = ["t-0000", "t-0700", "t-0999"]


@pytest.mark.parametrize(("forbidden", "most"), [([], 1), (["t-0500"], 21), (THREE, 60)])
def test_the_others_change(forbidden: list[str], most: int) -> None:
    """Each topic for itself, in few requests; one that is too large is halved."""
    changed, requests = set(), 0

    def change(wanted: Mapping[str, int]) -> None:
        """As brokers do: each topic for itself, and an error if one is refused."""
        nonlocal requests
        requests += 1
        changed.update(wanted.keys() - set(forbidden))
        if refused := wanted.keys() & set(forbidden):
            raise PermissionDeniedError(f"no right to {min(refused)}")

    client = ClusterClient(Cluster("d", ("127.0.0.1:1",)), DestinationError)
    errors = client.retry_each(change, TOPICS)
    assert {topic: error.what for topic, error in errors.items()} == {
        topic: f"no right to {topic}" for topic in forbidden
    }
    assert changed == TOPICS.keys() - set(forbidden)
    assert requests <= most
    halves: list[str] = []

    def change_few(wanted: Mapping[str, int]) -> None:
        """As a controller that refuses to make too many topic-partitions at a time."""
        if len(wanted) > 300:
            raise PermissionDeniedError("too many")
        halves.extend(wanted)

    assert client.retry_each(change_few, TOPICS) == {}
    assert halves == list(TOPICS)

"""How long operations are retried, and how long they wait between attempts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from relay_pipelines.errors import PermissionDeniedError, SourceError
from relay_pipelines.model import CopyOptions
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


def test_minus_one_retries_for_ever() -> None:
    """The wait stays the longest after any number of attempts."""
    clock = SleepingClock()

    def ask() -> str:
        if len(clock.waits) < 3_000:
            raise AWAY
        return "answer"

    assert retry_until_no_progress(options(-1), clock)(ask) == "answer"
    assert max(clock.waits) <= 1


def test_a_time_limit_of_zero_allows_one_attempt() -> None:
    clock = SleepingClock()
    with pytest.raises(SourceError):
        retry_until_no_progress(options(0), clock)(_away)
    assert not clock.waits


def test_a_permanent_error_is_raised_at_once() -> None:
    """A wrong password does not become right by waiting."""
    clock = SleepingClock()

    def ask() -> None:
        raise PermissionDeniedError("refused")

    with pytest.raises(PermissionDeniedError):
        retry_until_no_progress(options(-1), clock)(ask)
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


def _away() -> None:
    raise AWAY

"""How long attempts go on, and how long they wait."""

from __future__ import annotations

import pytest

from relay_pipelines.errors import PermissionDeniedError, SourceError
from relay_pipelines.model import CopyOptions
from relay_pipelines.protocol.backoff import retry_until_no_progress

AWAY = SourceError("away")


class Clock:
    """Time passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def options(give_up_after_ms: int) -> CopyOptions:
    return CopyOptions(give_up_after_ms=give_up_after_ms, backoff_min_ms=100, backoff_max_ms=1_000)


def test_the_last_attempt_begins_when_the_time_is_over() -> None:
    """Waits double up to the longest, and the last one ends with the time, not after it."""
    clock, began = Clock(), []

    def ask() -> None:
        began.append(clock.now - 100)
        raise AWAY

    with pytest.raises(SourceError, match="away"):
        retry_until_no_progress(options(10_000), clock)(ask)
    assert began[-1] == pytest.approx(10)
    assert all(
        min(0.1 * 2**n, 1) <= wait <= min(0.1 * 2**n, 1) + 0.1
        for n, wait in enumerate(clock.waits[:-1])
    ), clock.waits


def test_progress_starts_time_and_waits_again() -> None:
    """What gets on, however rarely, is not given up; after progress the first wait is the shortest again."""
    clock, progress_at = Clock(), [100.0]

    def ask() -> None:
        if clock.now - progress_at[0] > 4 and clock.now < 130:
            progress_at[0] = clock.now
        raise AWAY

    with pytest.raises(SourceError):
        retry_until_no_progress(options(5_000), clock, lambda: progress_at[0])(ask)
    assert progress_at[0] > 125
    assert clock.now == pytest.approx(progress_at[0] + 5)
    assert sum(wait <= 0.2 for wait in clock.waits) > 5


def test_for_ever() -> None:
    """-1 never ends, and the wait stays the longest however many attempts there were."""
    clock = Clock()

    def ask() -> str:
        if len(clock.waits) < 3_000:
            raise AWAY
        return "answer"

    assert retry_until_no_progress(options(-1), clock)(ask) == "answer"
    assert max(clock.waits) <= 1.1


def test_no_time_is_one_attempt() -> None:
    """Without any time there is no second attempt."""
    clock = Clock()
    with pytest.raises(SourceError):
        retry_until_no_progress(options(0), clock)(_away)
    assert not clock.waits


def test_what_does_not_pass_ends_at_once() -> None:
    """Nobody waits for a password to become right."""
    clock = Clock()

    def ask() -> None:
        raise PermissionDeniedError("refused")

    with pytest.raises(PermissionDeniedError):
        retry_until_no_progress(options(-1), clock)(ask)
    assert not clock.waits


def _away() -> None:
    raise AWAY

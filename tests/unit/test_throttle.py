"""Bytes per second, kept by waiting."""

from __future__ import annotations

from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.model import CopyOptions


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


def pay(throttle: Throttle, clock: Clock, size: int) -> None:
    """Send and wait, as the copy loop does."""
    throttle.spend(size)
    owed = throttle.throttled_seconds()
    if owed:
        clock.sleep(owed)


def test_the_average_is_kept() -> None:
    """So many bytes take so long, however they are cut."""
    for size in (1_000, 50_000, 300_000):
        clock = Clock()
        throttle = Throttle(CopyOptions(max_bytes_per_second=100_000), clock)
        for _ in range(3_000_000 // size):
            pay(throttle, clock, size)
        assert 29.0 <= clock.now - 100 <= 30.1


def test_a_pause_is_not_made_up_for() -> None:
    """After an idle hour, no more than a second's worth goes at once."""
    clock = Clock()
    throttle = Throttle(CopyOptions(max_bytes_per_second=100_000), clock)
    clock.now += 3_600
    throttle.spend(500_000)
    assert throttle.throttled_seconds() == 4.0


def test_a_large_batch_is_owed_for_as_a_whole() -> None:
    """However long that takes: the copy waits for it with no transaction open."""
    clock = Clock()
    throttle = Throttle(
        CopyOptions(max_bytes_per_second=100_000, transaction_timeout_ms=8_000), clock
    )
    throttle.spend(5_000_000)
    assert throttle.throttled_seconds() == 50.0


def test_without_a_limit_nobody_waits() -> None:
    clock = Clock()
    throttle = Throttle(CopyOptions(), clock)
    for _ in range(10):
        pay(throttle, clock, 1 << 30)
    assert not clock.waits

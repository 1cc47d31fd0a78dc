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


def test_the_average_is_kept() -> None:
    """So many bytes take so long, however they are cut."""
    for size in (1_000, 50_000, 300_000):
        clock = Clock()
        throttle = Throttle(CopyOptions(max_bytes_per_second=100_000), clock)
        for _ in range(3_000_000 // size):
            throttle.spend(size)
        assert 29.0 <= clock.now - 100 <= 30.1


def test_a_pause_is_not_made_up_for() -> None:
    """After an idle hour, no more than a second's worth goes at once."""
    clock = Clock()
    throttle = Throttle(CopyOptions(max_bytes_per_second=100_000), clock)
    clock.now += 3_600
    before = clock.now
    throttle.spend(500_000)
    assert clock.now - before == 4.0


def test_no_wait_outlasts_a_transaction() -> None:
    """A large batch is waited for in parts; what is owed is waited for before the next one."""
    clock = Clock()
    throttle = Throttle(CopyOptions(max_bytes_per_second=100_000, transaction_timeout_ms=8_000), clock)
    throttle.spend(500_000)
    throttle.spend(1)
    throttle.spend(1)
    assert [round(wait, 2) for wait in clock.waits] == [2.0, 2.0, 1.0]


def test_without_a_limit_nobody_waits() -> None:
    clock = Clock()
    throttle = Throttle(CopyOptions(), clock)
    for _ in range(10):
        throttle.spend(1 << 30)
    assert not clock.waits

"""The limit of bytes per second, which waiting enforces."""

from __future__ import annotations

from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.model import CopyOptions
from tests.support.sleeping_clock import SleepingClock


def pay(throttle: Throttle, clock: SleepingClock, size: int) -> None:
    """Send and wait, like the copy loop."""
    throttle.spend(size)
    owed = throttle.throttled_seconds()
    if owed:
        clock.sleep(owed)


def test_the_average_rate_is_kept() -> None:
    """The same number of bytes takes the same time, in batches of any size."""
    for size in (1_000, 50_000, 300_000):
        clock = SleepingClock()
        throttle = Throttle(CopyOptions(max_bytes_per_second=100_000), clock)
        for _ in range(3_000_000 // size):
            pay(throttle, clock, size)
        assert 29.0 <= clock.now - 100 <= 30.1


def test_a_pause_does_not_allow_a_long_burst() -> None:
    """After an idle hour, only the bytes of one second may go at once."""
    clock = SleepingClock()
    throttle = Throttle(CopyOptions(max_bytes_per_second=100_000), clock)
    clock.now += 3_600
    throttle.spend(500_000)
    assert throttle.throttled_seconds() == 4.0


def test_a_large_batch_delays_the_next_by_its_whole_size() -> None:
    """The copy waits without an open transaction, so that may take long."""
    clock = SleepingClock()
    throttle = Throttle(
        CopyOptions(max_bytes_per_second=100_000, transaction_timeout_ms=8_000), clock
    )
    throttle.spend(5_000_000)
    assert throttle.throttled_seconds() == 50.0


def test_without_a_limit_there_is_no_wait() -> None:
    clock = SleepingClock()
    throttle = Throttle(CopyOptions(), clock)
    for _ in range(10):
        pay(throttle, clock, 1 << 30)
    assert not clock.waits

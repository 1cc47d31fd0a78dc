"""Clocks of tests: one that only advances by sleeping, and one that bears little of it."""

from relay_pipelines.protocol.clock import SystemClock


class SleepingClock:
    """A clock that only advances by sleeping."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Untiring(SystemClock):
    """A clock that fails the test when more is waited in all than so many seconds."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._left = seconds

    def sleep(self, seconds: float) -> None:
        self._left -= seconds
        if self._left < 0:
            raise AssertionError(f"waits {seconds} s for what does not come")
        super().sleep(seconds)

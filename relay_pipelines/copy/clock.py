"""The time, injected: the only place where the copy reads a clock or sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, the time of day, and waiting."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

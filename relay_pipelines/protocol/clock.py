"""The injected clock: the only place where the copy reads the time or sleeps."""

from __future__ import annotations

import datetime as dt
import time
from typing import Protocol


def moment_ms(text: str) -> int:
    """Milliseconds since the Unix epoch, from ISO 8601; UTC if the text names no offset.

    Args:
        text: such as `2026-01-31` or `2026-01-31T12:00:00Z`.

    Raises:
        ValueError: it is not a valid timestamp.
    """
    moment = dt.datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def moment_of(ms: int) -> dt.datetime | None:
    """Return the time of milliseconds since the Unix epoch, in UTC.

    None where the calendar has none, as for the timestamps of producers that count nanoseconds.
    """
    try:
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    except (OSError, OverflowError, ValueError):
        return None


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

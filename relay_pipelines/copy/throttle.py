"""Keeps a task below a number of bytes per second, on average. Runs in a task."""

from __future__ import annotations

from relay_pipelines.copy.clock import Clock
from relay_pipelines.model import CopyOptions, CopyRange

_BURST_SECONDS = 1.0
_SHARE_OF_TIMEOUT = 0.25


class Throttle:
    """Paid for with time: who spends bytes waits until they were earned.

    A wait is never so long that an open transaction could time out; what is still owed then is waited for next time.
    """

    def __init__(self, options: CopyOptions, clock: Clock) -> None:
        self._rate = options.max_bytes_per_second
        self._longest_seconds = _SHARE_OF_TIMEOUT * options.transaction_timeout_ms / 1000
        self._clock = clock
        self._free_at = clock.monotonic()

    def spend(self, size_bytes: int) -> None:
        """Wait until that many bytes may be written."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        # what was not used up to now is gone, but for a second's worth
        self._free_at = max(self._free_at, now - _BURST_SECONDS) + size_bytes / self._rate
        wait = min(self._free_at - now, self._longest_seconds)
        if wait > 0:
            self._clock.sleep(wait)


class Throttles:
    """Those of one task: the mirror's, and one for each topic with options of its own."""

    def __init__(self, options: CopyOptions, clock: Clock) -> None:
        self._clock = clock
        self._all = Throttle(options, clock)
        self._of_topics: dict[str, Throttle] = {}

    def of(self, copy_range: CopyRange) -> list[Throttle]:
        """Those to be paid for what is written of a range."""
        options, topic = copy_range.handling.options, copy_range.source.topic_partition.topic
        if options is None:
            return [self._all]
        return [self._all, self._of_topics.setdefault(topic, Throttle(options, self._clock))]

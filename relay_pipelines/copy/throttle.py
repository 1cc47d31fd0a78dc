"""Keeps a task below a number of bytes per second, on average. Runs in a task."""

from __future__ import annotations

from relay_pipelines.model import CopyOptions, CopyRange
from relay_pipelines.protocol.clock import Clock

_BURST_SECONDS = 1.0


class Throttle:
    """A limit in bytes per second: after each batch, the caller waits until its time is earned.

    The caller waits with no transaction open.
    """

    def __init__(self, options: CopyOptions, clock: Clock) -> None:
        self._rate = options.max_bytes_per_second
        self._clock = clock
        self._free_at = clock.monotonic()

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit at all."""
        return bool(self._rate)

    def spend(self, size_bytes: int) -> None:
        """Count bytes that are being sent."""
        if self.is_limited:
            # unused time counts for one second at most
            self._free_at = (
                max(self._free_at, self._clock.monotonic() - _BURST_SECONDS)
                + size_bytes / self._rate
            )

    def throttled_seconds(self) -> float:
        """How long to wait before sending more; 0 for no wait."""
        return max(0.0, self._free_at - self._clock.monotonic()) if self.is_limited else 0.0


class Throttles:
    """The throttles of one task: the mirror's, and one for each topic with its own options."""

    def __init__(self, options: CopyOptions, clock: Clock) -> None:
        self._clock = clock
        self._all = Throttle(options, clock)
        self._of_topics: dict[str, Throttle] = {}

    def of(self, copy_range: CopyRange) -> list[Throttle]:
        """Return the throttles that limit what is written of a range."""
        options, topic = copy_range.record_policy.options, copy_range.source.topic_partition.topic
        if options is None:
            return [self._all]
        return [self._all, self._of_topics.setdefault(topic, Throttle(options, self._clock))]

"""How many records a topic got in an hour, and in the same hour a week before: from the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.ledger.reader import read_ledger
from relay_pipelines.output.formatting import format_time
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.expectations import Expectation

_HOUR_MS = 3_600_000
_WEEK_MS = 7 * 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Volume:
    """Records of the hour that ends with a window, and of the same hour a week before.

    Args:
        before: None if the ledger has nothing of that hour.
    """

    end_ms: int
    now: int
    before: int | None

    def is_within(self, tolerance: float) -> bool:
        """Whether they differ by at most this share; true if there is nothing to compare with."""
        return self.before is None or abs(self.now - self.before) <= tolerance * self.before

    def words(self, tolerance: float) -> str:
        """One line."""
        hour = f"{self.now:,} records in the hour before {format_time(self.end_ms)}"
        if self.before is None:
            return f"{hour}; the ledger has none of the same hour a week before"
        return f"{hour}, {self.before:,} a week before; {tolerance:.0%} more or less are expected"


def is_about(expectation: Expectation) -> bool:
    """Whether the ledger alone answers it."""
    return expectation.kind == "volume_like_last_week"


def measure(name: str, mirror: Mirror, window: TopicWindow, clock: Clock) -> Volume:
    """Read both hours of the ledger.

    Raises:
        RelayError: the destination is not reachable.
    """
    read = partial(read_ledger, mirror.destination_cluster, name, mirror.copy_options, clock)
    end_ms = window.copied_at_ms
    now, before = (
        [
            record.entry.records
            for record in read(end - _HOUR_MS, until_ms=end)
            if record.entry.source.topic_partition.topic == window.topic
            and end - _HOUR_MS <= record.entry.committed_at_ms <= end
        ]
        for end in (end_ms, end_ms - _WEEK_MS)
    )
    return Volume(end_ms, sum(now), sum(before) if before else None)

"""How fast topics grow at the source and are copied, from one snapshot to the next."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relay_pipelines.model import TopicPartition
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

PERIOD_SECONDS = 30.0
"""Over which rates are averaged where people watch them: a copy commits every few seconds."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Offsets per second.

    Args:
        source: by which the source grows.
        copied: by which the checkpoints advance.
    """

    source: float = 0.0
    copied: float = 0.0

    def seconds_left(self, lag_records: int) -> float | None:
        """Return when nothing is behind any more at these rates; None if never."""
        if not lag_records:
            return 0.0
        gain = self.copied - self.source
        return lag_records / gain if gain > 0 else None


def total_rate(rates: Iterable[Rate]) -> Rate:
    """Return the sum of the rates of several topics."""
    added = [(rate.source, rate.copied) for rate in rates]
    return Rate(sum(source for source, _ in added), sum(copied for _, copied in added))


class Rates:
    """Remembers the end offsets and checkpoints of the last snapshots.

    Args:
        period_seconds: over which rates are averaged; at least from one snapshot to the next.
    """

    def __init__(self, period_seconds: float = 0.0) -> None:
        self._period_ms = period_seconds * 1000
        self._looks: deque[tuple[int, Mapping[TopicPartition, tuple[int, int]]]] = deque()

    def learn(self, snapshot: ClusterSnapshot, taken_ms: int) -> dict[str, Rate]:
        """Return the rates by topic; empty at the first snapshot.

        Args:
            taken_ms: when the snapshot was taken, in milliseconds since the Unix epoch.
        """
        now = {
            position.topic_partition: (position.end_offset, position.begin)
            for position in snapshot.positions
        }
        while len(self._looks) > 1 and self._looks[1][0] <= taken_ms - self._period_ms:
            self._looks.popleft()
        grown: defaultdict[str, list[Rate]] = defaultdict(list)
        if self._looks:
            began_ms, before = self._looks[0]
            seconds = max(1, taken_ms - began_ms) / 1000
            for at in now.keys() & before.keys():
                # another node of the source may end earlier, and a checkpoint may be reset
                source, copied = (
                    max(0, new - old) / seconds
                    for new, old in zip(now[at], before[at], strict=True)
                )
                grown[at.topic].append(Rate(source, copied))
        self._looks.append((taken_ms, now))
        return {topic: total_rate(rates) for topic, rates in grown.items()}

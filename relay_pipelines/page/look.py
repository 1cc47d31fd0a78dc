"""A look at what a mirror's clusters hold, whoever copies: nothing is written.

It asks what a tick of the planner asks: for a snapshot, in the order of `read_clusters`, for what
hides copies from readers, and how old the records are that wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from relay_pipelines.model import TopicPartition
from relay_pipelines.prepare import topic_configs
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import configs, hidden_copies, lag, read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.lag import PartitionLag

_BETWEEN_COMPARISONS_SECONDS = 300.0  # of all configurations, the most expensive requests


@dataclass(frozen=True, slots=True)
class Look:
    """What a mirror's clusters look like.

    Args:
        hidden: what hides copies from the readers of the destination.
        late: what waits for longer than its target; of very many, `lags` knows no age.
        config_differences: of all topics, as they were when these were compared last.
    """

    snapshot: ClusterSnapshot
    lags: Mapping[TopicPartition, PartitionLag]
    config_differences: int
    taken_ms: int
    hidden: Sequence[OpenTransaction] = ()
    late: Collection[TopicPartition] = ()

    def target_seconds(self, topic: str) -> float:
        """Return for how long a record of a topic may wait for its copy."""
        return self.snapshot.sides.mirror.window_of(topic).lag_target / 1000


@dataclass(slots=True)
class Looker:
    """Looks at one mirror, once or again and again."""

    sides: Sides
    _compared_at: float = field(default=-_BETWEEN_COMPARISONS_SECONDS, init=False)
    _differences: int = field(default=0, init=False)

    def look(self) -> Look:
        """Ask the clusters once; they get a few seconds to answer.

        Raises:
            RelayError: one of them does not answer, or the mirror cannot be copied.
        """
        snapshot = read_clusters.take_snapshot(self.sides, patient=False)
        now = self.sides.clock.monotonic()
        if now - self._compared_at >= _BETWEEN_COMPARISONS_SECONDS:
            self._compared_at = now
            self._differences = len(
                topic_configs.differences(configs.with_all(snapshot, patient=False))
            )
        return look_at(snapshot, hidden_copies.find(snapshot), config_differences=self._differences)


def look_at(
    snapshot: ClusterSnapshot,
    hidden: Sequence[OpenTransaction],
    most_ages: int = lag.MOST_AGES,
    config_differences: int = 0,
) -> Look:
    """Ask the source how old the oldest records are that a snapshot says are not copied.

    Args:
        hidden: as `hidden_copies.find` has asked the destination, maybe of more topics.
        most_ages: as in `lag.measure`.

    Raises:
        RelayError: the source does not answer.
    """
    now_ms = snapshot.sides.clock.now_ms()
    late = lag.late(snapshot, now_ms)
    lags = lag.measure(snapshot, late, most_ages)
    ours = hidden_copies.of_snapshot(hidden, snapshot)
    return Look(snapshot, lags, config_differences, now_ms, ours, late)

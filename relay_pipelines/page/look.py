"""A look at what a mirror's clusters hold, whoever copies: nothing is written."""

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
        now_ms = self.sides.clock.now_ms()
        late = lag.late(snapshot, now_ms)
        lags = lag.measure(snapshot, late)
        hidden = hidden_copies.find(snapshot)
        return Look(snapshot, lags, self._differences, now_ms, hidden, late)

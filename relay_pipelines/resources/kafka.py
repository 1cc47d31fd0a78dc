"""The clusters of relay.yaml.

Dagster's configuration has only the path of the file, so that it holds no addresses or secrets.
"""

from functools import cached_property, partial
from pathlib import Path

import dagster as dg

from relay_pipelines import settings
from relay_pipelines.prepare import prepared_snapshot
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.settings import Mirror, Settings
from relay_pipelines.settings.start import Start
from relay_pipelines.snapshot import cluster_snapshot
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.state.checkpoint import CheckpointCache


class KafkaResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # Dagster's own examples leave the argument out
    """Source nodes and destinations of all mirrors."""

    config_path: str
    """Path of relay.yaml."""

    @cached_property
    def settings(self) -> Settings:
        """The settings in relay.yaml.

        Raises:
            ConfigError: relay.yaml is missing or invalid.
        """
        return settings.load(Path(self.config_path))

    @property
    def folder(self) -> Path:
        """The folder of relay.yaml, which is searched for classes."""
        return Path(self.config_path).absolute().parent

    @property
    def clock(self) -> Clock:
        """The system clock."""
        return SystemClock()

    def mirror(self, name: str) -> Mirror:
        """The mirror of that name."""
        return self.settings.mirror(name)

    def snapshot(
        self,
        name: str,
        belongs: cluster_snapshot.Belongs,
        attempt: int = 0,
        *,
        configs: bool = True,
        patient: bool = True,
        start: Start | None = None,
        cache: CheckpointCache | None = None,
    ) -> ClusterSnapshot:
        """Take a snapshot of source and destination, and decide where new topics start.

        Args:
            belongs: selects the topics.
            attempt: each attempt begins with another source node.
            configs: whether to request topic configurations, which every copy needs.
            patient: whether to retry for `give_up_after`; sensors retry for 5 s at most, because
                they have a next tick.
            start: where topics start that were never copied; as configured if None.
            cache: the checkpoints that were read before, which need not be read again.

        Raises:
            RelayError: no source node or no destination broker answers.
        """
        mirror, clock = self.mirror(name), self.clock
        mirror = mirror.model_copy(update={"start": start or mirror.start})
        take = partial(
            cluster_snapshot.take_snapshot,
            name,
            mirror,
            clock,
            belongs=belongs,
            first_node=attempt,
            configs=configs,
            patient=patient,
            cache=cache,
        )
        return prepared_snapshot.prepare_snapshot(take, mirror, clock)

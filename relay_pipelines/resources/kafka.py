"""The clusters of relay.yaml. Dagster only ever sees the file's path: addresses and secrets stay out of its configuration."""

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


class KafkaResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # Dagster's own examples leave the argument out
    """Source nodes and destinations."""

    config_path: str
    """Where relay.yaml is."""

    @cached_property
    def settings(self) -> Settings:
        """What relay.yaml says now.

        Raises:
            ConfigError: it is wrong.
        """
        return settings.load(Path(self.config_path))

    @property
    def clock(self) -> Clock:
        """The clock."""
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
    ) -> ClusterSnapshot:
        """Ask the source and the destination; what is open before a copy is decided.

        Args:
            belongs: which topics.
            attempt: each begins with another node of the source.
            configs: whether to ask for the topics' configurations: whoever copies needs them.
            patient: whether to ask for as long as `give_up_after` says; a sensor, which has its
            next tick, asks for 5 s at most.
            start: where topics start that were never copied; as configured if None.

        Raises:
            RelayError: no node answers, or the destination does not.
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
        )
        return prepared_snapshot.prepare_snapshot(take, mirror, clock)

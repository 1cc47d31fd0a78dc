"""The clusters of relay.yaml.

Dagster's configuration has only the path of the file, so that it holds no addresses or secrets.
"""

from functools import cached_property
from pathlib import Path

import dagster as dg

from relay_pipelines import settings
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.settings import Mirror, Settings
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import cluster_snapshot, read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_TICK_MS = 5_000


class KafkaResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # Dagster's own examples leave the argument out
    """Upstreams and destinations of all mirrors."""

    config_path: str
    """Path of relay.yaml."""

    @cached_property
    def settings(self) -> Settings:
        """The settings in relay.yaml.

        Raises:
            ConfigError: relay.yaml is missing or invalid.
        """
        return settings.load(Path(self.config_path))

    def with_settings(self, loaded: Settings) -> "KafkaResource":
        """Return the resource of the same file with settings that were read from it later."""
        resource = KafkaResource(config_path=self.config_path)
        resource.__dict__["settings"] = loaded  # where a cached property keeps its value
        return resource

    def for_ticks(self) -> "KafkaResource":
        """The same clusters for a sensor, which has a next tick: it knows after 5 s who is away.

        No request takes longer than `health.request_timeout`: a broker that is stopped accepts
        connections, and never answers.
        """
        mirrors = {name: _limited(mirror) for name, mirror in self.settings.mirrors.items()}
        return self.with_settings(self.settings.model_copy(update={"mirrors": mirrors}))

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

    def sides(self, name: str) -> Sides:
        """How to reach the two sides of the mirror of that name."""
        return Sides(name, self.mirror(name), self.clock)

    def snapshot(
        self,
        name: str,
        belongs: cluster_snapshot.Belongs,
        *,
        patient: bool = True,
    ) -> ClusterSnapshot:
        """Look at source and destination; writes nothing: a run takes `run_snapshot.prepare`.

        Args:
            belongs: selects the topics.
            patient: whether to retry for `give_up_after`; sensors retry for 5 s at most, because
                they have a next tick.

        Raises:
            RelayError: no upstream or no destination broker answers.
        """
        return read_clusters.take_snapshot(
            self.sides(name),
            belongs=belongs,
            patient=patient,
        )


def _limited(mirror: Mirror) -> Mirror:
    timeout_ms = min(mirror.copying.request_timeout, mirror.source.health.request_timeout)
    copying = mirror.copying.model_copy(update={"request_timeout": timeout_ms})
    most_ms = max(0, _TICK_MS - timeout_ms)  # the last attempt begins then
    give_up_ms = mirror.give_up_after if 0 <= mirror.give_up_after < most_ms else most_ms
    return mirror.model_copy(update={"copying": copying, "give_up_after": give_up_ms})

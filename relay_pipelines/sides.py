"""A mirror by its name, and how its two sides are reached."""

from __future__ import annotations

from dataclasses import dataclass

from relay_pipelines.model import Cluster, CopyOptions
from relay_pipelines.protocol.client import ClusterClient, destination_client, source_client
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.settings import Mirror

_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Sides:
    """A mirror, and the clients of its upstreams and its destination.

    Clients are cheap: their connections are kept for the next client of the same cluster. Tasks
    know no settings; the values of their job make their clients.
    """

    name: str
    mirror: Mirror
    clock: Clock = _CLOCK

    @property
    def options(self) -> CopyOptions:
        """How tasks copy, and how long clients wait."""
        return self.mirror.copy_options

    def destination(
        self, purpose: str = "", options: CopyOptions | None = None, cluster: Cluster | None = None
    ) -> ClusterClient:
        """Return a client of the destination.

        Args:
            purpose: appended to the name that brokers see.
            options: those of the copy by default.
            cluster: the destination with its id, where that is known.
        """
        cluster, options = cluster or self.mirror.destination_cluster, options or self.options
        return destination_client(self.name, cluster, options, self.clock, purpose)

    def source(
        self, upstream: Cluster, purpose: str = "", options: CopyOptions | None = None
    ) -> ClusterClient:
        """Return a client of an upstream.

        Args:
            purpose: as of `destination`.
            options: those of the copy by default; `health_options` for an upstream that others
                replace.
        """
        return source_client(self.name, upstream, options or self.options, self.clock, purpose)

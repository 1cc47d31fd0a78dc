"""A mirror by its name, and how its two sides are reached."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

    Args:
        destination_id: of the cluster that was seen as the destination: no other one that answers
            at its addresses is taken for it. Empty as long as none was seen.
    """

    name: str
    mirror: Mirror
    clock: Clock = _CLOCK
    destination_id: str = ""

    def seen(self) -> Sides:
        """Ask the destination which cluster it is, and return the same of that one from now on.

        For what looks more than once, and then decides or writes.

        Raises:
            RelayError: it does not answer.
        """
        with self.destination() as client:
            client.retry(client.any_connection)
        return self.at(client.cluster_id)

    def at(self, destination_id: str) -> Sides:
        """Return the same, of which the destination is this cluster from now on."""
        return replace(self, destination_id=destination_id)

    @property
    def destination_cluster(self) -> Cluster:
        """The destination, with its id once it was seen."""
        return replace(self.mirror.destination_cluster, id=self.destination_id)

    @property
    def options(self) -> CopyOptions:
        """How tasks copy, and how long clients wait."""
        return self.mirror.copy_options

    def destination(self, purpose: str = "", options: CopyOptions | None = None) -> ClusterClient:
        """Return a client of the destination.

        Args:
            purpose: appended to the name that brokers see.
            options: those of the copy by default.
        """
        cluster, options = self.destination_cluster, options or self.options
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

"""The clusters of a mirror: where they are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from relay_pipelines import model
from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.health import Health
from relay_pipelines.settings.security import SecuritySettings
from relay_pipelines.settings.values import Count, Name, RequestSize, Servers, complaints

_CLUSTER = model.Cluster("", ())
_CHOOSING_KEYS = ("lag_threshold", "failback", "randomize_initial")


class Node(Section):
    """One of the identical clusters of a source."""

    name: Name
    """What people read; it stands in checkpoints, so keep it."""
    bootstrap_servers: Servers = Field(min_length=1)
    """Brokers to ask first, `host:port`; a list, or one string with commas."""
    security: SecuritySettings = SecuritySettings()
    """How to talk to the node."""
    socket_receive_buffer: RequestSize = _CLUSTER.receive_buffer_bytes
    """Asked of the operating system for each connection; over a long line, bandwidth times round-trip time."""
    socket_send_buffer: RequestSize = _CLUSTER.send_buffer_bytes
    """The same for what is sent."""

    @property
    def cluster(self) -> model.Cluster:
        """The value that connections take."""
        return model.Cluster(
            self.name,
            self.bootstrap_servers,
            self.security.as_model(),
            self.socket_receive_buffer,
            self.socket_send_buffer,
        )


class Source(Section):
    """Where records come from: nodes that hold the same topics, record for record."""

    nodes: tuple[Node, ...] = Field(min_length=1)
    """The nodes in order of preference; usually one."""
    health: Health = Health()
    """When a node is healthy, and which one is read."""

    @model_validator(mode="after")
    def _node_names_are_unique(self) -> Source:
        names = [node.name for node in self.nodes]
        repeated = [index for index, name in enumerate(names) if name in names[:index]]
        if repeated:
            raise complaints(
                *((("nodes", index, "name"), "another node has this name") for index in repeated)
            )
        useless = (
            [key for key in _CHOOSING_KEYS if key in self.health.model_fields_set]
            if len(names) == 1
            else []
        )
        if useless:
            raise complaints(
                *(
                    (("health", key), "there is one node only, and nothing to choose")
                    for key in useless
                )
            )
        return self


class Destination(Section):
    """Where records go."""

    bootstrap_servers: Servers = Field(min_length=1)
    """Brokers to ask first, `host:port`; a list, or one string with commas."""
    security: SecuritySettings = SecuritySettings()
    """How to talk to the cluster."""
    socket_receive_buffer: RequestSize = _CLUSTER.receive_buffer_bytes
    """Asked of the operating system for each connection."""
    socket_send_buffer: RequestSize = _CLUSTER.send_buffer_bytes
    """The same for what is sent; over a long line, bandwidth times round-trip time."""
    replication_factor: Annotated[Count, Field(le=32_767)] | None = None
    """Of topics created there, the project's own included; the broker's default when left out."""

    @property
    def cluster(self) -> model.Cluster:
        """The value that connections take; it is called "destination"."""
        return model.Cluster(
            "destination",
            self.bootstrap_servers,
            self.security.as_model(),
            self.socket_receive_buffer,
            self.socket_send_buffer,
        )

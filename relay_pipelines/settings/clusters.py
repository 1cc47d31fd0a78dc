"""The clusters of a mirror: where they are and how to talk to them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from relay_pipelines import model
from relay_pipelines.settings.health import Health
from relay_pipelines.settings.section import Section
from relay_pipelines.settings.values import Count, ExistingFile, Location, Name, RequestSize, Secret, Servers, Text, complaints

_CLUSTER = model.Cluster("", ())
_SASL_KEYS = ("mechanism", "username", "password")
_CHOOSING_KEYS = ("lag_threshold", "failback", "randomize_initial")
_TLS_KEYS = ("ca_location", "certificate_location", "key_location", "key_password", "verify_hostname")


class SecuritySettings(Section):
    """How to talk to a cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The listener's security protocol."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """The SASL mechanism; only with a SASL protocol."""
    username: Text | None = None
    """The SASL user."""
    password: Secret | None = None
    """The SASL password; rather `${ENV_VAR}` or `${file:path}` than the password itself."""
    ca_location: ExistingFile | None = None
    """PEM file of the authorities to trust; the system's when left out."""
    certificate_location: ExistingFile | None = None
    """PEM file of the client certificate chain, if the broker asks for one."""
    key_location: ExistingFile | None = None
    """PEM file of the client's private key, if it is not in the certificate's file."""
    key_password: Secret | None = None
    """The private key's password."""
    verify_hostname: bool = True
    """Whether the broker's certificate must name the host connected to."""

    @model_validator(mode="after")
    def _keys_fit_the_protocol(self) -> SecuritySettings:
        found: list[tuple[Location, str]] = []
        if self.protocol.startswith("SASL_"):
            found += [((key,), f"is missing; {self.protocol} needs it") for key in _SASL_KEYS if not getattr(self, key)]
        else:
            found += [((key,), f"needs a SASL protocol, not {self.protocol}") for key in _SASL_KEYS if getattr(self, key)]
        if not self.protocol.endswith("SSL"):
            found += [
                ((key,), f"needs the protocol SSL or SASL_SSL, not {self.protocol}")
                for key in _TLS_KEYS
                if key in self.model_fields_set
            ]
        elif self.certificate_location is None:
            found += [((key,), "needs certificate_location") for key in ("key_location", "key_password") if getattr(self, key)]
        if found:
            raise complaints(*found)
        return self

    def as_model(self) -> model.Security:
        """The value that connections take."""
        return model.Security(
            protocol=self.protocol,
            mechanism=self.mechanism,
            username=self.username,
            password=self.password.get_secret_value() if self.password else None,
            ca_location=self.ca_location,
            certificate_location=self.certificate_location,
            key_location=self.key_location,
            key_password=self.key_password.get_secret_value() if self.key_password else None,
            verify_hostname=self.verify_hostname,
        )


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
            self.name, self.bootstrap_servers, self.security.as_model(), self.socket_receive_buffer, self.socket_send_buffer
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
            raise complaints(*((("nodes", index, "name"), "another node has this name") for index in repeated))
        useless = [key for key in _CHOOSING_KEYS if key in self.health.model_fields_set] if len(names) == 1 else []
        if useless:
            raise complaints(*((("health", key), "there is one node only, and nothing to choose") for key in useless))
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

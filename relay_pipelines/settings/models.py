"""What relay.yaml may say: frozen models, one attribute per key.

Sizes are held in bytes, durations in milliseconds. A key without a value (null) has its default. Secrets never show in
`repr`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, SecretStr, model_validator

from relay_pipelines import model
from relay_pipelines.errors import ConfigError
from relay_pipelines.plan.windows import StartPolicy
from relay_pipelines.settings.problems import nearest
from relay_pipelines.settings.values import (
    Count,
    Duration,
    ExistingFile,
    FileInExistingFolder,
    HostPort,
    Location,
    MirrorName,
    Name,
    Pattern,
    PositiveSize,
    RequestSize,
    Servers,
    Size,
    SparkValue,
    complaints,
    rename_rule,
)

_COPY = model.CopyOptions()
_SASL_KEYS = ("mechanism", "username", "password")
_TLS_KEYS = ("ca_location", "certificate_location", "key_location", "key_password", "verify_hostname")


class _Section(BaseModel):
    """A mapping of relay.yaml: unknown keys are errors, a key without a value has its default."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


class SecuritySettings(_Section):
    """How to talk to a cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The listener's security protocol."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """The SASL mechanism; only with a SASL protocol."""
    username: Annotated[str, Field(min_length=1)] | None = None
    """The SASL user."""
    password: Annotated[SecretStr, Field(min_length=1)] | None = None
    """The SASL password; rather `${ENV_VAR}` or `${file:path}` than the password itself."""
    ca_location: ExistingFile | None = None
    """PEM file of the authorities to trust; the system's when left out."""
    certificate_location: ExistingFile | None = None
    """PEM file of the client certificate chain, if the broker asks for one."""
    key_location: ExistingFile | None = None
    """PEM file of the client's private key, if it is not in the certificate's file."""
    key_password: Annotated[SecretStr, Field(min_length=1)] | None = None
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


class Node(_Section):
    """One of the identical clusters of a source."""

    name: Name
    """What people read; it stands in checkpoints, so keep it."""
    bootstrap_servers: Servers = Field(min_length=1)
    """Brokers to ask first, `host:port`; a list, or one string with commas."""
    security: SecuritySettings = SecuritySettings()
    """How to talk to the node."""

    @property
    def cluster(self) -> model.Cluster:
        """The value that connections take."""
        return model.Cluster(self.name, self.bootstrap_servers, self.security.as_model())


class Source(_Section):
    """Where records come from: nodes that hold the same topics, record for record."""

    nodes: tuple[Node, ...] = Field(min_length=1)
    """The nodes in order of preference; usually one."""

    @model_validator(mode="after")
    def _node_names_are_unique(self) -> Source:
        names = [node.name for node in self.nodes]
        repeated = [index for index, name in enumerate(names) if name in names[:index]]
        if repeated:
            raise complaints(*((("nodes", index, "name"), f"two nodes are called {names[index]!r}") for index in repeated))
        return self


class Destination(_Section):
    """Where records go."""

    bootstrap_servers: Servers = Field(min_length=1)
    """Brokers to ask first, `host:port`; a list, or one string with commas."""
    security: SecuritySettings = SecuritySettings()
    """How to talk to the cluster."""
    replication_factor: Annotated[Count, Field(le=32_767)] | None = None
    """Of topics created there, the project's own included; the broker's default when left out."""


class Topics(_Section):
    """Which topics are copied, and what they are called at the destination."""

    allow: tuple[Pattern, ...] = Field(default=(".*",), min_length=1)
    """Regular expressions for the whole name; internal topics (`__*`) are never copied."""
    deny: tuple[Pattern, ...] = ()
    """Regular expressions for the whole name; deny wins over allow."""
    rename: Annotated[str | dict[str, str], PlainValidator(rename_rule)] = "{topic}"
    """A template with "{topic}", or a map of source topic to destination topic (others keep their names)."""


class Backoff(_Section):
    """The wait between attempts, doubled with jitter from `min` to `max`."""

    min: Duration = _COPY.backoff_min_ms
    """Before the second attempt."""
    max: Duration = _COPY.backoff_max_ms
    """Never longer."""


class Copying(_Section):
    """How records are copied; the defaults suit most clusters."""

    chunk: PositiveSize = _COPY.chunk_bytes
    """Commit after this many bytes."""
    chunk_interval: Duration = _COPY.chunk_ms
    """Commit after this time, however little was copied."""
    fetch_max: RequestSize = _COPY.fetch_max_bytes
    """Asked of the source per fetch; bounds a task's memory to a few times this."""
    coalesce_below: Size = _COPY.coalesce_below_bytes
    """Smaller record batches are merged; 0 merges none."""
    coalesce_to: RequestSize = _COPY.coalesce_to_bytes
    """Merged until they hold about this many bytes."""
    transaction_timeout: Duration = _COPY.transaction_timeout_ms
    """After this time the destination aborts what a dead task left open; its transaction.max.timeout.ms bounds it."""
    request_timeout: Duration = _COPY.request_timeout_ms
    """How long one request may take."""
    max_attempts: Count = _COPY.max_attempts
    """How often a range is tried without any progress, the first time included."""
    backoff: Backoff = Backoff()
    """The wait between attempts."""

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Copying:
        rules: list[tuple[bool, Location, str]] = [
            (self.coalesce_below <= self.coalesce_to, ("coalesce_below",), "is more than coalesce_to"),
            (self.backoff.min <= self.backoff.max, ("backoff", "min"), "is more than backoff.max"),
            (
                self.chunk_interval < self.transaction_timeout,
                ("chunk_interval",),
                "must be shorter than transaction_timeout, or the destination aborts every transaction",
            ),
        ]
        found = [(where, text) for holds, where, text in rules if not holds]
        if found:
            raise complaints(*found)
        return self

    def as_model(self) -> model.CopyOptions:
        """The value that tasks take."""
        return model.CopyOptions(
            chunk_bytes=self.chunk,
            chunk_ms=self.chunk_interval,
            fetch_max_bytes=self.fetch_max,
            coalesce_below_bytes=self.coalesce_below,
            coalesce_to_bytes=self.coalesce_to,
            transaction_timeout_ms=self.transaction_timeout,
            request_timeout_ms=self.request_timeout,
            max_attempts=self.max_attempts,
            backoff_min_ms=self.backoff.min,
            backoff_max_ms=self.backoff.max,
        )


class Mirror(_Section):
    """Topics of a source, copied to a destination."""

    source: Source
    """Where records come from."""
    destination: Destination
    """Where records go."""
    topics: Topics = Topics()
    """Which topics, and their names at the destination."""
    start: StartPolicy = StartPolicy.EARLIEST
    """Where a topic is taken up that this mirror has never copied: earliest or latest."""
    copying: Copying = Field(default=Copying(), alias="copy")
    """How records are copied."""

    @property
    def nodes(self) -> tuple[model.Cluster, ...]:
        """The source's nodes, in order of preference; at least one."""
        return tuple(node.cluster for node in self.source.nodes)

    @property
    def destination_cluster(self) -> model.Cluster:
        """The destination, called "destination"."""
        to = self.destination
        return model.Cluster("destination", to.bootstrap_servers, to.security.as_model())

    @property
    def copy_options(self) -> model.CopyOptions:
        """How tasks copy."""
        return self.copying.as_model()


class Spark(_Section):
    """Where the copy runs. After loading, exactly one of `master` and `remote` is set."""

    master: Annotated[str, Field(min_length=1)] | None = None
    """A Spark master; local[*], this machine's cores, when `remote` is not given either."""
    remote: Annotated[str, Field(pattern=r"^sc://[^/]+")] | None = None
    """A Spark Connect server, sc://host:port."""
    conf: dict[str, SparkValue] = Field(default={}, repr=False)
    """Spark configuration, flat: {spark.executor.memory: 2g}."""

    @model_validator(mode="before")
    @classmethod
    def _default_master(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("master") is None and data.get("remote") is None:
            return {**data, "master": "local[*]"}
        return data

    @model_validator(mode="after")
    def _one_spark_and_no_speculation(self) -> Spark:
        found: list[tuple[Location, str]] = []
        if self.master and self.remote:
            found.append((("remote",), "master and remote are both given; keep one"))
        if self.conf.get("spark.speculation", "").strip().lower() == "true":
            # a speculative twin fences the task it doubles, which fails the range instead of hurrying it
            found.append((("conf", "spark.speculation"), "two tasks would copy the same range and fence each other; remove it"))
        found += [
            (("conf", f"spark.{key}"), f"belongs one level up, as the key {key} of spark")
            for key in ("master", "remote")
            if f"spark.{key}" in self.conf
        ]
        if found:
            raise complaints(*found)
        return self


class Metrics(_Section):
    """Where metrics can be read."""

    address: HostPort | None = None
    """Serve Prometheus metrics at host:port; not served when left out."""
    textfile: FileInExistingFolder | None = None
    """Write them to this file when a run ends, for the node exporter's textfile collector."""


class Settings(_Section):
    """The whole file."""

    spark: Spark = Spark(master="local[*]")
    """Where the copy runs."""
    metrics: Metrics = Metrics()
    """Where metrics can be read."""
    mirrors: dict[MirrorName, Mirror] = Field(min_length=1)
    """The mirrors by name. The name is part of every checkpoint: a renamed mirror starts anew."""

    def mirror(self, name: str) -> Mirror:
        """The mirror of that name.

        Raises:
            ConfigError: there is none.
        """
        if name in self.mirrors:
            return self.mirrors[name]
        raise ConfigError(f"no mirror is called {name!r}", remedy=nearest(name, self.mirrors, "mirrors"))

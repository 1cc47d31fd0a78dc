"""The clusters of a mirror: addresses, security, and how the upstreams are watched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PrivateAttr, SecretStr

from relay_pipelines import model, redaction
from relay_pipelines.plan.upstream_choice import Failback
from relay_pipelines.settings.config_types import (
    Count,
    Duration,
    Endpoint,
    ExistingFile,
    ExtensionName,
    ExtensionValue,
    Name,
    NotNegative,
    Problem,
    RequestSize,
    Secret,
    Section,
    Servers,
    Text,
    code_name,
    config_folder,
    json_problems,
    matches,
)

_CLUSTER = model.Cluster("", ())
_PASSWORD_KEYS = ("username", "password")
_ENDPOINT_KEYS = ("token_endpoint", "client_id", "client_secret")
_PROVIDER_KEYS = ("token_provider", "token_provider_config")
_TOKEN_KEYS = (*_ENDPOINT_KEYS, "scope", *_PROVIDER_KEYS, "sasl_extensions")
_KERBEROS_KEYS = ("service_name", "principal", "keytab", "ticket_cache")
_SASL_KEYS = (*_PASSWORD_KEYS, *_TOKEN_KEYS, *_KERBEROS_KEYS)
_TLS_KEYS = (
    "ca_location",
    "certificate_location",
    "key_location",
    "key_password",
    "verify_hostname",
)
_CHOICE_KEYS = ("lag_threshold", "failback")


class SecuritySettings(Section):
    """How to connect to a cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The listener's security protocol."""
    mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None
    ) = None
    """The SASL mechanism; only with a SASL protocol."""
    username: Text | None = None
    """The SASL user; not with OAUTHBEARER or GSSAPI."""
    password: Secret | None = None
    """The SASL password; prefer `${ENV_VAR}` or `${file:path}` to the password itself."""
    token_endpoint: Endpoint | None = None
    """Where OAUTHBEARER requests a token (OAuth's client credentials grant)."""
    client_id: Text | None = None
    """The OAuth client that requests the token."""
    client_secret: Secret | None = None
    """The client's secret; prefer `${ENV_VAR}` or `${file:path}` to the secret itself."""
    scope: Text | None = None
    """The scope to request, if the token endpoint needs one; separate several with spaces."""
    token_provider: Annotated[str, code_name("module:function")] | None = None
    """A function of yours that returns tokens for OAUTHBEARER: `module:function`.

    The module is installed or next to this file; or name an entry point. It replaces the token
    endpoint.
    """
    token_provider_config: dict[str, Any] = Field(default={}, repr=False)
    """Keyword arguments for the token provider."""
    sasl_extensions: dict[ExtensionName, ExtensionValue] = Field(default={})
    """What OAUTHBEARER sends beside the token, such as `logicalCluster` (KIP-342)."""
    service_name: Text = "kafka"
    """The first part of the brokers' Kerberos principals (`sasl.kerberos.service.name`)."""
    principal: Text | None = None
    """Who GSSAPI connects as, such as `relay@EXAMPLE.COM`; the ticket cache's owner by default."""
    keytab: ExistingFile | None = None
    """File with the principal's key, at the same path on every machine that runs tasks."""
    ticket_cache: ExistingFile | None = None
    """File with the tickets of `kinit`; by default what `KRB5CCNAME` or krb5.conf says."""
    ca_location: ExistingFile | None = None
    """PEM file of the certificate authorities to trust; the system's by default."""
    certificate_location: ExistingFile | None = None
    """PEM file of the client certificate chain, if the broker requires one."""
    key_location: ExistingFile | None = None
    """PEM file of the client's private key, if the certificate's file does not contain it."""
    key_password: Secret | None = None
    """The private key's password."""
    verify_hostname: bool = True
    """Whether the broker's certificate must match the host name."""

    _folder: str = PrivateAttr("")

    def model_post_init(self, context: Any) -> None:
        """Note where the token provider may be, and hide its secrets."""
        self._folder = config_folder(context)
        redaction.hide_named(self.token_provider_config)

    def problems(self) -> Iterator[Problem]:
        """Find keys that the protocol or the mechanism ignores or needs."""
        yield from json_problems("token_provider_config", self.token_provider_config)
        yield from self._sasl_problems()
        yield from self._tls_problems()

    def _sasl_problems(self) -> Iterator[Problem]:
        if not self.protocol.startswith("SASL_"):
            for key in ("mechanism", *_SASL_KEYS):
                if self._has(key):
                    yield (key,), f"needs a SASL protocol, not {self.protocol}"
            return
        if self.mechanism is None:
            yield ("mechanism",), f"is missing; {self.protocol} needs it"
            return
        own = {"OAUTHBEARER": _TOKEN_KEYS, "GSSAPI": _KERBEROS_KEYS}.get(
            self.mechanism, _PASSWORD_KEYS
        )
        for key in _SASL_KEYS:
            if key not in own and self._has(key):
                why = f"{self.mechanism} does not use it; remove it or choose another mechanism"
                yield (key,), why
        if own is _TOKEN_KEYS:
            yield from self._token_problems()
        elif own is _KERBEROS_KEYS:
            yield from self._kerberos_problems()
        else:
            yield from self._missing(_PASSWORD_KEYS)

    def _has(self, key: str) -> bool:
        return key in self.model_fields_set and bool(getattr(self, key))

    def _kerberos_problems(self) -> Iterator[Problem]:
        if self.keytab and not self.principal:
            yield ("principal",), "is missing; keytab needs it"
        if self.keytab and self.ticket_cache:
            yield ("ticket_cache",), "has no effect: the tickets come from keytab"

    def _token_problems(self) -> Iterator[Problem]:
        if self.token_provider:
            for key in (*_ENDPOINT_KEYS, "scope"):
                if getattr(self, key):
                    yield (key,), "has no effect: the tokens come from token_provider"
            return
        yield from self._missing(_ENDPOINT_KEYS)
        if self.token_provider_config:
            yield ("token_provider_config",), "needs token_provider"

    def _missing(self, keys: tuple[str, ...]) -> Iterator[Problem]:
        for key in keys:
            if not getattr(self, key):
                yield (key,), f"is missing; {self.mechanism} needs it"

    def _tls_problems(self) -> Iterator[Problem]:
        if not self.protocol.endswith("SSL"):
            for key in _TLS_KEYS:
                if key in self.model_fields_set:
                    yield (key,), f"needs the protocol SSL or SASL_SSL, not {self.protocol}"
        elif self.certificate_location is None:
            for key in ("key_location", "key_password"):
                if getattr(self, key):
                    yield (key,), "needs certificate_location"

    def as_model(self) -> model.Security:
        """Return the value that connections take, with its secrets."""
        values = {field.name: getattr(self, field.name) for field in fields(model.Security)}
        secrets = {
            key: value.get_secret_value()
            for key, value in values.items()
            if isinstance(value, SecretStr)
        }
        config = json.dumps(self.token_provider_config, sort_keys=True)
        others = {
            "sasl_extensions": tuple(sorted(self.sasl_extensions.items())),
            "token_provider": self.token_provider
            and model.ClassSpec(self.token_provider, config, self._folder),
        }
        return model.Security(**values | secrets | others)


Role = TypeVar("Role", bound="_Connection")


class _Connection(Section):
    """How to reach a cluster."""

    bootstrap_servers: Servers = Field(min_length=1)
    """Bootstrap brokers as `host:port`; a list, or one string with commas."""
    security: SecuritySettings = SecuritySettings()
    """How to connect to the cluster."""
    socket_receive_buffer: RequestSize = _CLUSTER.receive_buffer_bytes
    """Receive buffer of each connection; over a long line, bandwidth times round-trip time."""
    socket_send_buffer: RequestSize = _CLUSTER.send_buffer_bytes
    """Send buffer of each connection; over a long line, bandwidth times round-trip time."""

    def reached_as(self, role: type[Role], **more: Any) -> Role:
        """Return the same cluster in another role, such as the upstream that it becomes.

        Args:
            more: what only that role has.
        """
        shared = {key: getattr(self, key) for key in _Connection.model_fields}
        return role.model_validate(shared | more)

    def _cluster(self, name: str) -> model.Cluster:
        return model.Cluster(
            name,
            self.bootstrap_servers,
            self.security.as_model(),
            self.socket_receive_buffer,
            self.socket_send_buffer,
        )


class Upstream(_Connection):
    """One of the identical clusters of a source."""

    name: Name
    """The name in messages and checkpoints; do not change it later."""
    rack: Text = ""
    """The rack or zone of those who copy, as in `broker.rack`: they read the nearest replica."""
    rack_variable: Text = ""
    """A variable of the environment of each task that says its rack; `rack` is for the others."""

    @property
    def cluster(self) -> model.Cluster:
        """The value that connections take."""
        return replace(self._cluster(self.name), rack=self.rack, rack_variable=self.rack_variable)


class Health(Section):
    """How upstreams are watched, and which upstream is read."""

    interval: Duration = 30_000
    """How often Dagster's health sensor checks every upstream."""
    request_timeout: Duration = 3_000
    """An upstream that does not answer in time is down; during a copy, only if there are others."""
    lag_threshold: NotNegative | None = None
    """One that lags the most advanced by more records is unhealthy; no limit by default."""
    failback: Failback = Failback.NEVER
    """Whether to return to a preferred upstream once it is healthy again: never or when_healthy."""


class SchemaRegistry(Section):
    """A schema registry with Confluent's REST API."""

    url: Endpoint
    """Where its REST API is, such as https://registry.example.com:8081."""
    context: Annotated[str, matches(r"\.[\w.-]*", "a name that begins with a dot")] = "."
    """The context of the schemas, such as `.europe`; the default one is `.`."""
    username: Text | None = None
    """The user, for HTTP's basic authentication."""
    password: Secret | None = None
    """The user's password; prefer `${ENV_VAR}` or `${file:path}` to the password itself."""
    token: Secret | None = None
    """A bearer token, instead of a user."""
    ca_location: ExistingFile | None = None
    """PEM file of the certificate authorities to trust; those of Python's certifi by default."""
    certificate_location: ExistingFile | None = None
    """PEM file of the client certificate chain, if the registry requires one."""
    key_location: ExistingFile | None = None
    """PEM file of the client's private key, without a password; if it is not in that file."""
    request_timeout: Duration = 10_000
    """How long one request may take."""

    def problems(self) -> Iterator[Problem]:
        """Find keys that need or exclude each other."""
        if bool(self.username) != bool(self.password):
            yield ("password" if self.username else "username",), "is missing; the other needs it"
        if self.token and self.username:
            yield ("token",), "username and password already say who asks; remove one of them"
        if not self.url.startswith("https:"):
            for key in ("ca_location", "certificate_location", "key_location"):
                if getattr(self, key):
                    yield (key,), "needs an address with https"
        elif self.key_location and not self.certificate_location:
            yield ("key_location",), "needs certificate_location"


class Source(Section):
    """Where records come from: upstreams that hold the same topics, record for record."""

    upstreams: tuple[Upstream, ...] = Field(min_length=1)
    """The upstreams in order of preference; usually one."""
    schema_registry: SchemaRegistry | None = None
    """The registry of the schemas whose ids records have; `relay schemas verify` reads it."""
    health: Health = Health()
    """When an upstream is healthy, and which upstream is read."""

    def problems(self) -> Iterator[Problem]:
        """Find repeated upstream names, and failover settings of a single upstream."""
        names = [upstream.name for upstream in self.upstreams]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield ("upstreams", index, "name"), "another upstream has this name"
        if len(names) == 1:
            for key in _CHOICE_KEYS:
                if key in self.health.model_fields_set:
                    yield ("health", key), "has no effect: the source has only one upstream"


class Destination(_Connection):
    """Where records go."""

    schema_registry: SchemaRegistry | None = None
    """The registry that readers of the copies ask; `relay schemas verify` reads it."""

    replication_factor: Annotated[Count, Field(le=32_767)] | None = None
    """Of created topics, the mirror's internal topics included; the broker's default by default."""

    @property
    def cluster(self) -> model.Cluster:
        """The value that connections take; its name is "destination"."""
        return self._cluster("destination")

"""How to talk to a cluster: the keys of `security`, for a node and for the destination alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import model_validator

from relay_pipelines import model
from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.values import (
    Endpoint,
    ExistingFile,
    Location,
    Secret,
    Text,
    complaints,
)

_PASSWORD_KEYS = ("username", "password")
_TOKEN_KEYS = ("token_endpoint", "client_id", "client_secret")
_TLS_KEYS = (
    "ca_location",
    "certificate_location",
    "key_location",
    "key_password",
    "verify_hostname",
)
_OAUTHBEARER = "OAUTHBEARER"

Problem = tuple[Location, str]


class SecuritySettings(Section):
    """How to talk to a cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """The listener's security protocol."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """The SASL mechanism; only with a SASL protocol."""
    username: Text | None = None
    """The SASL user; not with OAUTHBEARER."""
    password: Secret | None = None
    """The SASL password; rather `${ENV_VAR}` or `${file:path}` than the password itself."""
    token_endpoint: Endpoint | None = None
    """Where OAUTHBEARER asks for a token, as this client and for itself (OAuth's client credentials grant)."""
    client_id: Text | None = None
    """Who asks for the token."""
    client_secret: Secret | None = None
    """The client's secret; rather `${ENV_VAR}` or `${file:path}` than the secret itself."""
    scope: Text | None = None
    """The scope to ask for, if the token endpoint wants one; several are parted by spaces."""
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
        found = [*self._sasl_problems(), *self._tls_problems()]
        if found:
            raise complaints(*found)
        return self

    def _sasl_problems(self) -> Iterator[Problem]:
        if not self.protocol.startswith("SASL_"):
            for key in ("mechanism", *_PASSWORD_KEYS, *_TOKEN_KEYS, "scope"):
                if getattr(self, key):
                    yield (key,), f"needs a SASL protocol, not {self.protocol}"
            return
        if self.mechanism is None:
            yield ("mechanism",), f"is missing; {self.protocol} needs it"
            return
        with_token = self.mechanism == _OAUTHBEARER
        for key in _TOKEN_KEYS if with_token else _PASSWORD_KEYS:
            if not getattr(self, key):
                yield (key,), f"is missing; {self.mechanism} needs it"
        for key in _PASSWORD_KEYS if with_token else (*_TOKEN_KEYS, "scope"):
            if getattr(self, key):
                yield (
                    (key,),
                    f"is of no use to {self.mechanism}; remove it, or choose another mechanism",
                )

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
        """The value that connections take."""
        return model.Security(
            protocol=self.protocol,
            mechanism=self.mechanism,
            username=self.username,
            password=_shown(self.password),
            token_endpoint=self.token_endpoint,
            client_id=self.client_id,
            client_secret=_shown(self.client_secret),
            scope=self.scope,
            ca_location=self.ca_location,
            certificate_location=self.certificate_location,
            key_location=self.key_location,
            key_password=_shown(self.key_password),
            verify_hostname=self.verify_hostname,
        )


def _shown(secret: Secret | None) -> str | None:
    return secret.get_secret_value() if secret else None

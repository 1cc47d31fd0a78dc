"""A broker's listeners, and what each needs in server.properties and in a client's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from relay_pipelines.local_kafka.errors import LocalKafkaError
from relay_pipelines.model import Security

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
_PLAIN_WORD = re.compile(r"[\w.~+-]+", re.ASCII)
_SECURITY = "org.apache.kafka.common.security"


class Listener(StrEnum):
    """A listener by its security protocol; the SASL ones accept all of `MECHANISMS`."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"

    @property
    def sasl(self) -> bool:
        """Whether clients need a user name and a password."""
        return self.startswith("SASL")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.endswith("SSL")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files that a TLS listener and its clients need.

    Args:
        authority: signed the other certificates.
        broker: the brokers' private key (PKCS #8), then their certificate.
        client_certificate: one that the brokers trust.
        client_key: its private key, not encrypted.
    """

    authority: Path
    broker: Path
    client_certificate: Path
    client_key: Path


def check_listeners(
    listeners: Sequence[Listener], users: Mapping[str, str], certificates: Certificates | None
) -> None:
    """Check that every listener has the users and certificates that it needs.

    Raises:
        LocalKafkaError: users or certificates are missing, or a name or password needs quoting.
    """
    if certificates is None and any(listener.tls for listener in listeners):
        raise LocalKafkaError("a TLS listener needs certificates", remedy="pass certificates=")
    if not users and any(listener.sasl for listener in listeners):
        raise LocalKafkaError(
            "a SASL listener needs users", remedy="name them: users={'name': 'password'}"
        )
    for user, word in users.items():
        if not (_PLAIN_WORD.fullmatch(user) and _PLAIN_WORD.fullmatch(word)):
            raise LocalKafkaError(
                f"the name or password of user {user!r} needs quoting",
                remedy="use letters, digits and ._~+-",
            )


def listener_properties(
    listener: Listener, users: Mapping[str, str], certificates: Certificates | None
) -> dict[str, str]:
    """Return the broker properties of one listener."""
    prefix = f"listener.name.{listener.lower()}."
    properties: dict[str, str] = {}
    if listener.sasl:
        properties |= {
            f"{prefix}sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{prefix}plain.sasl.jaas.config": _plain(users),
        }
        for mechanism in SCRAM:
            properties[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = (
                f"{_SECURITY}.scram.ScramLoginModule required;"
            )
    if listener.tls and certificates:
        properties |= {
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": str(certificates.broker),
            f"{prefix}ssl.truststore.type": "PEM",
            f"{prefix}ssl.truststore.location": str(certificates.authority),
            # a client may present a certificate, and need not
            f"{prefix}ssl.client.auth": "requested",
        }
    return properties


def scram_arguments(users: Mapping[str, str]) -> list[str]:
    """Return the arguments of `StorageTool format` that create the SCRAM users."""
    credentials = [
        f"{mechanism}=[name={user},password={word}]"
        for user, word in users.items()
        for mechanism in SCRAM
    ]
    return [argument for credential in credentials for argument in ("--add-scram", credential)]


def client_security(
    listener: Listener,
    users: Mapping[str, str],
    certificates: Certificates | None,
    mechanism: str,
    username: str | None,
    *,
    client_certificate: bool,
) -> Security:
    """Return the settings that a client needs for a listener."""
    security = Security(protocol=str(listener))
    if listener.sasl:
        user = username or next(iter(users))
        security = replace(security, mechanism=mechanism, username=user, password=users[user])
    if listener.tls and certificates:
        security = replace(security, ca_location=str(certificates.authority))
        if client_certificate:
            security = replace(
                security,
                certificate_location=str(certificates.client_certificate),
                key_location=str(certificates.client_key),
            )
    return security


def _plain(users: Mapping[str, str]) -> str:
    known = " ".join(f'user_{user}="{word}"' for user, word in users.items())
    return f"{_SECURITY}.plain.PlainLoginModule required {known};"

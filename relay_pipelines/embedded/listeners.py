"""The ways into a broker, and what each needs in server.properties."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from relay_pipelines.embedded.certificates import Certificates
from relay_pipelines.embedded.errors import EmbeddedError
from relay_pipelines.model import Security

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
_PLAIN_WORD = re.compile(r"[\w.~+-]+", re.ASCII)
_SECURITY = "org.apache.kafka.common.security"


class Listener(StrEnum):
    """A listener by its security protocol; a SASL one accepts PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"

    @property
    def sasl(self) -> bool:
        """Whether clients must give a user name and password."""
        return self.startswith("SASL")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.endswith("SSL")


def check_users(listeners: Sequence[Listener], users: Mapping[str, str]) -> None:
    """Refuse what the brokers could not be told.

    Raises:
        EmbeddedError: a SASL listener without users, or a name or password that needs quoting.
    """
    if not users and any(listener.sasl for listener in listeners):
        raise EmbeddedError(
            "a SASL listener needs users", remedy="name them: users={'name': 'password'}"
        )
    for user, word in users.items():
        if not (_PLAIN_WORD.fullmatch(user) and _PLAIN_WORD.fullmatch(word)):
            raise EmbeddedError(
                f"the name or password of user {user!r} needs quoting",
                remedy="use letters, digits and ._~+-",
            )


def listener_properties(
    listener: Listener, users: Mapping[str, str], certificates: Certificates
) -> dict[str, str]:
    """The properties of one listener."""
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
    if listener.tls:
        properties |= {prefix + key: value for key, value in certificates.properties().items()}
    return properties


def scram_arguments(users: Mapping[str, str]) -> list[str]:
    """What StorageTool's format must be told for the users to exist from the first start."""
    credentials = [
        f"{mechanism}=[name={user},password={word}]"
        for user, word in users.items()
        for mechanism in SCRAM
    ]
    return [argument for credential in credentials for argument in ("--add-scram", credential)]


def client_security(
    listener: Listener,
    users: Mapping[str, str],
    certificates: Certificates,
    mechanism: str,
    username: str | None,
    *,
    client_certificate: bool,
) -> Security:
    """What a client must say at a listener."""
    security = Security(protocol=str(listener))
    if listener.sasl:
        user = username or next(iter(users))
        security = replace(security, mechanism=mechanism, username=user, password=users[user])
    if listener.tls:
        security = replace(security, ca_location=str(certificates.authority))
    if listener.tls and client_certificate:
        shown, key = certificates.client_certificate, certificates.client_key
        security = replace(security, certificate_location=str(shown), key_location=str(key))
    return security


def _plain(users: Mapping[str, str]) -> str:
    known = " ".join(f'user_{user}="{word}"' for user, word in users.items())
    return f"{_SECURITY}.plain.PlainLoginModule required {known};"

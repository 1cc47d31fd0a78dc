"""The ways into a broker, and what each needs in server.properties."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from relay_pipelines.embedded.certificates import Certificates

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
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


def listener_properties(listener: Listener, users: Mapping[str, str], certificates: Certificates | None) -> dict[str, str]:
    """The properties of one listener; `certificates` are those of the cluster, needed for TLS."""
    prefix = f"listener.name.{listener.lower()}."
    properties: dict[str, str] = {}
    if listener.sasl:
        properties |= {f"{prefix}sasl.enabled.mechanisms": ",".join(MECHANISMS), f"{prefix}plain.sasl.jaas.config": _plain(users)}
        for mechanism in SCRAM:
            properties[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = f"{_SECURITY}.scram.ScramLoginModule required;"
    if listener.tls and certificates:
        properties |= {prefix + key: value for key, value in certificates.properties().items()}
    return properties


def scram_arguments(users: Mapping[str, str]) -> list[str]:
    """What StorageTool's format must be told for the users to exist from the first start."""
    credentials = [f"{mechanism}=[name={user},password={word}]" for user, word in users.items() for mechanism in SCRAM]
    return [argument for credential in credentials for argument in ("--add-scram", credential)]


def _plain(users: Mapping[str, str]) -> str:
    known = " ".join(f'user_{user}="{word}"' for user, word in users.items())
    return f"{_SECURITY}.plain.PlainLoginModule required {known};"

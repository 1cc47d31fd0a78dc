"""A certificate authority of the cluster's own, and the certificates it signs, by the JDK's keytool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Key store and authority of one cluster."""

    folder: Path

    @property
    def authority(self) -> Path:
        """PEM file with the authority that signed the brokers' certificates."""
        return self.folder / "ca.pem"

    def properties(self) -> dict[str, str]:
        """Without the listener's prefix."""
        return {}

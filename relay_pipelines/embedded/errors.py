"""What can go wrong with brokers of our own."""

from __future__ import annotations

from relay_pipelines.errors import RelayError


class EmbeddedError(RelayError):
    """A broker of our own, its jars or the JDK under it could not be brought up."""


class PortTakenError(EmbeddedError):
    """Another process took a port between its choice and the broker's bind; other ports may do."""

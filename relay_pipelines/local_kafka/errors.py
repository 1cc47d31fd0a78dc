"""Errors of embedded brokers."""

from __future__ import annotations

from relay_pipelines.errors import RelayError


class LocalKafkaError(RelayError):
    """An embedded broker, its jars or its JDK failed."""


class PortTakenError(LocalKafkaError):
    """Another process took the port before the broker did; a start with other ports may work."""

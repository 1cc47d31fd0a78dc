"""Real Apache Kafka brokers as child processes, for the demo, the tests and the benchmarks."""

from __future__ import annotations

from relay_pipelines.embedded.broker import Broker
from relay_pipelines.embedded.cluster import EmbeddedCluster
from relay_pipelines.embedded.errors import EmbeddedError
from relay_pipelines.embedded.listeners import Certificates, Listener

__all__ = ["Broker", "Certificates", "EmbeddedCluster", "EmbeddedError", "Listener"]

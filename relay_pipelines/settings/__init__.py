"""relay.yaml: what it may say, and the only code that reads files and environment variables."""

from __future__ import annotations

from relay_pipelines.settings.clusters import Destination, Node, SecuritySettings, Source
from relay_pipelines.settings.copying import Backoff, Copying
from relay_pipelines.settings.load import load
from relay_pipelines.settings.models import Metrics, Mirror, Settings, Topics
from relay_pipelines.settings.spark import Spark

__all__ = [
    "Backoff",
    "Copying",
    "Destination",
    "Metrics",
    "Mirror",
    "Node",
    "SecuritySettings",
    "Settings",
    "Source",
    "Spark",
    "Topics",
    "load",
]

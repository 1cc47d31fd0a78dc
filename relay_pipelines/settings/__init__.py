"""relay.yaml: its keys, and the only code that reads files and environment variables."""

from __future__ import annotations

from relay_pipelines.settings.clusters import Destination, Health, Node, SecuritySettings, Source
from relay_pipelines.settings.copying import Backoff, Copying
from relay_pipelines.settings.loading import load
from relay_pipelines.settings.models import Metrics, Mirror, Settings, Spark
from relay_pipelines.settings.topics import Topics
from relay_pipelines.settings.windows import LaneSettings, WindowSettings

__all__ = [
    "Backoff",
    "Copying",
    "Destination",
    "Health",
    "LaneSettings",
    "Metrics",
    "Mirror",
    "Node",
    "SecuritySettings",
    "Settings",
    "Source",
    "Spark",
    "Topics",
    "WindowSettings",
    "load",
]

"""relay.yaml: what it may say, and the only code that reads files and environment variables."""

from __future__ import annotations

from relay_pipelines.settings.clusters import Destination, Node, Source
from relay_pipelines.settings.copying import Backoff, Copying
from relay_pipelines.settings.health import Health
from relay_pipelines.settings.load import load
from relay_pipelines.settings.models import Metrics, Mirror, Settings, Topics
from relay_pipelines.settings.security import SecuritySettings
from relay_pipelines.settings.spark import Spark
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

"""relay.yaml: its keys, and the only code that reads files and environment variables.

loading            from the file to `Settings`, or to one error that names all problems
followed           the file as it is now, read again when it is written
models             the whole file: spark, metrics and the mirrors, where they start, their audits
clusters           the upstreams and the destination: addresses, security, health
topics             which topics are copied, their names, and their windows and lanes in Dagster
groups             which consumer groups are kept up to date at the destination
copying            how records are copied, which ones, and how they change
expectations       what the records must be like
validation_errors  problems of a file as lines: where, what was expected, what was found
config_types       what the keys above are made of: mappings, and the types of their values
"""

from __future__ import annotations

from relay_pipelines.settings.clusters import Destination, Source, Upstream
from relay_pipelines.settings.loading import load
from relay_pipelines.settings.models import Metrics, Mirror, Settings, Spark
from relay_pipelines.settings.topics import Topics, WindowSettings

__all__ = [
    "Destination",
    "Metrics",
    "Mirror",
    "Settings",
    "Source",
    "Spark",
    "Topics",
    "Upstream",
    "WindowSettings",
    "load",
]

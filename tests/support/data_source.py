"""Reads a mirror's topic with the Spark data source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.copying import Mirror
from tests.support import commands


def reading(spark: Any, copied: Mirror, folder: Path, **options: str) -> Any:
    """Return a reader of the mirror's topic."""
    settings = commands.mirror(copied.source, copied.destination, copied.topic)
    config = commands.configured(folder, {copied.name: settings})
    return spark.read.format("relay").options(
        **{"config": str(config), "mirror": copied.name, "topic": copied.topic} | options
    )

"""Keeps a code server from growing with each tick of a sensor.

Dagster makes an instance for each tick, and each asks Alembic for the migrations of three databases
by the name of a Python package. For such a name, Alembic registers a function that Python calls at
exit, and that holds on to a context until then: 6 KiB per tick, which are 200 MiB a day. For a
folder it registers nothing.
"""

from __future__ import annotations

from pathlib import Path

import dagster
from dagster._core.storage import sql


def find_migrations_by_folder() -> None:
    """Let Dagster name the folder of its migrations."""
    folder = Path(dagster.__file__).parent / "_core" / "storage" / "alembic"
    if folder.is_dir() and hasattr(sql.get_alembic_config, "cache_clear"):
        sql.ALEMBIC_SCRIPTS_LOCATION = str(folder)
        sql.get_alembic_config.cache_clear()

"""Keeps a code server from growing, and from importing the same files, with each tick of a sensor.

Dagster makes an instance for each tick and each run, and each asks Alembic for the newest migration
of three databases. Alembic imports all of them for each question, which takes 0.1 CPU seconds. If
they are named by a Python package, it also registers a function that Python calls at exit, and that
holds on to a context until then: 6 KiB per tick, which are 200 MiB a day. For a folder it registers
nothing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import dagster
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._core.storage import sql

_LOCATION = "script_location"


@cache
def read_migrations_once() -> None:
    """Let Dagster name the folder of its migrations, and import them once in this process."""
    folder = Path(dagster.__file__).parent / "_core" / "storage" / "alembic"
    if not (folder.is_dir() and hasattr(sql.get_alembic_config, "cache_clear")):
        return
    sql.ALEMBIC_SCRIPTS_LOCATION = str(folder)
    sql.get_alembic_config.cache_clear()
    read = ScriptDirectory.from_config
    found: list[ScriptDirectory] = []

    def from_config(config: Config) -> ScriptDirectory:
        if config.get_main_option(_LOCATION) != str(folder):
            return read(config)  # of a program that shares this process
        if not found:
            found.append(read(config))
        return found[0]

    ScriptDirectory.from_config = staticmethod(from_config)  # type: ignore[method-assign]

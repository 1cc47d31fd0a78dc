"""Adds tags to a Dagster run while others do."""

import threading
import time
from collections.abc import Mapping

from dagster import DagsterInstance
from sqlalchemy.exc import OperationalError

_BUSY_SECONDS = 30.0
"""How long others may write to SQLite: so long Dagster's events wait, and its runs for 5 s."""
_adding = threading.Lock()
"""Tags are read, changed and written: a thread must not undo what another one has written."""


def add(instance: DagsterInstance, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run of this process, also while its heartbeat adds one, or others write."""
    until = time.monotonic() + _BUSY_SECONDS
    with _adding:
        while True:
            try:
                return instance.add_run_tags(run_id, tags)
            except OperationalError as error:
                if "database is locked" not in str(error.orig) or time.monotonic() > until:
                    raise

"""What `relay schemas` is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from relay_pipelines.audit.request import Selection
from relay_pipelines.request import asked


@dataclass(frozen=True, slots=True)
class SchemasRequest(Selection):
    """Which copies are looked at for ids.

    Args:
        full: whether all records are read, and not only some of each topic-partition.
    """

    full: bool = asked("Read all records, not only some.", False)  # noqa: FBT003

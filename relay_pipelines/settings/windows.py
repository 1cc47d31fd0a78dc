"""How Dagster divides the records of a mirror into windows, and its topics into lanes."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from relay_pipelines.settings.config_model import Problem, Section
from relay_pipelines.settings.values import Count, Duration, Pattern, PositiveSize


class WindowSettings(Section):
    """When a window is created, and how large it may be."""

    every: Duration = 30_000
    """Create a window at most this often, if there are new records; without delay in a backlog."""
    max_records: Count = 10_000_000
    """More records than this are divided into several windows."""
    max_bytes: PositiveSize = 10 << 30
    """The same in bytes on the source's disk."""
    ahead: Count = 3
    """How many windows of a backlog may wait to be copied."""
    keep: Count = 1_000
    """How many windows Dagster keeps, with their runs; the ledger has its own retention."""
    lag_target: Duration = 600_000
    """The lag check fails when the oldest record that is not copied yet is older than this."""

    def problems(self) -> Iterator[Problem]:
        """Find values that contradict each other."""
        if self.keep <= self.ahead:
            why = "must be more than ahead: windows that wait to be copied would be deleted"
            yield ("keep",), why


class LaneSettings(Section):
    """Topics that get windows of their own."""

    topics: tuple[Pattern, ...] = Field(min_length=1)
    """Regular expressions that match the whole name of a source topic."""
    window: WindowSettings | None = None
    """Replaces the mirror's window settings."""

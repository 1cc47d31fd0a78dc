"""How the orchestrator cuts topics into windows."""

from __future__ import annotations

from pydantic import Field, model_validator

from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.values import (
    Count,
    Duration,
    Location,
    Pattern,
    PositiveSize,
    complaints,
)


class WindowSettings(Section):
    """When a window is cut, and how large it may be."""

    every: Duration = 30_000
    """At most this often, and only if there is something new. A backlog is cut at once."""
    max_records: Count = 10_000_000
    """More than this becomes several windows."""
    max_bytes: PositiveSize = 10 << 30
    """The same in bytes on the source's disk."""
    ahead: Count = 3
    """How many windows of a backlog are cut before they are copied."""
    keep: Count = 1_000
    """How many windows the orchestrator remembers, with their runs; the ledger keeps its own time."""
    lag_target: Duration = 600_000
    """The lag check fails when the oldest record that is not copied yet is older."""

    @model_validator(mode="after")
    def _holds_together(self) -> WindowSettings:
        if found := self.problems():
            raise complaints(*found)
        return self

    def problems(self) -> list[tuple[Location, str]]:
        """What contradicts each other."""
        if self.keep <= self.ahead:
            return [
                (
                    ("keep",),
                    "must be more than ahead: windows that wait to be copied would be deleted",
                )
            ]
        return []


class LaneSettings(Section):
    """Topics whose windows are cut together and apart from those of others."""

    topics: tuple[Pattern, ...] = Field(min_length=1)
    """Regular expressions for the whole source topic name."""
    window: WindowSettings | None = None
    """In place of the mirror's."""

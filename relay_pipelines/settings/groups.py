"""Which consumer groups are kept up to date at the destination."""

from __future__ import annotations

from relay_pipelines.settings.config_types import Duration, Pattern, Section, Text


class Groups(Section):
    """Consumer groups of the source that a mirror keeps up to date at the destination."""

    allow: tuple[Pattern, ...] = ()
    """Regular expressions that match the whole name of a group; none by default."""
    deny: tuple[Pattern, ...] = ()
    """Regular expressions of groups to leave out, although `allow` matches them."""
    every: Duration = 10_000
    """How often to look at what they have committed at the source, while something copies."""
    lag_target: Duration = 60_000
    """The check `group_offsets` fails when a group has not been followed for longer."""
    upstream: Text | None = None
    """The upstream whose groups are meant, if the source has several."""

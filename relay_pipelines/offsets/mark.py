"""The text beside an offset that a mirror has committed for a group, which tells it from others.

Whoever commits after it replaces the text: a consumer that has moved, or an operator who resets
the group. So an offset with the mark is exactly what this mirror committed last.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relay_pipelines.protocol.group_requests import CommittedOffset

_MARK = re.compile(r"kafka-relay (?P<mirror>\S+) (?P<offset>\d+) (?P<at_ms>\d+)")


class Mark(NamedTuple):
    """Who has committed an offset.

    Args:
        at_ms: the time of the commit, in milliseconds since the Unix epoch.
    """

    mirror: str
    at_ms: int


def marked(mirror: str, offset: int, at_ms: int) -> CommittedOffset:
    """Return what a mirror commits."""
    return CommittedOffset(offset, f"kafka-relay {mirror} {offset} {at_ms}")


def mark_of(commit: CommittedOffset) -> Mark | None:
    """Return the mark of an offset; None if another process has committed it."""
    match = _MARK.fullmatch(commit.metadata)
    if match is None or int(match["offset"]) != commit.offset:
        return None
    return Mark(match["mirror"], int(match["at_ms"]))


def own_text(metadata: str) -> str:
    """Return the text of a consumer: none, if a mirror has committed for it.

    confluent-kafka writes an empty text as one byte of zero.
    """
    return "" if not metadata.strip("\0") or _MARK.fullmatch(metadata) else metadata

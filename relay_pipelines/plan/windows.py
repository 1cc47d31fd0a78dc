"""From what the source holds and what was copied, to what is to be copied."""

from __future__ import annotations

from enum import StrEnum


class StartPolicy(StrEnum):
    """Where a topic-partition without a checkpoint is taken up."""

    EARLIEST = "earliest"
    LATEST = "latest"

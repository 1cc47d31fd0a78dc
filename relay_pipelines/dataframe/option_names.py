"""The names of options, by both of which they are given, and what they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from relay_pipelines.errors import (
    ConfigError,
)

if TYPE_CHECKING:
    pass


OPTIONS = (
    *("config", "mirror", "topic", "side", "node", "start", "end", "window", "chunks"),
    "includeHeaders",
)
LEDGER_OPTIONS = ("config", "mirror", "topic", "window")
STREAM_OPTIONS = (
    *("config", "mirror", "topic", "side", "node", "start", "max_offsets", "includeHeaders"),
)
_SPARK_NAMES = {
    "subscribe": "topic",
    "startingOffsets": "start",
    "endingOffsets": "end",
    "maxOffsetsPerTrigger": "max_offsets",
}
"""What spark-sql-kafka calls options that mean the same."""
_KINDS = ("records", "ledger")
_SIDES = ("source", "destination")


def kind_of(options: Mapping[str, str]) -> str:
    kind = options.get("what", "records")
    if kind not in _KINDS:
        raise ConfigError(
            f"option what: {kind!r} is neither records nor ledger",
            remedy="leave it out for records",
        )
    return kind


def our_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by our names.

    Raises:
        ConfigError: one is given by both names.
    """
    found = dict(options)  # Spark converts option names to lower case, which all of ours are
    for theirs, ours in _SPARK_NAMES.items():
        if (value := found.pop(theirs.lower(), None)) is None:
            continue
        if ours in found:
            raise ConfigError(
                f"options {ours} and {theirs} mean the same", remedy="give one of them"
            )
        found[ours] = value
    return found


def is_true(options: Mapping[str, str], option: str) -> bool:
    text = options.get(option.lower(), "false")
    if text.lower() not in {"true", "false"}:
        raise ConfigError(f"option {option}: {text!r} is neither true nor false")
    return text.lower() == "true"


def refuse_unknown(options: Mapping[str, str], known: Sequence[str], subject: str) -> None:
    for key in options:
        if key not in ("what", *map(str.lower, known)):
            raise ConfigError(
                f"{subject} has no option {key!r}", remedy=f"it has {', '.join(known)}, what"
            )

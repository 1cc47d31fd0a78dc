"""Consoles, and numbers, sizes, durations and times as text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from rich.console import Console

from relay_pipelines.errors import RelayError, together
from relay_pipelines.plan.positions import Position, open_since
from relay_pipelines.protocol.clock import moment_of

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT = 1024
_MAX_SHOWN = 3
_WORTH_SAYING_SECONDS = 0.1
HELD_BACK = "held back: "
_FILE_WIDTH = 240  # wide enough to cut nothing in a file or a pipe


def stdout() -> Console:
    """Return the console for results."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return the console for progress, warnings and errors."""
    return _console(stderr=True)


def count(number: float) -> str:
    """Format a number: 1,234,567."""
    # as a float, an offset above 2 ** 53 would be another one
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}"


def size(number_bytes: float) -> str:
    """Format a size: 1.5 GiB."""
    unit = 0
    while number_bytes >= _UNIT and unit < len(_UNITS) - 1:
        number_bytes /= _UNIT
        unit += 1
    return f"{number_bytes:.0f} B" if unit == 0 else f"{number_bytes:.1f} {_UNITS[unit]}"


def seconds(number: float) -> str:
    """Format a duration: 0.3 s, 42 s, 2 min 5 s, 3 h 20 min."""
    if number < 10:  # noqa: PLR2004 - tenths matter only for a few seconds
        return f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_time(ms: int) -> str:
    """Format a time: 2026-01-31T12:00:00Z; the milliseconds if the calendar has no such time."""
    moment = moment_of(ms)
    return f"{ms} ms" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def plural(number: int, noun: str) -> str:
    """Format a number with its noun: 1 record, 2 records."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def throttled(waits: Mapping[str, float]) -> str:
    """Say which side's quota has made tasks wait, and for how long; empty if none has.

    Args:
        waits: seconds by side.
    """
    return ", ".join(
        f"tasks waited {seconds(waited)} for a quota of the {side}"
        for side, waited in sorted(waits.items())
        if waited >= _WORTH_SAYING_SECONDS
    )


def held_back(errors: Iterable[RelayError]) -> str:
    """Say what is held back, why, and what to do; an empty string if nothing is."""
    causes = together(errors)
    if not causes:
        return ""
    hidden = len(causes) - _MAX_SHOWN
    more = f" (and {hidden} more reasons: see `relay status`)" if hidden > 0 else ""
    return f"{HELD_BACK}{'; '.join(map(str, causes[:_MAX_SHOWN]))}{more}"


def open_transactions(positions: Iterable[Position], now_ms: int) -> str:
    """Describe open transactions, or return an empty string if there are none.

    Such as `open transaction: 1,001 records of orders-0[5, 1006), the first 3 min 20 s old`.
    """
    held_up = sorted(
        (position for position in positions if position.open_records),
        key=lambda position: position.open_since_ms or now_ms,
    )
    if not held_up:
        return ""
    records = plural(sum(position.open_records for position in held_up), "record")
    shown = ", ".join(str(position.open_transaction) for position in held_up[:_MAX_SHOWN])
    hidden = len(held_up) - _MAX_SHOWN
    more = f" and {count(hidden)} topic-partitions more" if hidden > 0 else ""
    age = open_since(held_up, now_ms)
    first = "" if age is None else f", the first {seconds(age)} old"
    return f"open transaction{'s' if len(held_up) > 1 else ''}: {records} of {shown}{more}{first}"


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console

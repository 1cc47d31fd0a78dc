"""Consoles, and how numbers, sizes and times are said."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable

from rich.console import Console

from relay_pipelines.plan.positions import Position

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT = 1024
_SHOWN = 3
_FILE_WIDTH = 240  # nothing is cut when the output goes to a file or a pipe


def stdout() -> Console:
    """For results."""
    return _console(stderr=False)


def stderr() -> Console:
    """For progress, warnings and errors."""
    return _console(stderr=True)


def count(number: float) -> str:
    """1,234,567."""
    return f"{number:,.0f}"


def size(number_bytes: float) -> str:
    """1.5 GiB."""
    unit = 0
    while number_bytes >= _UNIT and unit < len(_UNITS) - 1:
        number_bytes /= _UNIT
        unit += 1
    return f"{number_bytes:.0f} B" if unit == 0 else f"{number_bytes:.1f} {_UNITS[unit]}"


def seconds(number: float) -> str:
    """0.3 s, 42 s, 2 min 5 s, 3 h 20 min."""
    if number < 10:  # noqa: PLR2004 - below, tenths are worth saying
        return f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def moment(ms: int) -> str:
    """2026-01-31T12:00:00Z."""
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plural(number: int, noun: str) -> str:
    """1 record, 2 records."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def open_since(positions: Iterable[Position], now_ms: int) -> float | None:
    """For how many seconds the oldest open transaction has been open; None if none is, or if that is unknown."""
    since_ms = min(
        (one.open_since_ms for one in positions if one.open_since_ms is not None), default=None
    )
    return None if since_ms is None else max(0.0, (now_ms - since_ms) / 1000)


def open_transactions(positions: Iterable[Position], now_ms: int) -> str:
    """`open transaction: 1,001 records of orders-0[5, 1006), the first 3 min 20 s old`; empty if nothing waits for one."""
    held_up = sorted(
        (one for one in positions if one.open_transaction),
        key=lambda one: one.open_since_ms or now_ms,
    )
    if not held_up:
        return ""
    records = plural(sum(len(one.open_transaction) for one in held_up), "record")
    shown = ", ".join(str(one.open_transaction) for one in held_up[:_SHOWN])
    more = (
        f" and {count(len(held_up) - _SHOWN)} topic-partitions more"
        if len(held_up) > _SHOWN
        else ""
    )
    age = open_since(held_up, now_ms)
    first = "" if age is None else f", the first {seconds(age)} old"
    return f"open transaction{'s' if len(held_up) > 1 else ''}: {records} of {shown}{more}{first}"


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    return console

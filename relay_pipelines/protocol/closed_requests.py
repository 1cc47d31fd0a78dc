"""The requests at which a broker closes connections, although it has answered others there.

A broker that is killed or restarts closes its connections once, and refuses new ones until it
serves again; before that, or behind a proxy, it may close several in a row. One that accepts new
connections, answers on them, and closes them at the same request for longer does so for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST = 5
"""Connections, opened one after the other, without an answer to the request between them."""
_LEAST_SECONDS = 20.0
"""From the first of them to the last."""

Address = tuple[str, int]


@dataclass(slots=True)
class _Closed:
    first_at: float  # in monotonic seconds
    last_at: float
    count: int = 0


_CLOSED: dict[tuple[Address, int], _Closed] = {}


def note(address: Address, api_key: int, opened_at: float, closed_at: float) -> bool:
    """Note that a broker has closed a connection at a request; return whether it always does.

    Connections that were open at the same time may have ended by one event, and count once.

    Args:
        opened_at: when the connection was opened, in monotonic seconds.
        closed_at: when it was closed.
    """
    closed = _CLOSED.setdefault((address, api_key), _Closed(closed_at, -math.inf))
    if opened_at > closed.last_at:
        closed.count += 1
        closed.last_at = closed_at
    if closed.count < _MOST or closed.last_at - closed.first_at < _LEAST_SECONDS:
        return False
    _CLOSED.pop((address, api_key), None)  # whoever tries again begins again
    return True


def note_away(address: Address) -> None:
    """Note that a broker does not even say what it serves: what it has closed had another cause."""
    for key in [key for key in list(_CLOSED) if key[0] == address]:
        _CLOSED.pop(key, None)


def note_answer(address: Address, api_key: int) -> None:
    """Note that a broker has answered a request."""
    if _CLOSED:
        _CLOSED.pop((address, api_key), None)

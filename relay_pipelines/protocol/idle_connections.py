"""Connections that no client uses now, for the next client of this process.

A planner's tick, a session's survey and the run after it each have a client for a moment. With TLS
and many brokers, connecting each time again costs more than what they ask. A connection belongs to
one client at a time.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import defaultdict
from typing import NamedTuple

from relay_pipelines.model import Cluster
from relay_pipelines.protocol.connection import Connection
from relay_pipelines.protocol.security import FileStamps, file_stamps

_KEPT_SECONDS = 60.0  # what lies between forgets an idle connection after some minutes
_MOST_OF_PLACE = 4


class _Place(NamedTuple):
    """Whom a connection connects.

    Args:
        files: that it was opened with. With a new certificate, one connects again.
    """

    cluster: Cluster
    address: tuple[str, int]
    files: FileStamps


class _Idle(NamedTuple):
    """A connection, and since when nobody uses it, in monotonic seconds."""

    connection: Connection
    since: float


_IDLE: defaultdict[_Place, list[_Idle]] = defaultdict(list)
_LOCK = threading.Lock()


def take(cluster: Cluster, address: tuple[str, int]) -> Connection | None:
    """Return a connection that is open, as far as this side knows; None if there is none."""
    place = _Place(cluster, address, file_stamps(cluster.security))
    while True:
        with _LOCK:
            waiting = _IDLE.get(place)
            if not waiting:
                return None
            connection, since = waiting.pop()
        if time.monotonic() - since <= _KEPT_SECONDS and not connection.is_stale():
            return connection
        connection.close()


def keep(connection: Connection) -> None:
    """Keep a connection that nobody uses any more; close it if an answer is due.

    A child has the sockets of its parent, and must not use them.
    """
    if not connection.is_open or connection.unanswered or connection.process != os.getpid():
        connection.close()
        return
    connection.free_buffer()
    now = time.monotonic()
    place = _Place(connection.cluster, connection.address, connection.files)
    with _LOCK:
        closed = _pop_expired(now)
        waiting = _IDLE[place]
        waiting.append(_Idle(connection, now))
        closed += waiting[:-_MOST_OF_PLACE]
        del waiting[:-_MOST_OF_PLACE]
    for idle in closed:
        idle.connection.close()


def close_those_beside(lost: Connection) -> None:
    """Close what is kept of the same broker: no answer may come there either."""
    with _LOCK:
        beside = [
            place
            for place in _IDLE
            if (place.cluster, place.address) == (lost.cluster, lost.address)
        ]
        kept = [idle for place in beside for idle in _IDLE.pop(place)]
    for idle in kept:
        idle.connection.close()


def close_all() -> None:
    """Close what is kept."""
    with _LOCK:
        kept = [idle for waiting in _IDLE.values() for idle in waiting]
        _IDLE.clear()
    for idle in kept:
        idle.connection.close()


def _pop_expired(now: float) -> list[_Idle]:
    expired: list[_Idle] = []
    for place, waiting in list(_IDLE.items()):
        expired += [idle for idle in waiting if now - idle.since > _KEPT_SECONDS]
        waiting[:] = [idle for idle in waiting if now - idle.since <= _KEPT_SECONDS]
        if not waiting:
            del _IDLE[place]
    return expired


def _begin_child() -> None:
    """Forget what the parent keeps; one of its threads may have held the lock."""
    global _LOCK  # noqa: PLW0603 - the child has nobody to release it
    _LOCK = threading.Lock()
    _IDLE.clear()


atexit.register(close_all)
os.register_at_fork(after_in_child=_begin_child)

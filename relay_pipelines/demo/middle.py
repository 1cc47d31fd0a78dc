"""The middle of a run, by its ledger: the moment to kill something. A run that was too fast for it is tried again with more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from relay_pipelines.console.formatting import count
from relay_pipelines.demo.command import Command
from relay_pipelines.demo.progress import Ledger
from relay_pipelines.demo.telling import Reporter
from relay_pipelines.demo.upstream import Arrivals

_ATTEMPTS = 3
_CHUNKS = 8
_SHARE = 5
_POLL_SECONDS = 0.005
_Hit = TypeVar("_Hit")


def wait_for_middle(command: Command, ledger: Ledger, end: int, say: Callable[[str], None]) -> bool:
    """Wait until a few chunks are committed, and a fifth of what there is to copy; False if the command ended before.

    Args:
        end: how many offsets the ledger will cover.
        say: told how far it is.
    """
    known, before = len(ledger.entries), ledger.offsets
    while command.running:
        chunks = ledger.poll() - known
        if chunks >= _CHUNKS and ledger.offsets - before >= (end - before) // _SHARE:
            return True
        if chunks:
            say(f"{chunks} chunks committed")
        time.sleep(_POLL_SECONDS)
    return False


def insist(attempt: Callable[[int], _Hit], arrivals: Arrivals, more: int, teller: Reporter) -> _Hit:
    """Make attempts, which are numbered from 1, until one hits the middle, and return what the last one gave.

    Args:
        attempt: gives something true if it did.
        more: how many events to add before another attempt.
    """
    for number in range(1, _ATTEMPTS + 1):
        if hit := attempt(number):
            return hit
        if number < _ATTEMPTS:
            teller.say(
                f"too fast: everything was copied before the kill. Once more, with {count(more)} events more:",
                style="yellow",
            )
            arrivals.add(more)
    teller.say(
        "too fast for a kill in the middle on this machine; what follows shows no recovery",
        style="yellow",
    )
    return hit

"""When to kill: in the middle of a run, by the ledger at the destination."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from relay_pipelines.console.formatting import count
from relay_pipelines.demo.provenance import Ledger
from relay_pipelines.demo.relay_process import RelayProcess
from relay_pipelines.demo.reporter import Reporter
from relay_pipelines.demo.shop import Arrivals

_ATTEMPTS = 3
_CHUNKS = 8
_SHARE = 5
_POLL_SECONDS = 0.005
_Kill = TypeVar("_Kill")


def wait_for_middle(
    process: RelayProcess, ledger: Ledger, end: int, show: Callable[[str], None]
) -> bool:
    """Wait until a few chunks and a fifth of the offsets are copied; False if the run ends first.

    Args:
        end: how many offsets the ledger will cover.
        show: shows the progress.
    """
    known, before = ledger.poll(), ledger.offsets
    while process.running:
        chunks = ledger.poll() - known
        if chunks >= _CHUNKS and ledger.offsets - before >= (end - before) // _SHARE:
            return True
        if chunks:
            show(f"{chunks} chunks committed")
        time.sleep(_POLL_SECONDS)
    return False


def retry_until_killed(
    attempt: Callable[[int], _Kill], arrivals: Arrivals, more: int, reporter: Reporter
) -> _Kill:
    """Repeat a numbered attempt until its kill hits the middle; return what the last one returned.

    Args:
        attempt: returns something true if it hit.
        more: how many events to add before another attempt.
    """
    for number in range(1, _ATTEMPTS + 1):
        if (kill := attempt(number)) or number == _ATTEMPTS:
            break
        reporter.say(
            f"too fast: the copy ended before the kill; once more, with {count(more)} more events:",
            style="yellow",
        )
        arrivals.add(more)
    if not kill:
        reporter.say("this machine is too fast for a kill in the middle", style="yellow")
    return kill

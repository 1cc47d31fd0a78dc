"""Named points of the copy at which a test may kill or stop the process; nothing happens unless RELAY_FAULT is set.

RELAY_FAULT is `<point>=<signal>@<n>:<token file>`: at the n-th pass of the point this process sends
itself the signal, once per token file (which it creates), so that a retried task gets through.
Example: `before_end_txn=SIGKILL@2:/tmp/once`.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from enum import StrEnum
from pathlib import Path


class Failpoint(StrEnum):
    """In the order in which a task passes them."""

    AFTER_INIT_PRODUCER_ID = "after_init_producer_id"
    MID_CHUNK = "mid_chunk"
    BEFORE_CHECKPOINT = "before_checkpoint"
    BEFORE_END_TXN = "before_end_txn"
    AFTER_END_TXN = "after_end_txn"
    BEFORE_OUTCOME = "before_outcome"
    BEFORE_RECOUNT = "before_recount"  # on the driver


_WANTED = re.fullmatch(
    r"(?P<point>\w+)=(?P<signal>\w+)@(?P<pass>\d+):(?P<token>.+)", os.environ.get("RELAY_FAULT", "")
)
_passes: Counter[str] = Counter()


def failpoint(point: Failpoint) -> None:
    """Say that the process is at `point`."""
    if _WANTED is None or _WANTED["point"] != point:
        return
    _passes[point] += 1
    if _passes[point] < int(_WANTED["pass"]):
        return
    try:
        Path(_WANTED["token"]).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.Signals[_WANTED["signal"]])

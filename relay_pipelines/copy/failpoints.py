"""Points in the code at which a test may kill or stop the process, if RELAY_FAULT is set.

RELAY_FAULT is `<point>=<signal>@<n>:<token file>`: when the process passes the point for the n-th
time, it creates the token file and sends itself the signal. It does nothing if the file exists, so
that a retried task survives. Example: `before_end_txn=SIGKILL@2:/tmp/once`.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from enum import StrEnum
from pathlib import Path


class Failpoint(StrEnum):
    """The points, in the order in which a task passes them."""

    AFTER_INIT_PRODUCER_ID = "after_init_producer_id"
    MID_CHUNK = "mid_chunk"
    BEFORE_CHECKPOINT = "before_checkpoint"
    BEFORE_END_TXN = "before_end_txn"
    AFTER_END_TXN = "after_end_txn"
    BEFORE_OUTCOME = "before_outcome"
    BEFORE_RECOUNT = "before_recount"  # on the driver


_FAULT = re.fullmatch(
    r"(?P<point>\w+)=(?P<signal>\w+)@(?P<pass>\d+):(?P<token>.+)", os.environ.get("RELAY_FAULT", "")
)
_passes: Counter[str] = Counter()


def failpoint(point: Failpoint) -> None:
    """Pass the point, which may end or stop this process."""
    if _FAULT is None or _FAULT["point"] != point:
        return
    _passes[point] += 1
    if _passes[point] < int(_FAULT["pass"]):
        return
    try:
        Path(_FAULT["token"]).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.Signals[_FAULT["signal"]])

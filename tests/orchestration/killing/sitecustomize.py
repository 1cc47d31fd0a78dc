"""Kills a Dagster daemon with SIGKILL during a tick, once, at a named point.

RELAY_KILL_DAEMON is `<point>:<token file>`. Python imports this file because of its name if its
folder is on PYTHONPATH.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _die() -> None:
    token = Path(os.environ["RELAY_KILL_DAEMON"].partition(":")[2])
    if not token.exists():
        token.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _dying(method: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if before:
            _die()
        result = method(*args, **kwargs)
        _die()
        return result

    return call


if "dagster._daemon" in sys.orig_argv and os.environ.get("RELAY_KILL_DAEMON"):
    from dagster import DagsterInstance

    name, before = {
        "after_events": ("report_runless_asset_event", False),
        "before_run": ("submit_run", True),
    }[os.environ["RELAY_KILL_DAEMON"].partition(":")[0]]
    setattr(DagsterInstance, name, _dying(getattr(DagsterInstance, name), before=before))

"""Changes of Dagster's processes for tests: shorter waits, and an end at a named point.

Python imports this file because of its name if its folder is on PYTHONPATH.

The daemon looks at backfills every few seconds, and the code server gives up silent runs sooner.
The daemon kills itself with SIGKILL during a tick, once, at the point that RELAY_KILL_DAEMON names:
`<point>:<token file>`.
"""

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


if "dagster._daemon" in sys.orig_argv:
    from dagster import DagsterInstance
    from dagster._daemon import controller

    # no setting changes it
    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 3
    if point := os.environ.get("RELAY_KILL_DAEMON", "").partition(":")[0]:
        name, before = {
            "after_events": ("report_runless_asset_event", False),
            "before_run": ("submit_run", True),
        }[point]
        setattr(DagsterInstance, name, _dying(getattr(DagsterInstance, name), before=before))

is_run = any("multiprocessing.spawn" in word for word in sys.orig_argv)
if is_run or sys.orig_argv[1:5] == ["-m", "dagster", "api", "grpc"]:
    from relay_pipelines.orchestration import heartbeat

    heartbeat._BEAT_SECONDS, heartbeat.DEAD_SECONDS = 5.0, 25.0

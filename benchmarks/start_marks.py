"""Runs a command of relay, and notes when it passes from one part to the next.

`start_marks.py <file for figures> <arguments of relay ...>`. The figures are JSON: of each part its
name, when it ended, in seconds since the process began, and the CPU seconds that the process and
those below it had used by then.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import psutil

_marks: list[tuple[str, float, float]] = []
_process = psutil.Process()


def main(figures: Path, arguments: list[str]) -> int:
    """Run the command and write the figures."""
    from relay_pipelines import api
    from relay_pipelines.cli import main as relay
    from relay_pipelines.cli import run_command
    from relay_pipelines.run import run
    from relay_pipelines.spark import jvm, session

    assert run_command.run.__module__  # a run imports it first
    _mark("imports")
    _after(api.Mirror, "prepare", "survey")
    _after(jvm, "start", "JVM")
    _after(session, "connect", "Spark session")
    _after(run._Run, "_watch", "job")  # noqa: SLF001
    _after(api.Mirror, "copy", "ledger")
    _after(session, "end", "end of Spark")
    code = relay(arguments)
    figures.write_text(json.dumps(_marks))
    return int(code)


def _after(owner: Any, name: str, part: str) -> None:
    """Note the end of a part when a function returns."""
    function: Callable[..., Any] = getattr(owner, name)

    @wraps(function)
    def noting(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        finally:
            _mark(part)

    setattr(owner, name, noting)


def _mark(part: str) -> None:
    cpu_seconds = 0.0
    for process in [_process, *_process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # its parent has its CPU time then
            cpu_seconds += sum(process.cpu_times()[:4])
    _marks.append((part, time.time() - _process.create_time(), cpu_seconds))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

"""Measures a command and its child processes: `tree.py <file for figures> <command ...>`.

Orphans become children of this process (Linux), so Spark's JVM and its Python workers count
although the command does not wait for them. The figures are JSON: wall seconds of the command, CPU
seconds of all, the memory of the largest, its exit code.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def main(figures: Path, command: list[str]) -> None:
    """Run the command and write the figures after its last child process has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    code = subprocess.Popen(command, stdin=subprocess.DEVNULL).wait()
    seconds = time.monotonic() - began
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures.write_text(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": used.ru_utime + used.ru_stime,
                "peak_bytes": used.ru_maxrss * 1024,
                "exit_code": code,
            }
        )
    )


def spent(command: Sequence[str], figures: Path, **options: Any) -> tuple[float, float]:
    """Run a command under this module; return its seconds, and the CPU seconds of its whole tree.

    Args:
        figures, options: as of `measured`.
    """
    found = measured(command, figures, **options)
    return found["seconds"], found["cpu_seconds"]


def measured(command: Sequence[str], figures: Path, **options: Any) -> dict[str, float]:
    """Run a command under this module; return all figures.

    The memory is that of the largest process. A child of this process itself would begin with its
    memory.

    Args:
        figures: a file to write.
        options: of `subprocess.run`.

    Raises:
        RuntimeError: the command failed.
    """
    figures.unlink(missing_ok=True)
    called = [sys.executable, __file__, str(figures), *command]
    subprocess.run(called, stdin=subprocess.DEVNULL, check=True, **options)
    found: dict[str, float] = json.loads(figures.read_text())
    if found["exit_code"]:
        raise RuntimeError(f"{command} ended with exit code {found['exit_code']}")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

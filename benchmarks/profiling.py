"""The CPU profile of one task."""

from __future__ import annotations

import cProfile
import pstats
import time
from pathlib import Path

from benchmarks.contenders.relay_task import works
from benchmarks.values import Case

_LINES = 14


def profile(case: Case) -> str:
    """Copy one topic-partition under cProfile and return its most expensive functions."""
    work = works(case)[0]
    # CPU time instead of wall time, to leave out the time that the task waits for brokers
    profiler = cProfile.Profile(time.thread_time)
    profiler.runcall(work.run)
    stats = pstats.Stats(profiler)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:_LINES]  # type: ignore[attr-defined]  # pstats has it untyped
    lines = ["   calls    own ms  with callees  function"]
    for (file, line, name), (_, calls, own, cumulative, _) in rows:
        lines.append(
            f"{calls:>8}  {own * 1000:>8.1f}  {cumulative * 1000:>12.1f}  "
            f"{_place(file, line)}{name}"
        )
    lines.append(f"{'':>8}  {stats.total_tt * 1000:>8.1f}  {'':>12}  all")  # type: ignore[attr-defined]  # as above
    return "\n".join(lines)


def _place(file: str, line: int) -> str:
    return "" if file in ("~", "") else f"{'/'.join(Path(file).parts[-2:])}:{line} "

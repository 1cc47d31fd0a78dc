"""Runs several processes together, for contenders in Python."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Protocol

from benchmarks.values import Cost

_START_SECONDS = 60.0


class Work(Protocol):
    """The picklable work of one process; unpickling imports its modules before the copy phase."""

    def run(self) -> None:
        """Copy; a failure is raised."""


@dataclass(frozen=True, slots=True)
class _Report:
    started: float
    ended: float
    cpu_seconds: float
    whole_cpu_seconds: float
    peak_memory_bytes: int
    error: str


def run_together(works: Sequence[Work], limit_seconds: float) -> Cost:
    """Run each work in its own process; the copy phase begins when all processes are ready."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(works))
    began = time.monotonic()
    running: list[tuple[SpawnProcess, Connection]] = []
    try:
        for work in works:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_main, args=(work, barrier, theirs), daemon=True)
            process.start()
            theirs.close()
            running.append((process, ours))
        reports = [
            _received(answers, began + _START_SECONDS + limit_seconds) for _, answers in running
        ]
        for process, _ in running:
            process.join(limit_seconds)
    finally:
        for process, answers in running:
            process.kill()
            process.join()
            answers.close()
    return _cost(
        [report for report in reports if report is not None], len(works), time.monotonic() - began
    )


def peak_memory_bytes() -> int:
    """The largest resident size of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # not getrusage: its figure survives an exec, so a child would report that of its parent
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def _main(work: Work, barrier: Barrier, answers: Connection) -> None:
    barrier.wait(_START_SECONDS)
    error = ""
    started, cpu = time.monotonic(), time.process_time()
    try:
        work.run()
    except Exception as caught:  # noqa: BLE001 - reported as data
        error = f"{type(caught).__name__}: {caught}"
    ended, whole = time.monotonic(), time.process_time()
    answers.send(_Report(started, ended, whole - cpu, whole, peak_memory_bytes(), error))
    answers.close()
    sys.stdout.flush()
    # threads of librdkafka may delay the end of the interpreter
    os._exit(0)


def _received(answers: Connection, deadline: float) -> _Report | None:
    if not answers.poll(max(0.0, deadline - time.monotonic())):
        return None
    try:
        report = answers.recv()
    except EOFError:
        return None
    return report if isinstance(report, _Report) else None


def _cost(reports: Sequence[_Report], wanted: int, whole_seconds: float) -> Cost:
    errors = [report.error for report in reports if report.error]
    if len(reports) < wanted:
        errors.append("a process ended early or did not finish in time")
    if errors:
        return Cost(error=errors[0])
    return Cost(
        copy_seconds=max(report.ended for report in reports)
        - min(report.started for report in reports),
        copy_cpu_seconds=sum(report.cpu_seconds for report in reports),
        task_cpu_seconds=sum(report.cpu_seconds for report in reports),
        whole_seconds=whole_seconds,
        whole_cpu_seconds=sum(report.whole_cpu_seconds for report in reports),
        peak_memory_bytes=max(report.peak_memory_bytes for report in reports),
    )

"""Measures a command that copies and never ends by itself, by the arrivals at the destination."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.clusters import scan
from benchmarks.values import Case, Cost
from relay_pipelines.errors import DestinationError
from relay_pipelines.local_kafka import guardian
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient

_POLL_SECONDS = 0.01
# with thousands of topic-partitions a question costs so much that it would slow the copy down
_PAUSES_PER_POLL = 10
_SETTLED_SECONDS = 2.0


@dataclass(slots=True)
class _Seen:
    """Arrivals at the destination, in wall time and CPU time of the command."""

    began: float
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None
    ends: list[int] = field(default_factory=list)


def measure(
    command: Sequence[str], case: Case, log: Path, variables: Mapping[str, str] | None = None
) -> Cost:
    """Run a command until all records arrived; the copy phase is from first to last arrival."""
    seen = _Seen(began=time.monotonic())
    with _running(command, log, variables or {}) as process:
        return _cost(seen, process, _watch(seen, case, process))


@contextmanager
def _running(
    command: Sequence[str], log: Path, variables: Mapping[str, str]
) -> Iterator[psutil.Process]:
    """Run it under the guardian of the brokers, so that it always ends with this process."""
    with log.open("wb") as output:
        watched = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        assert watched.stdin
        assert watched.stdout
        try:
            yield psutil.Process(int(watched.stdout.readline()))
        finally:
            watched.stdin.close()
            watched.wait()
            watched.stdout.close()


def _watch(seen: _Seen, case: Case, process: psutil.Process) -> str:
    """Poll the end offsets until all records have arrived; return an error if they have not."""
    targets = [destination for _, destination in case.pairs]
    with ClusterClient(case.destination, DestinationError, purpose="watching") as client:
        while True:
            asked = time.monotonic()
            isolation = READ_UNCOMMITTED if seen.first is None else READ_COMMITTED
            found = client.list_offsets(targets, LATEST, isolation)
            error = _take(seen, [found[target] for target in targets], process, case)
            if error or _has_all(seen, case):
                return error
            time.sleep(max(_POLL_SECONDS, _PAUSES_PER_POLL * (time.monotonic() - asked)))


def _take(seen: _Seen, ends: list[int], process: psutil.Process, case: Case) -> str:
    """Record changes; return an error if waiting longer makes no sense."""
    try:
        now = (time.monotonic(), sum(process.cpu_times()[:2]))
    except psutil.NoSuchProcess:
        return "it ended by itself"
    if seen.first is None:
        seen.first = now if any(ends) else None
    elif ends != seen.ends:
        seen.last, seen.ends = now, ends
    return (
        f"not finished within {case.limit_seconds:g} s"
        if now[0] - seen.began > case.limit_seconds
        else ""
    )


def _has_all(seen: _Seen, case: Case) -> bool:
    """Whether all records arrived; counts them, because offsets include transaction markers."""
    if seen.last is None or sum(seen.ends) < case.records:
        return False
    if time.monotonic() - seen.last[0] < _SETTLED_SECONDS:
        return False
    found = scan(case.destination, [destination for _, destination in case.pairs])
    return sum(extent.records for extent in found) >= case.records


def _cost(seen: _Seen, process: psutil.Process, error: str) -> Cost:
    if error or seen.first is None or seen.last is None:
        return Cost(error=error or "nothing arrived")
    return Cost(
        copy_seconds=seen.last[0] - seen.first[0],
        copy_cpu_seconds=seen.last[1] - seen.first[1],
        whole_seconds=seen.last[0] - seen.began,
        whole_cpu_seconds=seen.last[1],
        peak_memory_bytes=process.memory_info().rss,
    )

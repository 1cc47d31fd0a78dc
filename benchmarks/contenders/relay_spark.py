"""The Spark job of a run in a warm session: the copy phase alone."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import psutil

from benchmarks.contenders.contract import Contender
from benchmarks.contenders.relay_task import CopyWork, groups_of, works
from benchmarks.inputs import all_but
from benchmarks.values import TASKS, Case, Cost
from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyJob, Outcome, RecordPolicy, Status
from relay_pipelines.spark.job import submit
from relay_pipelines.spark.session import connect


class RelaySpark(Contender):
    """One Spark session for all repetitions."""

    name = "relay, warm Spark session"
    inputs = all_but()
    _policy: RecordPolicy | None = None

    def __init__(self) -> None:
        self._session: Any = None

    def copy(self, case: Case) -> Cost:
        """Submit the job and wait; the first time, start and warm the session."""
        tasks = works(case, self._policy)
        session = self._warm(tasks[0].job)
        before, began = cpu_by_process(session), time.monotonic()
        try:
            outcomes = self.submit(session, tasks[0].job, tasks, case.attempt)
        except RelayError as error:
            return Cost(error=str(error))
        seconds = time.monotonic() - began
        failed = [outcome.error for outcome in outcomes if outcome.status is not Status.DONE]
        if failed:
            return Cost(error=failed[0])
        return Cost(
            copy_seconds=seconds,
            copy_cpu_seconds=cpu_since(session, before),
            task_cpu_seconds=sum(outcome.cpu_seconds for outcome in outcomes),
            peak_memory_bytes=max(outcome.peak_memory_bytes for outcome in outcomes),
        )

    def submit(self, session: Any, job: CopyJob, tasks: list[CopyWork], tag: str) -> list[Outcome]:
        """Submit the job."""
        return submit(session, job, groups_of(tasks), tag)

    def close(self) -> None:
        """Stop the session."""
        if self._session is not None:
            self._session.stop()

    def _warm(self, job: CopyJob) -> Any:
        if self._session is None:
            self._session = connect("local[*]")
            # a job without ranges starts the Python workers and loads the classes of the JVM
            submit(self._session, job, [[]] * TASKS, "warming")
        return self._session


def cpu_since(session: Any, before: dict[int, float]) -> float:
    """CPU seconds since `before`, also of processes that started since."""
    return sum(used - before.get(process, 0.0) for process, used in cpu_by_process(session).items())


def cpu_by_process(session: Any) -> dict[int, float]:
    """CPU seconds so far of this process, Spark's JVM and its Python workers, without brokers."""
    jvm = psutil.Process(session.sparkContext._gateway.proc.pid)  # noqa: SLF001 - PySpark has no public access to its JVM
    used = {}
    for process in (psutil.Process(), jvm, *jvm.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used[process.pid] = sum(process.cpu_times()[:2])
    return used

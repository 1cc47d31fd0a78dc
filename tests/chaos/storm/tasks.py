"""Runs tasks in their own processes without Spark, and kills each during its copy."""

import logging
import multiprocessing
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from relay_pipelines.copy.row_reader import MARKER, RECORD_COLUMNS, read_rows
from relay_pipelines.copy.task import copy_kept, copy_ranges, copy_rows
from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyJob, CopyRange, Outcome, Status
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from tests.chaos.planned_copy import planned_copy
from tests.chaos.storm.mirroring import NAME, Watch
from tests.chaos.storm.record_policies import SELECTED, WHERE, in_place_of_spark

_PLAN_SECONDS = 60.0
_LIFE_SECONDS = (0.0, 0.5)
"""From the plan to the kill: some tasks have committed nothing by then, some several topics."""
# a fork of a process with all imports starts in some milliseconds
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


class Tasks:
    """Starts tasks and kills them."""

    def __init__(self, mirror: Mirror, seed: int, watch: Watch, say: Callable[[str], None]) -> None:
        self._mirror = mirror
        self._chance = random.Random(seed)
        self._watch = watch
        self._say = say
        self._said = ""
        self.killed = 0
        self.ended = 0

    def run_once(self) -> None:
        """Start a task and kill it during its copy, unless it ends before, as expected."""
        told, telling = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(target=_copy, args=(self._mirror, telling), daemon=True)
        process.start()
        telling.close()
        try:
            upstream = _heard(told, _PLAN_SECONDS)
            if upstream:
                self._watch.upstream = upstream
                self._watch.copying.set()
                process.join(self._chance.uniform(*_LIFE_SECONDS))
            else:
                process.join(_PLAN_SECONDS)
            process.kill()
            process.join()
            self._count(process.exitcode)
            while line := _heard(told, 0):
                self._failed(line)
        finally:
            self._watch.copying.clear()
            told.close()
            process.close()

    def _count(self, exit_code: int | None) -> None:
        assert exit_code in {0, -9}, f"a task ended with {exit_code}"
        self.killed += exit_code == -9
        self.ended += exit_code == 0

    def _failed(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._say(f"task {self.killed + self.ended} failed: {line}")


def _heard(told: Connection, within_seconds: float) -> str:
    """The next line from the task; empty if there is none."""
    try:
        return str(told.recv()) if told.poll(within_seconds) else ""
    except EOFError:
        return ""


def _copy(mirror: Mirror, telling: Connection) -> None:
    """Plan and copy everything; send the upstream that is read, then each failure."""
    # failures are sent instead of logged
    logging.getLogger("relay_pipelines").addHandler(logging.NullHandler())
    clock = SystemClock()
    try:
        job, ranges = planned_copy(NAME, mirror, clock)
    except RelayError as error:
        telling.send("")
        telling.send(str(error))
        return
    if not ranges:
        return
    telling.send(job.upstream.name)
    for outcome in _outcomes(job, ranges, clock):
        if outcome.status is not Status.DONE:
            telling.send(outcome.error)


def _outcomes(job: CopyJob, claimed: list[CopyRange], clock: SystemClock) -> Iterator[Outcome]:
    """Copy like the Spark jobs of a run, one after the other."""
    ranges: Mapping[str, list[CopyRange]] = defaultdict(list)
    for copy_range in claimed:
        topic = copy_range.source.topic_partition.topic
        ranges[topic if copy_range.record_policy.in_rows else ""].append(copy_range)
    yield from copy_ranges(job, ranges[""], clock)
    for topic, copy in ((WHERE, copy_kept), (SELECTED, copy_rows)):
        yield from copy(job, ranges[topic], _rows(job, topic, ranges[topic], clock), clock)


def _rows(job: CopyJob, topic: str, ranges: list[CopyRange], clock: SystemClock) -> Iterator[Any]:
    return in_place_of_spark(
        topic, read_rows(job, ranges, range(len(ranges)), RECORD_COLUMNS, clock), MARKER
    )

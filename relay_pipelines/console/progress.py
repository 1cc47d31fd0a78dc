"""A run under way: a bar per topic in a terminal, one line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from relay_pipelines.console.formatting import count, plural, seconds, size
from relay_pipelines.model import LedgerEntry
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import Observer
from relay_pipelines.run.run_plan import RunPlan

_LINE_SECONDS = 2.0
_MOST_BARS = 8
_NARROW = 70


@contextmanager
def progress(mirror: str, console: Console) -> Iterator[Observer]:
    """Watch one run of a mirror."""
    if not console.is_terminal:
        yield Lines(mirror, console)
        return
    bars = Bars(console)
    with bars.live:
        yield bars


class Lines:
    """One line every few seconds, for logs and pipes."""

    def __init__(
        self, mirror: str, console: Console, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._mirror = mirror
        self._console = console
        self._monotonic = monotonic
        self._total = self._done = self._records = self._size_bytes = 0
        self._began = self._said = monotonic()
        self._said_done = 0

    def begin(self, plan: RunPlan) -> None:
        """Say what will be copied."""
        if plan.windows:
            self._total = sum(plan.offsets(window) for window in plan.windows)
            topics = plural(len(plan.windows), "topic")
            self._say(
                f"copying {plural(self._total, 'record')} of {topics} from {plan.snapshot.node.name}"
            )

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Say how far it is, if the last time is long enough ago."""
        now = self._monotonic()
        if entries and not self._done:
            self._began = now  # Spark's start is no part of the rate
        self._done += sum(len(entry.source) for entry in entries)
        self._records += sum(entry.records for entry in entries)
        self._size_bytes += sum(entry.size_bytes for entry in entries)
        if now - self._said >= _LINE_SECONDS and self._done > self._said_done:
            self._said, self._said_done = now, self._done
            self._say(self._line(now - self._began))

    def end(self, result: RunResult) -> None:
        """Leave the last word to the summary."""

    def _line(self, elapsed: float) -> str:
        share = 100 * self._done // max(1, self._total)
        line = f"{count(self._done)} of {plural(self._total, 'record')} ({min(share, 100)} %), {size(self._size_bytes)}"
        if elapsed <= 0:
            return line
        rate = self._done / elapsed
        return f"{line}, {count(rate)} records/s, {seconds(max(0, self._total - self._done) / rate)} left"

    def _say(self, line: str) -> None:
        self._console.print(f"{self._mirror}: {line}", soft_wrap=True)


class Bars:
    """A bar per topic with records, rate and time left; with many topics, of those under way, below one for all."""

    def __init__(self, console: Console) -> None:
        narrow = console.width < _NARROW
        self._fields = _Fields(narrow=narrow)
        columns: list[ProgressColumn] = [
            TextColumn(
                "{task.description}",
                table_column=Column(ratio=2, no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            self._fields,
        ]
        self.live = Progress(*columns, console=console, expand=True, speed_estimate_period=10.0)
        self._all: TaskID | None = None
        self._topics: dict[str, TaskID] = {}
        self._crowded = False

    def begin(self, plan: RunPlan) -> None:
        """Draw the empty bars."""
        self._crowded = len(plan.windows) > _MOST_BARS
        if self._crowded:
            name, total = (
                plural(len(plan.windows), "topic"),
                sum(plan.offsets(window) for window in plan.windows),
            )
            self._all = self.live.add_task(name, total=total)
        for window in plan.windows:
            self._topics[window.topic] = self.live.add_task(
                window.topic, total=plan.offsets(window), visible=not self._crowded
            )

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Move the bars."""
        for entry in entries:
            self._advance(self._topics[entry.source.topic_partition.topic], len(entry.source))
            if self._all is not None:
                self.live.advance(self._all, len(entry.source))

    def end(self, result: RunResult) -> None:
        """Leave the bars as they are: they show where the run stopped."""

    def _advance(self, task_id: TaskID, offsets: int) -> None:
        self.live.advance(task_id, offsets)
        if self._crowded:
            task = self.live.tasks[task_id]
            under_way = sum(one.visible for one in self.live.tasks) <= _MOST_BARS
            self.live.update(task_id, visible=not task.finished and (task.visible or under_way))


class _Fields(ProgressColumn):
    """Records done and to do, rate, time left."""

    def __init__(self, *, narrow: bool) -> None:
        super().__init__(table_column=Column(no_wrap=True, justify="right"))
        self._narrow = narrow

    def render(self, task: Task) -> Text:
        """Say them."""
        done, total = task.completed, task.total or 0
        speed = task.finished_speed or task.speed
        rate = f"{count(speed)}/s" if speed else "" if done else "waiting"
        left = (
            "done"
            if task.finished
            else ""
            if task.time_remaining is None
            else f"{seconds(task.time_remaining)} left"
        )
        if self._narrow:
            return Text(f"{100 * done // max(1, total):.0f} % {rate}")
        return Text(f"{count(done)}/{count(total)}  {rate:>12}  {left:>14}")

"""The progress of a run: a bar per topic in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from relay_pipelines.model import LedgerEntry
from relay_pipelines.output.formatting import count, plural, seconds, size
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import Observer
from relay_pipelines.run.run_plan import RunPlan

_LINE_SECONDS = 2.0
_READ_SECONDS = 10.0
_MAX_BARS = 8
_NARROW = 70


@contextmanager
def progress(mirror: str, console: Console) -> Iterator[Observer]:
    """Show the progress of one run of a mirror."""
    if not console.is_terminal:
        yield Lines(lambda line: console.print(f"{mirror}: {line}", soft_wrap=True))
        return
    bars = Bars(console)
    with bars.live:
        yield bars


@contextmanager
def status_line(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the last line of a terminal, and does nothing elsewhere.

    Lines that are printed meanwhile appear above it.
    """
    if not console.is_terminal:
        yield lambda _: None
        return
    live = Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes to a file must stay there
    )
    with live:
        yield lambda text: live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


@contextmanager
def bytes_progress(
    title: str,
    total_bytes: int,
    what: str,
    console: Console,
    every_seconds: float = _READ_SECONDS,
) -> Iterator[Callable[[int], None]]:
    """Show how much is read: a bar in a terminal; elsewhere a line at the start, and then others.

    It yields a function that takes how many bytes more were read.

    Args:
        what: is read, in words.
        every_seconds: how long after a line comes the next one, also if nothing was read meanwhile.
    """
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, expand=True) as bar:
            task = bar.add_task(title, total=total_bytes)
            yield lambda more: bar.advance(task, more)
        return
    done, started, ended = 0, time.monotonic(), threading.Event()

    def advance(more: int) -> None:
        nonlocal done
        done += more

    def write_lines() -> None:
        while not ended.wait(every_seconds):
            share = f"{size(done)} of {size(total_bytes)} ({100 * done // max(1, total_bytes)} %)"
            passed = time.monotonic() - started
            time_left = f", {seconds(passed / done * (total_bytes - done))} left" if done else ""
            console.print(f"{title}: {share} in {seconds(passed)}{time_left}", soft_wrap=True)

    console.print(f"{title}: {size(total_bytes)} of {what}", soft_wrap=True)
    # on a thread: the first result may take minutes, and Spark may have to start
    lines = threading.Thread(target=write_lines, name="progress", daemon=True)
    lines.start()
    try:
        yield advance
    finally:
        ended.set()
        lines.join()


class Lines:
    """Writes a line every few seconds, for logs and pipes.

    Args:
        write: prints or logs a line.
        announce: whether to begin with a line that says what will be copied.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        every_seconds: float = _LINE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        announce: bool = True,
    ) -> None:
        self._write = write
        self._announce = announce
        self._every_seconds = every_seconds
        self._monotonic = monotonic
        self._total = self._done = self._size_bytes = 0
        self._started = self._written_at = monotonic()
        self._written_done = 0

    def begin(self, plan: RunPlan) -> None:
        """Write what will be copied."""
        if plan.planned:
            self._total, topics = plan.offsets, plural(len(plan.by_topic), "topic")
            records, upstream = plural(self._total, "record"), plan.snapshot.upstream.name
            if self._announce:
                self._write(f"copying {records} of {topics} from {upstream}")

    def submitted(self, application: str) -> None:
        """Write where Spark shows the job."""
        if self._announce:
            self._write(f"Spark application {application}")

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Write the progress, unless the last line is too recent."""
        now = self._monotonic()
        if entries and not self._done:
            self._started = now  # the rate does not include the start of Spark
        self._done += sum(len(entry.source) for entry in entries)
        self._size_bytes += sum(entry.size_bytes for entry in entries)
        if now - self._written_at >= self._every_seconds and self._done > self._written_done:
            self._written_at, self._written_done = now, self._done
            self._write(self._line(now - self._started))

    def end(self, result: RunResult) -> None:
        """Do nothing: the summary follows."""

    def _line(self, elapsed: float) -> str:
        share = 100 * self._done // max(1, self._total)
        records = f"{count(self._done)} of {plural(self._total, 'record')}"
        line = f"{records} ({min(share, 100)} %), {size(self._size_bytes)}"
        if elapsed <= 0:
            return line
        rate = self._done / elapsed
        left = seconds(max(0, self._total - self._done) / rate)
        return f"{line}, {count(rate)} records/s, {left} left"


class Bars:
    """Shows a bar per topic; of many topics, one bar for all and one for each being copied."""

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
        topics = plan.by_topic
        self._crowded = len(topics) > _MAX_BARS
        if self._crowded:
            self._all = self.live.add_task(plural(len(topics), "topic"), total=plan.offsets)
        for topic, ranges in topics.items():
            self._topics[topic] = self.live.add_task(
                topic, total=sum(map(len, ranges)), visible=not self._crowded
            )

    def submitted(self, application: str) -> None:
        """Print, above the bars, where Spark shows the job."""
        self.live.console.print(f"Spark application {application}", soft_wrap=True)

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Move the bars."""
        for entry in entries:
            self._advance(self._topics[entry.tp.topic], len(entry.source))
            if self._all is not None:
                self.live.advance(self._all, len(entry.source))

    def end(self, result: RunResult) -> None:
        """Do nothing: the bars show where the run stopped."""

    def _advance(self, task_id: TaskID, offsets: int) -> None:
        self.live.advance(task_id, offsets)
        if self._crowded:
            task = self.live.tasks[task_id]
            has_room = sum(bar.visible for bar in self.live.tasks) <= _MAX_BARS
            self.live.update(task_id, visible=not task.finished and (task.visible or has_room))


class _Fields(ProgressColumn):
    """Shows records copied and in total, the rate, and the time left."""

    def __init__(self, *, narrow: bool) -> None:
        super().__init__(table_column=Column(no_wrap=True, justify="right"))
        self._narrow = narrow

    def render(self, task: Task) -> Text:
        """Return them as text."""
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

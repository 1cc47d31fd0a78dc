"""The demo's terminal output: numbered steps with their times, and tables of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from relay_pipelines.demo.proof import Comparison, Share
from relay_pipelines.demo.shop import temporary_folder
from relay_pipelines.demo.spark_cluster import Executor
from relay_pipelines.errors import INTERRUPTED, page
from relay_pipelines.output.formatting import count, seconds
from relay_pipelines.protocol.clock import Clock

_INDENT = "   "
_WIDEST = 120


class Reporter:
    """Prints what happens, step by step."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console = console
        self._clock = clock
        self._started = clock.monotonic()
        self._step = 0

    @contextmanager
    def step(self, title: str, doing: str = "") -> Iterator[Callable[[str], None]]:
        """Print a title, and at the end how long the step took.

        Args:
            doing: what a terminal shows meanwhile; the function that is returned changes it.
        """
        self._step += 1
        self.console.print(f"\n{self._step}  {title}", style="bold")
        started = self._clock.monotonic()
        with self.console.status(doing or title) as spinner:
            yield spinner.update
        self.say(seconds(self._clock.monotonic() - started), style="dim")

    @property
    def quoted_width(self) -> int:
        """How many columns the output of a command may have."""
        return min(self.console.width - len(_INDENT) - 2, _WIDEST)

    def say(self, line: str, style: str = "") -> None:
        """Print one line about the step."""
        self.console.print(_INDENT + line, style=style, soft_wrap=True)

    def quote(self, lines: Sequence[str]) -> None:
        """Print lines of a file or of a command."""
        for line in lines:
            self.say(f"│ {line}", style="dim")

    def show(self, table: Table) -> None:
        """Print a table."""
        self.console.print(Padding(table, (0, 0, 0, len(_INDENT))))

    def conclude(self, *, equal: bool, wrong: str = "The two sides DIFFER, see the table.") -> None:
        """Print the result and what to read next.

        Args:
            wrong: the result if they are not equal.
        """
        result = "Nothing lost, nothing duplicated, nothing changed."
        took = seconds(self._clock.monotonic() - self._started)
        self.console.print(
            f"\n{result if equal else wrong} {took} in all.",
            style="bold green" if equal else "bold red",
        )
        self.console.print(
            "Next: describe your clusters in relay.yaml (relay.example.yaml has every key);\n"
            "then `relay check`, `relay plan`, `relay run`, `relay status`.\n"
            f"Why a kill at any moment does no harm: {page('Exactly once')}.",
            style="dim",
        )


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """One line per topic-partition, and their sum."""
    fields = {"source": "source_records", "destination": "destination_records"}
    fields |= {name: name for name in ("lost", "duplicates", "changed")}
    if any(comparison.foreign for comparison in comparisons):
        fields["foreign"] = "foreign"
    table = _table(["topic-partition"], [*fields, "digests"])

    def add(name: str, rows: Sequence[Comparison], style: str | None) -> None:
        sums = [count(sum(getattr(row, field) for row in rows)) for field in fields.values()]
        digests = "equal" if all(row.same_order for row in rows) else "DIFFER"
        table.add_row(name, *sums, digests, style=style)

    for comparison in comparisons:
        style = None if comparison.equal else "red"
        add(str(comparison.topic_partition), [comparison], style)
    table.add_section()
    add("total", comparisons, "bold")
    return table


def shares_table(shares: Sequence[Share]) -> Table:
    """One line per share, and the sum of every upstream."""
    table = _table(["topic-partition", "upstream"], ["from offset", "up to", "records", "commits"])
    previous = None
    for share in shares:
        name = share.source.topic_partition
        numbers = share.source.start, share.source.end, share.records, share.chunks
        table.add_row("" if name == previous else str(name), share.upstream, *map(count, numbers))
        previous = name
    table.add_section()
    for upstream in sorted({share.upstream for share in shares}):
        records = count(sum(share.records for share in shares if share.upstream == upstream))
        chunks = count(sum(share.chunks for share in shares if share.upstream == upstream))
        table.add_row("total", upstream, "", "", records, chunks, style="bold")
    return table


def executors_table(executors: Sequence[Executor]) -> Table:
    """One line per executor."""
    table = _table(["worker", "executor"], ["tasks", "that ended"])
    for executor in executors:
        state = "alive" if executor.is_active else "dead"
        style = None if executor.is_active else "red"
        table.add_row(
            executor.worker.name, state, count(executor.started), count(executor.ended), style=style
        )
    return table


def _table(names: Sequence[str], numbers: Sequence[str]) -> Table:
    # little padding, so that it fits into 80 columns
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name)
    for number in numbers:
        table.add_column(number, justify="right")
    return table


def run_in_folder(run: Callable[[Path], int], reporter: Reporter, *, keep: bool) -> int:
    """Run a demo in a folder of its own; return its exit code, or 130 after Ctrl-C.

    Args:
        keep: leave the folder with relay.yaml, logs and data.
    """
    try:
        with temporary_folder(keep=keep) as folder:
            try:
                return run(folder)
            finally:
                if keep:
                    reporter.say(f"kept in {folder}: relay.yaml, all logs and the brokers' data")
    except KeyboardInterrupt:
        reporter.say("interrupted; nothing is left running", style="yellow")
        return INTERRUPTED

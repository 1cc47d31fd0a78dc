"""What people see of the demo: numbered steps with their times, the proof and the nodes' shares as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from relay_pipelines.console.formatting import count, seconds
from relay_pipelines.demo.origin import Share
from relay_pipelines.demo.proof import Verdict
from relay_pipelines.protocol.clock import Clock

_INDENT = "   "
_WIDEST = 120


class Reporter:
    """Says what happens, step by step."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console = console
        self._clock = clock
        self._started = clock.monotonic()
        self._step = 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say what is done now, and when it is done how long it took."""
        self._step += 1
        self.console.print(f"\n{self._step}  {what}", style="bold")
        started = self._clock.monotonic()
        yield
        self.say(seconds(self._clock.monotonic() - started), style="dim")

    @property
    def quoted_width(self) -> int:
        """Columns there are for what a command says."""
        return min(self.console.width - len(_INDENT) - 2, _WIDEST)

    def say(self, line: str, style: str = "") -> None:
        """Say one line about the step."""
        self.console.print(_INDENT + line, style=style, soft_wrap=True)

    def show(self, made: Table) -> None:
        """Show a table."""
        self.console.print(Padding(made, (0, 0, 0, len(_INDENT))))

    def quote(self, lines: Sequence[str]) -> None:
        """Show what a file or a command says."""
        for line in lines:
            self.say(f"│ {line}", style="dim")

    def busy(self, doing: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show in a terminal that something takes its time; the function given changes the words."""
        return _busy(self.console, doing)

    def conclude(self, *, equal: bool) -> None:
        """Say how it ended, and where to go from here."""
        took = seconds(self._clock.monotonic() - self._started)
        if equal:
            self.console.print(
                f"\nNothing lost, nothing doubled, nothing changed. {took} in all.",
                style="bold green",
            )
        else:
            self.console.print(
                f"\nThe two sides DIFFER, see the table. {took} in all.", style="bold red"
            )
        self.console.print(
            "Next: describe your clusters in relay.yaml (relay.example.yaml has every key);\n"
            "then `relay check`, `relay plan`, `relay run`, `relay status`.\n"
            "Why a kill does no harm, at whatever moment: docs/transactions.md.",
            style="dim",
        )


@contextmanager
def _busy(console: Console, doing: str) -> Iterator[Callable[[str], None]]:
    with console.status(doing) as spinner:
        yield spinner.update


def table(verdicts: Sequence[Verdict]) -> Table:
    """One line per topic-partition, and their sum."""
    # tight: it fits into 80 columns
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.add_column("topic-partition")
    fields = {"source": "source_records", "destination": "destination_records"}
    fields |= {name: name for name in ("lost", "duplicates", "changed")}
    if any(one.foreign for one in verdicts):
        fields["foreign"] = "foreign"
    for name in fields:
        made.add_column(name, justify="right")
    made.add_column("digests")
    for one in verdicts:
        made.add_row(
            str(one.topic_partition),
            *_sums([one], fields),
            _digests([one]),
            style=None if one.equal else "red",
        )
    made.add_section()
    made.add_row("total", *_sums(verdicts, fields), _digests(verdicts), style="bold")
    return made


def shares_table(shares: Sequence[Share]) -> Table:
    """One line per node that gave offsets of a topic-partition in a row, and the sum of every node."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.add_column("topic-partition")
    made.add_column("node")
    for name in ("from offset", "up to", "records", "commits"):
        made.add_column(name, justify="right")
    said = None
    for one in shares:
        at = one.source.topic_partition
        offsets = count(one.source.start), count(one.source.end)
        made.add_row(
            "" if at == said else str(at), one.node, *offsets, count(one.records), count(one.chunks)
        )
        said = at
    made.add_section()
    for node in sorted({one.node for one in shares}):
        records, chunks = (
            sum(getattr(one, name) for one in shares if one.node == node)
            for name in ("records", "chunks")
        )
        made.add_row("total", node, "", "", count(records), count(chunks), style="bold")
    return made


def _sums(verdicts: Sequence[Verdict], fields: Mapping[str, str]) -> list[str]:
    return [count(sum(getattr(one, field) for one in verdicts)) for field in fields.values()]


def _digests(verdicts: Sequence[Verdict]) -> str:
    return "equal" if all(one.digests_equal for one in verdicts) else "DIFFER"

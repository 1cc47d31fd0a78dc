"""The report of a chaos run."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from relay_pipelines.model import TopicPartition
from relay_pipelines.output.formatting import count, seconds
from tests.chaos.storm.mirroring import Tally
from tests.chaos.storm.verdict import Stall, Verdict


@dataclass(frozen=True)
class Report:
    """The figures of a chaos run.

    Args:
        seconds: from the first record to the end of the last run.
        struck: the number of faults by kind.
        ledger: the defect of the ledger; empty if it covers every offset once.
        held_back: topic-partitions with a transaction left open.
    """

    seed: int
    seconds: float
    struck: Counter[str]
    tally: Tally
    stall: Stall
    verdicts: Mapping[TopicPartition, Verdict]
    ledger: str
    held_back: list[str]

    @property
    def good(self) -> bool:
        """Whether the copy is complete, unaltered and in order, and the ledger agrees."""
        return (
            all(verdict.good for verdict in self.verdicts.values())
            and not self.ledger
            and not self.held_back
        )

    def total(self, of: Callable[[Verdict], int]) -> int:
        """The sum of a figure over all topic-partitions."""
        return sum(map(of, self.verdicts.values()))

    def figures(self) -> Table:
        """One line per figure."""
        tally, stall = self.tally, self.stall
        where = f" ({stall.topic_partition})" if stall.topic_partition else ""
        kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(tally.failures.items()))
        table = _table(f"chaos: {seconds(self.seconds)}, seed {self.seed}", "figure", "value")
        for name, value in {
            **{what: count(times) for what, times in self.struck.items()},
            "faults": count(self.struck.total()),
            "failovers": f"{count(tally.failovers)}: {tally.moved} during a run,"
            f" {tally.switched} between two",
            "ranges of two upstreams": count(tally.split),
            "runs": count(tally.runs),
            "failed runs": f"{count(tally.failed)}{f': {kinds}' if kinds else ''}",
            "refusals": "; ".join(dict.fromkeys(tally.refusals)) or "0",
            "longest stall": f"{stall.seconds:.1f} s{where}",
            "ledger": self.ledger or "covers every offset once",
            "open transactions": "; ".join(self.held_back) or "0",
            "records": count(self.total(lambda verdict: verdict.expected)),
            "lost": count(self.total(lambda verdict: verdict.lost)),
            "doubled": count(self.total(lambda verdict: verdict.doubled)),
            "foreign": count(self.total(lambda verdict: verdict.foreign)),
            "out of order": count(self.total(lambda verdict: verdict.disordered)),
        }.items():
            table.add_row(name, value)
        return table

    def comparison(self) -> Table:
        """One line per topic-partition."""
        table = _table("source against destination", "topic-partition")
        for name in ("records", "arrived", "lost", "doubled", "foreign", "out of order"):
            table.add_column(name, justify="right", no_wrap=True)
        for at, verdict in self.verdicts.items():
            figures = (
                verdict.expected,
                verdict.arrived,
                verdict.lost,
                verdict.doubled,
                verdict.foreign,
                verdict.disordered,
            )
            table.add_row(str(at), *map(count, figures))
        return table


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    return table

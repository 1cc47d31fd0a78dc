"""Which node delivered which records, as the ledger at the destination says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from relay_pipelines.demo.environment import MIRROR
from relay_pipelines.errors import RetriableError
from relay_pipelines.ledger.reader import LedgerFollower
from relay_pipelines.model import Cluster, CopyOptions, LedgerEntry, OffsetRange
from relay_pipelines.protocol.clock import Clock


class Ledger:
    """All entries that the mirror has committed."""

    def __init__(self, destination: Cluster, clock: Clock) -> None:
        self._follower = LedgerFollower(destination, MIRROR, None, CopyOptions(), clock)
        self._began = False
        self.entries: list[LedgerEntry] = []
        self.close = self._follower.close

    def poll(self) -> int:
        """Read the new entries and return the number of all entries."""
        if not self._began:
            try:
                self._follower.rewind()
            except RetriableError:
                return 0  # the first run has yet to create the topic
            self._began = True
        self.entries += self._follower.poll()
        return len(self.entries)

    @property
    def offsets(self) -> int:
        """How many source offsets the entries cover."""
        return sum(len(entry.source) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Share:
    """Consecutive offsets of one topic-partition that one node delivered.

    Args:
        records: at the destination; fewer than offsets where the source was compacted.
        chunks: how many commits it took.
    """

    source: OffsetRange
    node: str
    records: int
    chunks: int


def shares(entries: Iterable[LedgerEntry]) -> list[Share]:
    """Join consecutive entries of the same node, sorted by topic-partition and offset."""
    made: list[Share] = []
    for entry in sorted(entries, key=lambda entry: entry.source):
        start = entry.source.topic_partition, entry.source.start, entry.node
        last = made[-1] if made else None
        if last and start == (last.source.topic_partition, last.source.end, last.node):
            source = replace(last.source, end=entry.source.end)
            made[-1] = Share(source, last.node, last.records + entry.records, last.chunks + 1)
        else:
            made.append(Share(entry.source, entry.node, entry.records, 1))
    return made

"""How far the mirror is, as its ledger at the destination says; and what a killed process left behind there."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from relay_pipelines.demo.scene import MIRROR, TOPIC_PARTITIONS
from relay_pipelines.errors import DestinationError, RetriableError
from relay_pipelines.model import Cluster, CopyOptions, LedgerEntry
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.state.ledger_reader import LedgerFollower


class Ledger:
    """All entries of the mirror committed so far."""

    def __init__(self, destination: Cluster, clock: Clock) -> None:
        self._follower = LedgerFollower(destination, MIRROR, None, CopyOptions(), clock)
        self._began = False
        self.entries: list[LedgerEntry] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._follower.close()

    def poll(self) -> int:
        """Read what was committed since and return the number of all entries."""
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
        """How many source offsets are covered."""
        return sum(len(entry.source) for entry in self.entries)


def left_open(destination: Cluster) -> tuple[int, int]:
    """Topic-partitions with a transaction that is still open, and the records in them that nobody may read."""
    with ClusterClient(destination, DestinationError, "relay-demo") as client:
        stable = client.list_offsets(TOPIC_PARTITIONS, LATEST, READ_COMMITTED)
        written = client.list_offsets(TOPIC_PARTITIONS, LATEST, READ_UNCOMMITTED)
    behind = [written[one] - stable[one] for one in TOPIC_PARTITIONS if written[one] > stable[one]]
    return len(behind), sum(behind)


def rate(entries: Sequence[LedgerEntry]) -> tuple[float, float]:
    """Records and bytes per second while records were copied: from the first commit of each run to its last."""
    records = size_bytes = milliseconds = 0
    for run in {entry.run_id: None for entry in entries}:
        first, *others = sorted(
            (one for one in entries if one.run_id == run), key=lambda one: one.committed_at_ms
        )
        if others:
            milliseconds += others[-1].committed_at_ms - first.committed_at_ms
            records += sum(one.records for one in others)
            size_bytes += sum(one.size_bytes for one in others)
    seconds = max(milliseconds, 1) / 1000
    return records / seconds, size_bytes / seconds

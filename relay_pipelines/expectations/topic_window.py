"""What expectations look at: the chunks of one topic that the ledger has, on the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from relay_pipelines.ledger.chunk_copies import destination_offsets, source_offsets
from relay_pipelines.model import LedgerEntry, Side, Skipped

_NO_RECORDS = (Skipped.CONTROL, Skipped.ABORTED, Skipped.COMPACTION_GAP)


@dataclass(frozen=True, slots=True)
class TopicWindow:
    """Some chunks of one topic: all that was copied in a window, or in a time.

    Args:
        name: the key of a window, or what the chunks are in words.
        entries: the ledger's, of chunks only; none if nothing was copied.
        copied_at_ms: when the last of them were committed, or soon after that; without any, up to
            when there are none.
    """

    topic: str
    name: str
    entries: tuple[LedgerEntry, ...]
    copied_at_ms: int

    @property
    def upstream(self) -> str:
        """The upstream that was read last: offsets of the source are its own."""
        return self.entries[-1].upstream if self.entries else ""

    @property
    def records(self) -> int:
        """How many the ledger has at the destination."""
        return self.expected(Side.DESTINATION)

    def expected(self, side: Side) -> int:
        """How many records one side has, according to the ledger.

        The source also has those that were filtered, and those in quarantine.
        """
        if side is Side.DESTINATION:
            return sum(entry.records for entry in self.entries)
        return sum(
            len(entry.source) - sum(entry.skipped.get(str(reason), 0) for reason in _NO_RECORDS)
            for entry in self.entries
        )

    def offsets(self, side: Side) -> Mapping[int, Sequence[tuple[int, ...]]]:
        """Return what to read on one side, by partition, as the option `chunks` takes it."""
        if side is Side.SOURCE:
            return source_offsets(self.entries)
        # a suite says itself how many records are missing
        copies = destination_offsets(self.entries)
        return {partition: [chunk[:3] for chunk in some] for partition, some in copies.items()}


def from_ledger(
    name: str, entries: Iterable[LedgerEntry], wants: Callable[[LedgerEntry], bool]
) -> list[TopicWindow]:
    """Return the chunks of the wanted entries of the ledger, a value per topic, sorted."""
    by_topic: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        if wants(entry) and len(entry.source) and not entry.gap:
            by_topic[entry.tp.topic].append(entry)
    return [
        TopicWindow(
            topic,
            name,
            tuple(ledger_entries),
            max(entry.committed_at_ms for entry in ledger_entries),
        )
        for topic, ledger_entries in sorted(by_topic.items())
    ]

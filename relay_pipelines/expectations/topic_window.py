"""What expectations look at: the offsets of one topic on both sides, on the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class TopicWindow:
    """Some offsets of one topic, which are copied.

    Args:
        name: the key of a window, or what the offsets are in words.
        source, destination: at most one range per topic-partition of each side.
        records: how many the ledger has for them.
        copied_at_ms: when the last of them were committed, or soon after that.
    """

    topic: str
    name: str
    source: tuple[OffsetRange, ...]
    destination: tuple[OffsetRange, ...]
    records: int
    copied_at_ms: int


def from_ledger(
    name: str, entries: Iterable[LedgerEntry], wants: Callable[[LedgerEntry], bool]
) -> list[TopicWindow]:
    """Return what the wanted entries of the ledger cover, a value per topic, sorted."""
    by_topic: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        if wants(entry) and len(entry.source) and not entry.gap:
            by_topic[entry.source.topic_partition.topic].append(entry)
    return [
        TopicWindow(
            topic,
            name,
            merged([entry.source for entry in some]),
            merged([entry.destination for entry in some]),
            sum(entry.records for entry in some),
            max(entry.committed_at_ms for entry in some),
        )
        for topic, some in sorted(by_topic.items())
    ]


def merged(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return a range per topic-partition, from the lowest start to the highest end."""
    found: dict[TopicPartition, OffsetRange] = {}
    for each in ranges:
        if len(each):
            at = each.topic_partition
            known = found.get(at, each)
            found[at] = OffsetRange(at, min(known.start, each.start), max(known.end, each.end))
    return tuple(found[at] for at in sorted(found))

"""What a recount reads: the copies of source ranges, in parts each of which a task can count.

Pure functions. They run on the driver.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from relay_pipelines.audit.coverage import RangeIndex
from relay_pipelines.audit.retention import Configs
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition

_CHUNKS = 1_000  # of a part that is cut: a task gets their entries


@dataclass(frozen=True, slots=True)
class RecountPart:
    """Chunks of a source range in one destination topic-partition, or offsets without any.

    Args:
        range: the source offsets to whose recount it belongs.
        destination: the offsets to read, as far as the log has them; up to where the mirror's next
            chunk begins. They end at `sys.maxsize` after the last chunk.
        entries: of the chunks, sorted by destination offset.
        others: the destination offsets of other chunks in there, of the mirror or of its replays,
            sorted.
        accounted: the destination offsets of which all entries are known; None for all. Only within
            them, an unknown record is a foreign one.
        source_config: what the copies follow, as `followed` returns it.
        created_id: where nothing was copied, the id of the topic as the mirror has created it;
            empty if it has not. None where something was copied.
    """

    range: OffsetRange
    destination: OffsetRange
    entries: tuple[LedgerEntry, ...] = ()
    others: tuple[OffsetRange, ...] = ()
    accounted: OffsetRange | None = None
    source_config: Mapping[str, str] = field(default_factory=dict)
    created_id: str | None = None

    @property
    def size_bytes(self) -> int:
        """Of the chunks."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def last(self) -> int:
        """The destination offset after the last chunk."""
        return max((entry.destination.end for entry in self.entries), default=0)

    def end(self, stable: int) -> int:
        """Return the destination offset up to which to read.

        Args:
            stable: the last stable offset of the log.
        """
        end = min(stable, self.destination.end)
        if self.accounted is None:
            return end
        end = min(end, max(self.last, self.accounted.end))
        # copies of which nothing is known may follow for long
        return min(self.last, end) if self.accounted.start >= end else end


class KnownEntries:
    """Ledger entries in an order in which each range finds its own; made once for many ranges.

    Args:
        entries: by source topic-partition, of one history each, sorted by source offset: those that
            cover the ranges, and all that wrote between and next after their copies.
        others: more entries that wrote between and next after the copies.
        replayed: destination offsets that replays of the mirror wrote, which are not foreign.
        accounted: by destination topic-partition, as of `RecountPart`.
        source_configs: what the copies of source topics follow, as `followed` returns it.
    """

    def __init__(
        self,
        entries: Mapping[TopicPartition, Sequence[LedgerEntry]],
        others: Iterable[LedgerEntry] = (),
        replayed: Iterable[OffsetRange] = (),
        accounted: Mapping[TopicPartition, OffsetRange] = MappingProxyType({}),
        source_configs: Configs = MappingProxyType({}),
    ) -> None:
        self._entries = entries
        self._sources = {
            tp: RangeIndex([entry.source for entry in some]) for tp, some in entries.items()
        }
        # of all sources: several may be pinned to one destination
        own = (entry for some in entries.values() for entry in some)
        self._written = _indices(
            entry.destination for some in (own, others) for entry in some if entry.records
        )
        self._replayed = _indices(replayed)
        self._accounted = accounted
        self._source_configs = source_configs
        # before it are originals that have come home
        self._begun = {
            (entry.destination.topic_partition, entry.generation): entry.destination.end
            for some in entries.values()
            for entry in some
            if entry.begins_anew
        }

    def covering(self, offset_range: OffsetRange) -> list[LedgerEntry]:
        """Return the entries that have offsets of a range, in the order of source offsets."""
        tp = offset_range.topic_partition
        if tp not in self._sources:
            return []
        positions = [*self._sources[tp].overlapping(offset_range.start, offset_range.end)]
        entries = self._entries[tp]
        return [entries[each] for each in reversed(positions) if len(entries[each].source)]

    def parts(self, offset_range: OffsetRange, size_bytes: int | None = None) -> list[RecountPart]:
        """Return the parts of a range: of each destination, because a renamed topic has several.

        Args:
            size_bytes: about which to cut, between chunks; None for one part of each destination.
        """
        copies: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        for entry in self.covering(offset_range):
            # the first chunks of a mirror have no destination offsets while they have no record
            if entry.destination.start >= 0 and not entry.gap:
                copies[entry.destination.topic_partition].append(entry)
        parts = []
        for to, entries in copies.items():
            entries.sort(key=lambda entry: entry.destination)
            groups = _groups(entries, size_bytes)
            ends = [group[0].destination.start for group in groups[1:]]
            for group, end in zip(groups, [*ends, None], strict=True):
                parts.append(self._part(offset_range, to, group, end))
        return parts

    def _part(
        self,
        wanted: OffsetRange,
        to: TopicPartition,
        entries: Sequence[LedgerEntry],
        end: int | None,
    ) -> RecountPart:
        written, own = self._written.get(to, RangeIndex([])), {e.destination for e in entries}
        if end is None:
            end = written.next_start(max(entry.destination.end for entry in entries))
        begun = self._begun.get((to, entries[0].generation), 0)
        start = max(entries[0].destination.start, begun)
        copies = OffsetRange(to, start, sys.maxsize if end is None else max(start, end))
        others = [*written.within(copies), *self._replayed.get(to, RangeIndex([])).within(copies)]
        return RecountPart(
            OffsetRange(
                wanted.topic_partition,
                max(wanted.start, min(entry.source.start for entry in entries)),
                min(wanted.end, max(entry.source.end for entry in entries)),
            ),
            copies,
            tuple(entries),
            tuple(sorted(offset_range for offset_range in others if offset_range not in own)),
            self._accounted.get(to),
            self._source_configs.get(wanted.topic_partition.topic, {}),
        )


def _groups(entries: Sequence[LedgerEntry], size_bytes: int | None) -> list[list[LedgerEntry]]:
    """Cut entries, which are sorted by destination offset, where none of them overlap."""
    groups, size, end = [[entries[0]]], entries[0].size_bytes, entries[0].destination.end
    for entry in entries[1:]:
        is_full = size_bytes is not None and (size >= size_bytes or len(groups[-1]) >= _CHUNKS)
        if is_full and entry.destination.start >= end:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.size_bytes
        end = max(end, entry.destination.end)
    return groups


def _indices(ranges: Iterable[OffsetRange]) -> dict[TopicPartition, RangeIndex]:
    grouped: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for offset_range in ranges:
        grouped[offset_range.topic_partition].append(offset_range)
    return {to: RangeIndex(sorted(offset_ranges)) for to, offset_ranges in grouped.items()}


def uncopied(
    range_of: Callable[[TopicPartition], OffsetRange | None],
    accounted: Mapping[TopicPartition, OffsetRange],
    entries: Iterable[LedgerEntry],
    replayed: Iterable[OffsetRange],
    created: Mapping[str, str],
) -> list[RecountPart]:
    """Return the offsets of topic-partitions before their first copies, or all without copies.

    A mirror that has created the topic knows that it was empty, so records there are foreign. In a
    topic that existed before, somebody may have written them before the mirror began.

    Args:
        range_of: returns the source range to whose recount a destination topic-partition belongs;
            None for none.
        accounted: the offsets of which the ledger has every entry. Where entries have expired,
            nobody knows what they had named.
        entries: all of the mirror.
        replayed: where its replays wrote.
        created: topic -> its id, of those that the mirror has created.
    """
    firsts: dict[TopicPartition, int] = {}
    begun: dict[TopicPartition, int] = {}
    for entry in entries:
        copies = entry.destination
        if entry.records:
            first = firsts.get(copies.topic_partition, copies.start)
            firsts[copies.topic_partition] = min(first, copies.start)
        elif entry.begins_anew:  # with originals there, that have come home
            begun[copies.topic_partition] = max(begun.get(copies.topic_partition, 0), copies.end)
    by_replays = _indices(replayed)
    parts = []
    for to, offsets in sorted(accounted.items()):
        first = firsts.get(to, offsets.end)
        start = begun.get(to, 0)
        before, source = OffsetRange(to, start if start <= first else 0, first), range_of(to)
        if source is not None and not offsets.start and len(before):
            others = tuple(by_replays.get(to, RangeIndex([])).within(before))
            created_id = created.get(to.topic, "")
            parts.append(RecountPart(source, before, others=others, created_id=created_id))
    return parts

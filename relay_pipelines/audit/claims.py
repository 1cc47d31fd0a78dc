"""Who may have written each destination offset, as the ledger tells; and what a count reads.

The parts of a range are cut so that a task can count each. Pure functions. They run on the driver.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from relay_pipelines.audit.retention import Configs
from relay_pipelines.ledger.chunk_copies import ChunkCopies, RangeIndex, copies_of
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, kept_since_ms
from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange, TopicPartition

if TYPE_CHECKING:
    from relay_pipelines.ledger.verified import VerifiedLedger

_CHUNKS = 1_000  # of a part that is cut: a task gets their entries
_ALL = sys.maxsize


@dataclass(frozen=True, slots=True)
class RecountPart:
    """Chunks of a source range in one destination topic-partition, or offsets without any.

    Args:
        range: the source offsets to whose recount it belongs.
        destination: the offsets to read, as far as the log has them; up to where the mirror's next
            chunk begins. They end at `sys.maxsize` after the last chunk.
        entries: of the chunks, sorted by destination offset.
        others: what else the ledger has in there, of the mirror or of its replays, sorted.
        expired_to: before it, entries are gone that may have named a record which none names.
        known_to: from it on, records may have an entry that was not read.
        source_config: what the copies follow, as `followed` returns it.
        created_id: where nothing was copied, the id of the topic as the mirror has created it;
            empty if it has not. None where something was copied.
    """

    range: OffsetRange
    destination: OffsetRange
    entries: tuple[LedgerEntry, ...] = ()
    others: tuple[ChunkCopies, ...] = ()
    expired_to: int = 0
    known_to: int = _ALL
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
        end = min(stable, self.destination.end, max(self.last, self.known_to))
        # copies of which nothing is known may follow for long
        return min(self.last, end) if self.expired_to >= end else end


class Claims:
    """Who may have written each destination offset; made once from the ledger, for many ranges.

    A chunk is one transaction: at its offsets, the batches of its producer are its own, and no
    others. What no chunk claims is foreign, unless entries that could claim it are not known.

    Args:
        mirror: whose chunks they are; what the rest of its family has written is not foreign.
        entries: all that count, of the mirror and its replays.
        known: as `accounted` returns it; all entries are known where it says nothing.
        source_configs: what the copies of source topics follow, as `followed` returns it.
    """

    def __init__(
        self,
        mirror: str,
        entries: Iterable[LedgerEntry],
        known: Mapping[TopicPartition, OffsetRange] = MappingProxyType({}),
        source_configs: Configs = MappingProxyType({}),
    ) -> None:
        self._mirror = mirror
        self._known = known
        self._source_configs = source_configs
        self._chunks: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        # before it are originals that have come home
        self._begun: dict[tuple[TopicPartition, TopicPartition, int], LedgerEntry] = {}
        for entry in entries:
            to = entry.to
            if entry.records:
                self._chunks[to].append(entry)
            elif entry.begins_anew and entry.mirror == mirror:
                key = to, entry.tp, entry.generation
                self._begun[key] = entry
        for chunks in self._chunks.values():
            chunks[:] = sorted(_of_this_log(chunks), key=lambda entry: entry.destination)
        self._indices = {
            to: RangeIndex([entry.destination for entry in chunks])
            for to, chunks in self._chunks.items()
        }
        self._starts = {  # of all sources: several may be pinned to one destination
            to: [entry.destination.start for entry in chunks if entry.mirror == mirror]
            for to, chunks in self._chunks.items()
        }

    def parts(
        self,
        offset_range: OffsetRange,
        entries: Iterable[LedgerEntry],
        size_bytes: int | None = None,
    ) -> list[RecountPart]:
        """Return the parts of a range: of each destination, because a renamed topic has several.

        Args:
            entries: those that cover the range, of one history.
            size_bytes: about which to cut, between chunks; None for one part of each destination.
        """
        copies: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            # the first chunks of a mirror have no destination offsets while they have no record
            if len(entry.source) and entry.destination.start >= 0 and not entry.gap:
                copies[entry.to].append(entry)
        parts = []
        for to, chunks in copies.items():
            groups = _groups(sorted(chunks, key=lambda entry: entry.destination), size_bytes)
            ends = [group[0].destination.start for group in groups[1:]]
            last = max(entry.destination.end for entry in groups[-1])
            starts = self._starts.get(to, [])
            ends += [*starts[bisect_left(starts, last) :][:1], _ALL][:1]
            parts += [
                self._part(offset_range, OffsetRange(to, 0, end), group)
                for group, end in zip(groups, ends, strict=True)
            ]
        return parts

    def _part(
        self, offset_range: OffsetRange, upto: OffsetRange, entries: Sequence[LedgerEntry]
    ) -> RecountPart:
        source, to = offset_range.topic_partition, upto.topic_partition
        start = entries[0].destination.start
        begun = self._begun.get((to, source, entries[0].generation))
        if begun and begun.number < entries[0].number:
            start = max(start, begun.destination.end)
        copies = OffsetRange(to, start, max(start, upto.end))
        known = self._known.get(to, OffsetRange(to, 0, _ALL))
        return RecountPart(
            OffsetRange(
                source,
                max(offset_range.start, min(entry.source.start for entry in entries)),
                min(offset_range.end, max(entry.source.end for entry in entries)),
            ),
            copies,
            tuple(entries),
            self._others(copies, entries),
            known.start,
            known.end,
            self._source_configs.get(source.topic, {}),
        )

    def _others(
        self, copies: OffsetRange, entries: Iterable[LedgerEntry] = ()
    ) -> tuple[ChunkCopies, ...]:
        to = copies.topic_partition
        index = self._indices.get(to, RangeIndex([]))
        positions = [*index.overlapping(copies.start, copies.end)]
        there = (ChunkCopies.of(self._chunks[to][position]) for position in reversed(positions))
        own = {ChunkCopies.of(entry) for entry in entries}
        return tuple(chunk for chunk in there if chunk not in own)

    def uncopied(
        self, range_of: Callable[[TopicPartition], OffsetRange | None], created: Mapping[str, str]
    ) -> list[RecountPart]:
        """Return the offsets of topic-partitions before their first copies, or without copies.

        A mirror that has created the topic knows that it was empty, so records there are foreign.
        In a topic that existed before, another program may have written them before.
        Where entries have expired, it is unknown what they had named.

        Args:
            range_of: returns the source range to whose recount a destination topic-partition
                belongs; None for none.
            created: topic -> its id, of those that the mirror has created.
        """
        begun: dict[TopicPartition, int] = defaultdict(int)
        anew: dict[TopicPartition, int] = defaultdict(int)
        for (to, tp, _), entry in self._begun.items():
            begun[to] = max(begun[to], entry.destination.end)
            anew[tp] = max(anew[tp], entry.number)
        parts = []
        for to, known in sorted(self._known.items()):
            # copies of former generations are counted by nobody: what is among them, by this part
            starts = (
                entry.destination.start
                for entry in self._chunks.get(to, [])
                if entry.mirror == self._mirror
                if entry.number >= anew[entry.tp]
            )
            first = next(starts, known.end)
            start = max(begun[to] if begun[to] <= first else 0, known.start)
            before, source = OffsetRange(to, start, max(start, first)), range_of(to)
            if source is not None and len(before):
                others, created_id = self._others(before), created.get(to.topic, "")
                parts.append(RecountPart(source, before, others=others, created_id=created_id))
        return parts


def accounted(
    ledger: VerifiedLedger, others: Iterable[LedgerEntry] = ()
) -> dict[TopicPartition, OffsetRange]:
    """Return, by destination topic-partition, the offsets of which the ledger has every entry.

    A mirror and its replays may write to one topic, at the same time. Their ledger entries are in
    several partitions of the ledger, and retention removes those at different times.

    Args:
        others: entries that are known besides those that the ledger still has.
    """
    chains: dict[tuple[str, TopicPartition], dict[int, LedgerEntry]] = defaultdict(dict)
    copied: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
    starts = dict.fromkeys(ledger.ends, 0)
    for entry in (*ledger.entries, *others):
        chains[entry.mirror, entry.tp][entry.number] = entry
        if entry.records:
            copied[entry.to].append(entry)
    for known in ledger.family:
        to, numbered = copies_of(known), chains[known.mirror, known.source]
        kept_ms = kept_since_ms(ledger.kept, known.mirror, known.source)
        start = _complete_from(known, numbered, copied[to], kept_ms)
        starts[to] = max(starts.get(to, 0), start)
    return {to: OffsetRange(to, starts[to], end) for to, end in ledger.ends.items()}


def _complete_from(
    known: Checkpoint,
    numbered: Mapping[int, LedgerEntry],
    copied: Iterable[LedgerEntry],
    kept_ms: int,
) -> int:
    """Return the destination offset after the copies of the newest entry that is gone; or 0.

    Only retention takes entries. Others are missing, and what they might have named is foreign: a
    checkpoint alone, which another process may have written, excuses nothing.

    Args:
        numbered: the entries of the checkpoint's chain.
        copied: those with records in the same destination topic-partition, of all chains.
    """
    head, to = known.ledger_head, copies_of(known)
    newest = next((number for number in range(head.number, 0, -1) if number not in numbered), 0)
    after = numbered.get(newest + 1)
    gone_ms = head.committed_at_ms if after is None else after.previous_at_ms
    if not newest or gone_ms >= kept_ms:
        return 0
    # its copies are before those that follow in its chain, or were committed later
    later_ms = gone_ms + CLOCK_SKEW_MS
    later = [entry.destination.start for entry in copied if entry.committed_at_ms > later_ms]
    follow = [
        entry.destination.start
        for entry in numbered.values()
        if entry.number > newest and entry.records and entry.to == to
    ]
    end = min(follow, default=known.copies.next_offset if known.copies else 0)
    return min([end, *later])


def _of_this_log(chunks: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Yield the chunks that are not of a topic which was created again since.

    In one log, the chunks of a source follow each other.
    """
    firsts: dict[tuple[str, TopicPartition], int] = {}
    for entry in sorted(chunks, key=lambda each: (each.number, each.destination), reverse=True):
        source, start = (entry.mirror, entry.tp), entry.destination.start
        if start <= firsts.get(source, start):
            firsts[source] = start
            yield entry


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

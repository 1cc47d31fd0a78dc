"""Whether ledger entries are those that were committed: the chain of each source topic-partition.

Pure functions. docs/transactions.md says what a chain shows, and what it cannot show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from relay_pipelines.model import (
    CHAIN_START,
    CHAIN_UPGRADE,
    LedgerHead,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.state.ledger import LedgerRecord

_MARKS = {CHAIN_START.hash, CHAIN_UPGRADE.hash}
REMEDY = "find out who wrote to the topics __relay_ledger and __relay_checkpoints"
"""What to do about a break."""


class Tampering(StrEnum):
    """What was done to ledger entries."""

    CHANGED = "changed"
    REMOVED = "removed"
    MOVED = "moved"
    INSERTED = "inserted"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """A place where the ledger does not hold what was committed.

    Args:
        first, last: the numbers of the entries concerned; 0 for an entry of an older version.
        where: of the ledger, the offsets of the entry, or those between which entries are missing;
            None if there is no entry left.
        source: the source offsets of the entry, as it says now; None if it is missing.
        is_certain: whether the entry after it, which names it, is the one that was committed.
    """

    kind: Tampering
    topic_partition: TopicPartition
    first: int
    last: int
    where: OffsetRange | None
    source: OffsetRange | None = None
    is_certain: bool = True

    def __str__(self) -> str:
        return f"{self.topic_partition}: {self.what_and_where}"

    @property
    def what_and_where(self) -> str:
        """What was done to which entries, and their place in the ledger."""
        where = "" if self.where is None else f" ({self.where})"
        return f"{self.what}{where}"

    @property
    def what(self) -> str:
        """What was done to which entries."""
        one = self.first == self.last
        entries = f"entry {self.first}" if one else f"entries {self.first} to {self.last}"
        says = {
            Tampering.CHANGED: "not what was committed",
            Tampering.REMOVED: "missing",
            Tampering.MOVED: "not in the order of the commits",
            Tampering.INSERTED: "never committed with a checkpoint",
            Tampering.RESTARTED: "a new chain begins, because the checkpoint was lost",
        }[self.kind]
        if not self.is_certain:
            says = "the next entry, which was changed, does not name it"
        return f"ledger {entries}: {says}"


@dataclass(slots=True)
class Chain:
    """What verification found for one source topic-partition.

    Args:
        breaks: empty if the entries are those that were committed.
        records: the entries that were committed, in order.
        expired: how many entries retention has removed from the beginning.
    """

    topic_partition: TopicPartition
    breaks: list[ChainBreak] = field(default_factory=list)
    records: list[LedgerRecord] = field(default_factory=list)
    expired: int = 0

    @property
    def unlinked(self) -> int:
        """How many entries an older version wrote, which are not protected."""
        return sum(not record.entry.number for record in self.records)


def verify_chains(
    records: Iterable[LedgerRecord],
    heads: Mapping[TopicPartition, LedgerHead],
    kept_since_ms: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> dict[TopicPartition, Chain]:
    """Verify the entries of a mirror, by source topic-partition.

    Args:
        records: in the order of the ledger, of each topic-partition.
        heads: of the checkpoints, read after the records; later commits look like inserted entries.
        kept_since_ms: by source topic-partition, as of `verify_chain`.
    """
    grouped: dict[TopicPartition, list[LedgerRecord]] = defaultdict(list)
    for record in records:
        grouped[record.entry.source.topic_partition].append(record)
    return {
        at: verify_chain(at, grouped.get(at, []), heads.get(at), kept_since_ms.get(at, 0))
        for at in sorted(grouped.keys() | heads.keys())
    }


def verify_chain(
    at: TopicPartition,
    records: Sequence[LedgerRecord],
    head: LedgerHead | None,
    kept_since_ms: int = 0,
) -> Chain:
    """Verify the entries of one source topic-partition.

    Args:
        records: in the order of the ledger.
        head: of the checkpoint; None if there is no checkpoint.
        kept_since_ms: retention has removed no entry that was committed since; 0 if it has removed
            none at all.
    """
    chain = Chain(at)
    segments = list(_segments(records))
    for segment in segments[1:]:
        chain.breaks.append(_of_entry(Tampering.RESTARTED, segment[0]))
    for index, segment in enumerate(segments):
        is_newest = index == len(segments) - 1
        _Verification(chain, segment, head if is_newest else None).verify()
    numbered = [record for record in chain.records if record.entry.number]
    if numbered:
        oldest = numbered[0].entry
        missing, removed_at_ms = oldest.number - 1, oldest.previous_at_ms
    else:
        missing, removed_at_ms = (head.number, head.committed_at_ms) if head else (0, 0)
    if removed_at_ms < kept_since_ms and not (numbered and chain.unlinked):
        chain.expired = missing
    elif missing:
        first = numbered[0] if numbered else None
        chain.breaks.append(_missing(at, 1, missing, None, first))
    return chain


def _segments(records: Sequence[LedgerRecord]) -> Iterator[list[LedgerRecord]]:
    """Cut where a chain starts again, after another one; a first link may also have been moved."""
    segment: list[LedgerRecord] = []
    hashes, named, is_chain = set[str](), set[str](), False
    for record in records:
        previous, own = record.entry.previous, record.head.hash
        if previous in _MARKS and is_chain and own not in named | hashes:
            yield segment
            segment, hashes, named, is_chain = [], set(), set(), False
        segment.append(record)
        is_chain = is_chain or previous in _MARKS or previous in hashes
        hashes.add(own)
        named.add(previous)
    yield segment


class _Verification:
    """Verifies one chain, from its head back to its oldest entry.

    Args:
        chain: gets the findings.
        head: of the newest entry; None if it is unknown.
    """

    def __init__(
        self, chain: Chain, records: Sequence[LedgerRecord], head: LedgerHead | None
    ) -> None:
        self._chain = chain
        self._head = head
        self._records = records
        self._committed: list[LedgerRecord] = []

    def verify(self) -> None:
        by_number: dict[int, list[LedgerRecord]] = defaultdict(list)
        for record in self._records:
            by_number[record.entry.number].append(record)
        unlinked = by_number.pop(0, [])
        if self._head is not None:
            for number in [number for number in by_number if number > self._head.number]:
                self._inserted(by_number.pop(number))
        self._walk_back(by_number)
        self._verify_order()
        self._chain.records.extend([*self._verify_unlinked(unlinked), *self._committed])

    def _walk_back(self, by_number: Mapping[int, Sequence[LedgerRecord]]) -> None:
        """Find the entry of each number that the one after it names."""
        newest = max(by_number, default=0) if self._head is None else self._head.number
        expected = "" if self._head is None else self._head.hash  # empty if unknown
        after, is_certain = None, True
        for number in sorted(by_number, reverse=True):
            if number < newest:
                at = self._chain.topic_partition
                self._add(_missing(at, number + 1, newest, by_number[number][0], after))
                expected = ""
            some = by_number[number]
            found = next((one for one in some if one.head.hash == expected), some[0])
            is_changed = bool(expected) and found.head.hash != expected
            if is_changed:
                self._add(_of_entry(Tampering.CHANGED, found, is_certain=is_certain))
            self._inserted(one for one in some if one is not found)
            self._committed.append(found)
            # the link of a changed entry may have been changed, too
            expected, after, newest, is_certain = (
                found.entry.previous,
                found,
                number - 1,
                not is_changed,
            )
        self._committed.reverse()

    def _verify_order(self) -> None:
        newest = 0
        committed = {id(record) for record in self._committed}
        for record in self._records:
            if id(record) in committed:
                if record.entry.number < newest:
                    self._add(_of_entry(Tampering.MOVED, record))
                newest = max(newest, record.entry.number)

    def _verify_unlinked(self, unlinked: Sequence[LedgerRecord]) -> list[LedgerRecord]:
        """Return the entries of older versions; the first link may name the last of them."""
        if not self._committed:
            if self._head is not None and self._head.number:
                # retention removes older entries first, so none can be left after numbered ones
                self._inserted(unlinked)
                return []
            return list(unlinked)
        begin, first = self._committed[0].offset, self._committed[0].entry
        before = [record for record in unlinked if record.offset < begin]
        self._inserted(record for record in unlinked if record.offset > begin)
        if before and first.number == 1 and first.previous not in {*_MARKS, before[-1].head.hash}:
            self._add(_of_entry(Tampering.CHANGED, before[-1]))
        return before

    def _inserted(self, records: Iterable[LedgerRecord]) -> None:
        for record in records:
            self._add(_of_entry(Tampering.INSERTED, record))

    def _add(self, found: ChainBreak) -> None:
        self._chain.breaks.append(found)


def _of_entry(kind: Tampering, record: LedgerRecord, *, is_certain: bool = True) -> ChainBreak:
    entry, here = record.entry, OffsetRange(record.at, record.offset, record.offset + 1)
    at, number = entry.source.topic_partition, entry.number
    return ChainBreak(kind, at, number, number, here, entry.source, is_certain)


def _missing(
    at: TopicPartition,
    first: int,
    last: int,
    before: LedgerRecord | None,
    after: LedgerRecord | None,
) -> ChainBreak:
    """Return a break for entries missing before or after others."""
    record = before or after
    if record is None:
        return ChainBreak(Tampering.REMOVED, at, first, last, None)
    start = 0 if before is None else before.offset + 1
    end = record.offset + 1 if after is None else after.offset
    where = OffsetRange(record.at, start, max(start, end))
    return ChainBreak(Tampering.REMOVED, at, first, last, where)

"""Whether ledger entries are those that were committed: the chain of each source topic-partition.

Pure functions. docs/transactions.md says what a chain shows, and what it cannot show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from relay_pipelines.errors import TamperedError
from relay_pipelines.ledger.ledger_topic import ENTRIES_LOST, LedgerRecord
from relay_pipelines.ledger.state_table import StateTable
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, OffsetRange, TopicPartition

REMEDY = "find out who wrote to the topics __relay_ledger and __relay_checkpoints"
"""What to do about a break."""


class Tampering(StrEnum):
    """What was done to ledger entries."""

    CHANGED = "changed"
    REMOVED = "removed"
    MOVED = "moved"
    INSERTED = "inserted"
    NOT_OF_CHECKPOINT = "not of its checkpoint"
    OTHER_GENERATION = "of another generation than its checkpoint"


@dataclass(frozen=True, slots=True)
class ChainBreak:
    """A place where the ledger does not hold what was committed.

    Args:
        first, last: the numbers of the entries concerned.
        where: of the ledger, the offsets of the entry, or those between which entries are missing;
            None if there is no entry left.
        source: the source offsets of the entry, as it says now; None if it is missing.
        is_certain: whether the entry after it, which names it, is the one that was committed.
        replay: the name under which the entry stands, if it is a replay's.
    """

    kind: Tampering
    topic_partition: TopicPartition
    first: int
    last: int
    where: OffsetRange | None
    source: OffsetRange | None = None
    is_certain: bool = True
    replay: str = ""

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
            Tampering.NOT_OF_CHECKPOINT: "its checkpoint says another source offset",
            Tampering.OTHER_GENERATION: "its checkpoint says another generation",
        }[self.kind]
        if not self.is_certain:
            says = "the next entry, which was changed, does not name it"
        of = f" of {self.replay}" if self.replay else ""
        return f"ledger {entries}{of}: {says}"


@dataclass(slots=True)
class Chain:
    """What verification found for one source topic-partition.

    Args:
        breaks: empty if the entries are those that were committed.
        records: the entries that were committed, in order; none without a checkpoint, because
            nothing else vouches for them.
        expired: how many entries retention has removed from the beginning.
        lost: how many entries are lost before one that says so: `relay restore` has committed it.
        gone_ms: when the newest of these was committed.
    """

    topic_partition: TopicPartition
    breaks: list[ChainBreak] = field(default_factory=list)
    records: list[LedgerRecord] = field(default_factory=list)
    expired: int = 0
    lost: int = 0
    gone_ms: int = 0

    @property
    def entries(self) -> list[LedgerEntry]:
        """Those that were committed, in order."""
        return [record.entry for record in self.records]

    def gone_since(self, since_ms: int | None) -> int:
        """Return how many entries are gone; 0 if all of them were committed before a time."""
        return self.expired + self.lost if self.gone_ms >= (since_ms or 0) else 0


def gone_before(oldest: LedgerEntry | None, head: LedgerHead) -> tuple[int, int]:
    """Return how many entries are missing before the oldest one left, and when the last was made.

    Args:
        oldest: None if none is left.
    """
    if oldest is None:
        return head.number, head.committed_at_ms
    return oldest.number - 1, oldest.previous_at_ms


@dataclass(slots=True)
class Links:
    """Follows the entries of one chain in the order of the ledger, and keeps none of them.

    Args:
        is_unbroken: whether each entry so far names the one before it.
    """

    is_unbroken: bool = True
    _oldest: LedgerEntry | None = None
    _newest: LedgerEntry | None = None
    _head: LedgerHead | None = None

    def add(self, record: LedgerRecord) -> None:
        """Add the next entry."""
        if self._head is None:
            self._oldest = record.entry
        elif not record.follows(self._head):
            self.is_unbroken = False
        if record.entry.gap == ENTRIES_LOST:
            self.is_unbroken = False  # what is before it does not count
        self._newest, self._head = record.entry, record.head

    def end_at(self, head: LedgerHead) -> bool:
        """Whether they are unbroken, and the newest one is that of the head."""
        is_its = self._head and (self._head.number, self._head.hash) == (head.number, head.hash)
        return bool(is_its) and self.is_unbroken

    def chain(self, known: Checkpoint, kept_since_ms: int) -> Chain | None:
        """Return the chain of a checkpoint without its entries.

        None if `verify_chain`, which keeps the entries, would find a break.
        """
        if self._newest:
            says = self._newest.source.end, self._newest.generation
            is_its = says == (known.next_offset, known.generation)
            if not (is_its and self.end_at(known.ledger_head)):
                return None
        gone, gone_ms = gone_before(self._oldest, known.ledger_head)
        if gone and gone_ms >= kept_since_ms:
            return None
        return Chain(known.source, expired=gone, gone_ms=gone_ms)


def tampered(mirror: str, breaks: Sequence[ChainBreak]) -> TamperedError:
    """Return the error for a ledger with breaks; its notes name each."""
    more = f" (and {len(breaks) - 1} more)" if len(breaks) > 1 else ""
    error = TamperedError(
        f"the ledger of {mirror} is not what was committed: {breaks[0]}{more}", remedy=REMEDY
    )
    for broken in breaks:
        error.add_note(str(broken))
    return error


def not_of_checkpoint(chain: Chain, checkpoint: Checkpoint) -> list[ChainBreak]:
    """Return a break for each thing that the newest entry and its checkpoint say differently."""
    newest = chain.records[-1] if chain.records else None
    if newest is None or newest.head.hash != checkpoint.ledger_head.hash:
        return []
    differs = {
        Tampering.NOT_OF_CHECKPOINT: newest.entry.source.end != checkpoint.next_offset,
        Tampering.OTHER_GENERATION: newest.entry.generation != checkpoint.generation,
    }
    return [_of_entry(kind, newest) for kind, does in differs.items() if does]


class VouchedEntries:
    """The entries of one chain that are reached from its head, link by link.

    Only the transaction of a checkpoint writes a head, so whoever may write to the ledger alone can
    add no entry that is reached.

    Args:
        head: of the checkpoint; None if there is none.
    """

    def __init__(self, head: LedgerHead | None) -> None:
        self._newest = 0 if head is None else head.number
        self._next = "" if head is None else head.hash
        self._reached: list[LedgerRecord] = []
        self._others: dict[str, LedgerRecord] = {}

    def add(self, record: LedgerRecord) -> None:
        """Add an entry, in any order."""
        self._others[record.head.hash] = record
        while (reached := self._others.pop(self._next, None)) is not None:
            self._reached.append(reached)
            self._next = reached.entry.previous

    @property
    def records(self) -> list[LedgerRecord]:
        """Those that are reached so far, oldest first."""
        return self._reached[::-1]

    @property
    def has_others(self) -> bool:
        """Whether there are entries that are not reached, of which a checkpoint should know."""
        return any(
            self._newest == 0 or record.entry.number <= self._newest
            for record in self._others.values()
        )

    def reach(self, is_before: Callable[[LedgerEntry], bool]) -> bool:
        """Whether they reach back to the first entry of the chain, or to one that is before."""
        oldest = self._reached[-1].entry if self._reached else None
        return oldest is not None and (oldest.number == 1 or is_before(oldest))


def vouched(
    records: Sequence[LedgerRecord], heads: StateTable
) -> tuple[list[LedgerRecord], list[LedgerRecord]]:
    """Return the entries that are reached from the heads, and the others.

    Those of a chain are in order.

    Args:
        records: of a mirror and its replays.
    """
    chains: dict[tuple[str, TopicPartition], VouchedEntries] = {}
    for record in records:
        at = record.chain
        if at not in chains:
            chains[at] = VouchedEntries(heads.head(*at))
        chains[at].add(record)
    counted = [record for chain in chains.values() for record in chain.records]
    known = {(record.at, record.offset) for record in counted}
    return counted, [record for record in records if (record.at, record.offset) not in known]


def not_vouched(record: LedgerRecord) -> ChainBreak:
    """Return the break for an entry of a replay that no checkpoint leads to."""
    return replace(_of_entry(Tampering.INSERTED, record), replay=record.entry.mirror)


def verify_chain(
    tp: TopicPartition,
    records: Sequence[LedgerRecord],
    head: LedgerHead | None,
    kept_since_ms: int = 0,
) -> Chain:
    """Verify the entries of one source topic-partition.

    Args:
        records: in the order of the ledger.
        head: of the checkpoint; None if there is no checkpoint, which leaves every entry in doubt.
        kept_since_ms: retention has removed no entry that was committed since; 0 if it has removed
            none at all.
    """
    chain = Chain(tp)
    if head is None:
        chain.breaks += [_without_checkpoint(records)] if records else []
        return chain
    _walk_back(chain, records, head)
    chain.breaks += _moved(records, chain.records)
    first = chain.records[0] if chain.records else None
    gone, chain.gone_ms = gone_before(first.entry if first else None, head)
    if chain.gone_ms < kept_since_ms and not chain.lost:
        chain.expired = gone
    elif gone > chain.lost:
        chain.breaks.append(_missing(tp, 1, gone, None, first))
    return chain


def _walk_back(chain: Chain, records: Iterable[LedgerRecord], head: LedgerHead) -> None:
    """Find the entry of each number that the one after it names, from the head to the oldest."""
    by_number: dict[int, list[LedgerRecord]] = defaultdict(list)
    for record in records:
        by_number[record.entry.number].append(record)
    for number in [number for number in by_number if number > head.number]:
        chain.breaks += (_of_entry(Tampering.INSERTED, each) for each in by_number.pop(number))
    newest, expected, after, is_certain = head.number, head.hash, None, True
    for number in sorted(by_number, reverse=True):
        of_number = by_number[number]
        if number < newest:
            chain.breaks.append(
                _missing(chain.topic_partition, number + 1, newest, of_number[0], after)
            )
            expected = ""  # unknown
        record = next((each for each in of_number if each.head.hash == expected), of_number[0])
        is_changed = bool(expected) and record.head.hash != expected
        if is_changed:
            chain.breaks.append(_of_entry(Tampering.CHANGED, record, is_certain=is_certain))
        chain.breaks += (
            _of_entry(Tampering.INSERTED, each) for each in of_number if each is not record
        )
        chain.records.append(record)
        if record.entry.gap == ENTRIES_LOST and not is_changed and expected:
            chain.lost = number - 1
            chain.breaks += _written_after(record, by_number)
            break  # what is before it was looked at
        # the link of a changed entry may have been changed, too
        newest, expected, after = number - 1, record.entry.previous, record
        is_certain = not is_changed
    chain.records.reverse()


def _written_after(
    lost: LedgerRecord, by_number: Mapping[int, Iterable[LedgerRecord]]
) -> Iterator[ChainBreak]:
    """Yield the entries with the numbers of lost ones that stand after the one that says so."""
    for number, records in by_number.items():
        if number < lost.entry.number:
            for record in records:
                if record.offset > lost.offset:
                    yield _of_entry(Tampering.INSERTED, record)


def _moved(
    records: Iterable[LedgerRecord], committed: Sequence[LedgerRecord]
) -> Iterator[ChainBreak]:
    """Yield the committed entries that are not in the order of the commits.

    Args:
        records: in the order of the ledger.
    """
    newest, ids = 0, set(map(id, committed))
    for record in records:
        if id(record) in ids:
            if record.entry.number < newest:
                yield _of_entry(Tampering.MOVED, record)
            newest = max(newest, record.entry.number)


def _of_entry(kind: Tampering, record: LedgerRecord, *, is_certain: bool = True) -> ChainBreak:
    entry, here = record.entry, OffsetRange(record.at, record.offset, record.offset + 1)
    tp, number = entry.tp, entry.number
    return ChainBreak(kind, tp, number, number, here, entry.source, is_certain)


def _missing(
    tp: TopicPartition,
    first: int,
    last: int,
    before: LedgerRecord | None,
    after: LedgerRecord | None,
) -> ChainBreak:
    """Return a break for entries missing before or after others."""
    record = before or after
    if record is None:
        return ChainBreak(Tampering.REMOVED, tp, first, last, None)
    start = 0 if before is None else before.offset + 1
    end = record.offset + 1 if after is None else after.offset
    where = OffsetRange(record.at, start, max(start, end))
    return ChainBreak(Tampering.REMOVED, tp, first, last, where)


def _without_checkpoint(records: Sequence[LedgerRecord]) -> ChainBreak:
    """Return a break for all entries of a topic-partition."""
    numbers = [record.entry.number for record in records]
    first, last = records[0], records[-1]
    where = OffsetRange(first.at, first.offset, last.offset + 1)
    tp = first.entry.tp
    return ChainBreak(Tampering.INSERTED, tp, min(numbers), max(numbers), where)

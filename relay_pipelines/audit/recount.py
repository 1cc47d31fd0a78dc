"""What a recount found: of one destination topic-partition, and of a range of source offsets.

The destination must hold what the ledger says, and the ledger must cover every source offset.
`claims` says what is read, `part_count` counts it; windows, statements, restores and audits
make these results of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relay_pipelines.audit.coverage import CoverageMap, OffsetKind
from relay_pipelines.audit.verdict import Tally, total
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.model import LedgerEntry, OffsetRange

UNTIMED = "timestamps that the destination's brokers have set"
_MAKE_ALIKE = (
    "let runs set it with topics.sync_configs: true; `relay replay` copies again what is gone"
)


@dataclass(slots=True)
class DestinationCount:
    """What was found in the destination offsets of one part of a source range.

    Args:
        range: the source offsets.
        scanned: the destination offsets that were read; None if nothing was.
        tally: of the records there, and of those that the ledger has for its chunks, which may
            reach beyond the range.
        foreign_at: the destination offset of the first foreign record; None if there is none.
        truncated: where the destination's log begins although its retention explains no deletion
            of the chunks before; empty if it does, or begins before them.
        unlike_source: how the topic keeps records for another time than the source's.
        first_ms, last_ms: the timestamps of the oldest and the newest of the records found, by the
            headers of their batches; None if there are none.
        size_bytes: of the part's chunks.
        error: why nothing could be read; empty if it could.
    """

    range: OffsetRange
    scanned: OffsetRange | None = None
    tally: Tally = field(default_factory=Tally)
    foreign_at: int | None = None
    truncated: str = ""
    unlike_source: str = ""
    first_ms: int | None = None
    last_ms: int | None = None
    size_bytes: int = 0
    error: str = ""

    @property
    def destination(self) -> str:
        """The topic-partition that was read, as text; empty if none was."""
        return "" if self.scanned is None else str(self.scanned.topic_partition)


@dataclass(slots=True)
class Recount:
    """What was found for one source range, and what the ledger says.

    Args:
        coverage: of the range by the ledger.
        counts: of its parts, in order.
        gone: that the copies are gone as a whole, or that the destination's log is not the one
            that was written.
        forged: ledger entries of the range that no checkpoint leads to; they count for nothing.
        gaps: accepted losses just before the range or within it, or after which no run copies what
            the range has left.
    """

    coverage: CoverageMap
    counts: Sequence[DestinationCount] = ()
    gone: Sequence[str] = ()
    forged: int = 0
    gaps: list[str] = field(default_factory=list)

    @property
    def range(self) -> OffsetRange:
        """The source offsets."""
        return self.coverage.range

    @property
    def tally(self) -> Tally:
        """What became of its records."""
        return total(count.tally for count in self.counts)

    @property
    def records(self) -> int:
        """Records of the range, according to the ledger, so that ranges side by side count once.

        Where a chunk skipped offsets, it is unknown which of its records are of the range: they are
        all of the one in which it ends.
        """
        entries = self.coverage.covering
        return self.tally.records - sum(_beyond(entry, self.range) for entry in entries)

    @property
    def skipped(self) -> Counter[str]:
        """Source offsets without a record, by reason, according to the ledger."""
        return sum((Counter(entry.skipped) for entry in self.coverage.covering), Counter())

    @property
    def scanned(self) -> OffsetRange | None:
        """The destination offsets that were read, in the topic-partition that was read last."""
        read = [count.scanned for count in self.counts if count.scanned is not None]
        last = [each for each in read if each.topic_partition == read[-1].topic_partition]
        ends = max((each.end for each in last), default=0)
        return replace(min(last), end=ends) if last else None

    @property
    def first_ms(self) -> int | None:
        """The timestamp of the oldest record found; None if there are none."""
        return min((c.first_ms for c in self.counts if c.first_ms is not None), default=None)

    @property
    def last_ms(self) -> int | None:
        """The timestamp of the newest record found; None if there are none."""
        return max((c.last_ms for c in self.counts if c.last_ms is not None), default=None)

    @property
    def first_foreign(self) -> DestinationCount | None:
        """The count with the first foreign record; None if there is none."""
        return next((count for count in self.counts if count.foreign_at is not None), None)

    @property
    def superseded(self) -> int:
        """Source offsets that no run copies: a loss was accepted after which they differ."""
        return self.coverage.offsets(OffsetKind.SUPERSEDED)

    @property
    def forgotten(self) -> int:
        """Source offsets that were copied, and whose ledger entries are gone."""
        return self.coverage.offsets(OffsetKind.FORGOTTEN)

    @property
    def _by_destination(self) -> Mapping[str, Sequence[DestinationCount]]:
        """Each is judged by itself, because another topic's retention excuses nothing."""
        grouped: dict[str, list[DestinationCount]] = defaultdict(list)
        for count in self.counts:
            grouped[count.destination].append(count)
        return grouped

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        lines = [*self.coverage.problems, *self.gone]
        if self.forged:
            lines.append(f"ledger entries never committed with a checkpoint: {self.forged:,}")
        counted = self._by_destination
        for to, counts in counted.items():
            where = f"{to}: " if len(counted) > 1 else ""  # one destination needs no name
            lines += [f"{where}{line}" for line in _count_problems(counts)]
        return lines

    def notes(self, *, by_count: bool = True) -> list[str]:
        """Return what could not be found out.

        Args:
            by_count: whether to say which records were counted alone.
        """
        seen = self.tally
        lines = [records_gone(why, number) for why, number in seen.not_verified.items()]
        if by_count:
            lines += [
                f"{count:,} records were counted, not compared: {why}"
                for why, count in seen.not_compared.items()
            ]
        if seen.untimed:
            lines.append(f"{UNTIMED}: {seen.untimed:,}")
        return lines + self.writer_notes

    @property
    def writer_notes(self) -> list[str]:
        """What could not be found out about records that no entry names."""
        lines = []
        if self.forgotten:
            lines.append(
                f"{self.forgotten:,} source offsets were copied, and their ledger entries are gone:"
                " nothing can verify them any more"
            )
        if unattributed := self.tally.unattributed:
            why = "because ledger entries of that time have expired"
            lines.append(f"records whose writer is not known, {why}: {unattributed:,}")
        for to, counts in self._by_destination.items():
            if number := total(count.tally for count in counts).uncopied:
                where = f"{to} before the first copy, or where there is none"
                lines.append(f"records in {where}: {number:,}")
        return lines


def _count_problems(counts: Sequence[DestinationCount]) -> Iterator[str]:
    """Yield what is wrong with the copies in one destination topic-partition."""
    seen = total(count.tally for count in counts)
    if seen.foreign:
        yield f"records at the destination that this mirror did not write: {seen.foreign:,}"
    if truncated := next((each.truncated for each in counts if each.truncated), ""):
        yield truncated
    is_short = seen.records - seen.counted != seen.not_verified.total()
    if is_short:
        yield f"{seen.records:,} records were committed, {seen.counted:,} are there"
    unlike_source = next((each.unlike_source for each in counts if each.unlike_source), "")
    if unlike_source and (is_short or truncated):
        yield f"the destination's topic has {unlike_source}; {_MAKE_ALIKE}"
    if seen.differing and not is_short:
        yield f"chunks whose bytes differ from what was committed: {seen.differing}"


def records_gone(why: str, number: int) -> str:
    """Return the line about records that are not there, although nothing is wrong."""
    return f"{why}: {number:,} records are gone"


def gap_finding(where: str, gap: str) -> Finding:
    """Return what people are told of an accepted loss."""
    return warning(Kind.GAP, where, f"{gap}; the copy resumed after it")


def _beyond(entry: LedgerEntry, offset_range: OffsetRange) -> int:
    """How many records of a chunk are not of a range that it covers in part."""
    source = entry.source
    if entry.records < len(source):
        return 0 if source.end <= offset_range.end else entry.records
    return len(source) - (min(source.end, offset_range.end) - max(source.start, offset_range.start))

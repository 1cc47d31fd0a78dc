"""What a recount found: of one destination topic-partition, and of a range of source offsets.

The destination must hold what the ledger says, and the ledger must cover every source offset.
`recount_parts` plans what is read, `part_count` counts it; windows, statements, restores and audits
make these results of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from relay_pipelines.audit.coverage import CoverageMap, OffsetKind, coverage
from relay_pipelines.audit.verdict import Coverage
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.model import LedgerEntry, OffsetRange

UNTIMED = "timestamps that the destination's brokers have set"
_MAKE_ALIKE = (
    "let runs set it with topics.sync_configs: true; `relay replay` copies again what is gone"
)
REPLACED = "the destination topic {!r} was deleted and created again since the last copy"


@dataclass(slots=True)
class DestinationCount:
    """What was found in one destination topic-partition of the copies of a source range.

    Each is judged by itself, because another topic's retention excuses nothing.

    Args:
        range: the source offsets.
        scanned: the destination offsets that were read; None if nothing was.
        recorded: records that the ledger has for the chunks which cover the range; those may reach
            beyond it.
        counted: records found where these chunks are.
        foreign: records found between and after them, which this mirror did not write.
        foreign_at: the destination offset of the first one; None if there is none.
        unattributed: such records where ledger entries have expired: those may have named them.
        uncopied: records before the first copy, or where there is none, in a topic that the mirror
            has not created: somebody may have written them before it began.
        differing: chunks whose bytes differ from those that were produced, or which have another
            number of records that nothing explains.
        by_content: records of the chunks whose bytes are those that were produced.
        not_compared: records that are there, and whose content the digest says nothing about, by
            reason.
        not_verified: records that are not there, and may be gone, by reason. Each record that the
            ledger has is in one of these three, unless it differs.
        untimed: those of the records found whose timestamps the destination's brokers have set.
        truncated_at: where the destination's log begins although its retention explains no
            deletion of the chunks before; None if it begins before them.
        retention: of the topic, where the log was truncated.
        unlike_source: how the topic keeps records for another time than the source's.
        first_ms, last_ms: the timestamps of the oldest and the newest of the records found, by the
            headers of their batches; None if there are none.
    """

    range: OffsetRange
    scanned: OffsetRange | None = None
    recorded: int = 0
    counted: int = 0
    foreign: int = 0
    foreign_at: int | None = None
    unattributed: int = 0
    uncopied: int = 0
    differing: int = 0
    by_content: int = 0
    not_compared: Counter[str] = field(default_factory=Counter)
    not_verified: Counter[str] = field(default_factory=Counter)
    untimed: int = 0
    truncated_at: int | None = None
    retention: str = ""
    unlike_source: str = ""
    first_ms: int | None = None
    last_ms: int | None = None

    def add(self, other: DestinationCount) -> None:
        """Add what was counted of the same source topic-partition."""
        self.recorded += other.recorded
        self.counted += other.counted
        self.foreign += other.foreign
        self.unattributed += other.unattributed
        self.uncopied += other.uncopied
        self.differing += other.differing
        self.by_content += other.by_content
        self.not_compared.update(other.not_compared)
        self.not_verified.update(other.not_verified)
        self.untimed += other.untimed
        self.retention = self.retention or other.retention
        self.unlike_source = self.unlike_source or other.unlike_source
        self.foreign_at = _first(self.foreign_at, other.foreign_at)
        self.truncated_at = _first(self.truncated_at, other.truncated_at)
        self.date(other.first_ms, other.last_ms)
        self.scanned = _joined(self.scanned, other.scanned)

    def date(self, first_ms: int | None, last_ms: int | None) -> None:
        """Add the timestamps of the oldest and the newest of some records."""
        self.first_ms = min(_not_none(self.first_ms, first_ms), default=None)
        self.last_ms = max(_not_none(self.last_ms, last_ms), default=None)

    @property
    def by_count(self) -> int:
        """Records that are there, and of which nothing more is known."""
        return self.not_compared.total()

    @property
    def count_problems(self) -> list[str]:
        """What is wrong with the copies; empty if nothing is."""
        lines = []
        if self.foreign:
            lines.append(
                f"records at the destination that this mirror did not write: {self.foreign:,}"
            )
        if self.truncated_at is not None:
            lines.append(
                f"the destination's log begins at offset {self.truncated_at}, although"
                f" {self.retention}: records before it were deleted"
            )
        is_short = self.recorded - self.counted != self.not_verified.total()
        if is_short:
            lines.append(f"{self.recorded:,} records were committed, {self.counted:,} are there")
        if self.unlike_source and (is_short or self.truncated_at is not None):
            lines.append(f"the destination's topic has {self.unlike_source}; {_MAKE_ALIKE}")
        if self.differing and not is_short:
            lines.append(f"chunks whose bytes differ from what was committed: {self.differing}")
        return lines


@dataclass(slots=True)
class Recount(DestinationCount):
    """What was found for one source range: the sums of all destinations, and what the ledger says.

    Args:
        by_destination: the counts of each destination topic-partition that was read.
        coverage: of the range by the ledger; None if the caller judges it.
        skipped: source offsets without a record, by reason, according to the ledger.
        reencoded: records that were encoded again, according to the ledger.
        nodes: the source nodes from which the chunks were read.
        entries: of the chunks, in the order of their source offsets; empty if the caller knows.
        beyond: how many of the recorded ones are not of the range, so that ranges side by side
            count each once. Where a chunk skipped offsets, nobody knows which of its records are of
            the range: they are all of the one in which it ends.
        forged: ledger entries of the range that no checkpoint leads to; they count for nothing.
        replaced: the topic of the last copy, if it is not the one that was written to any more.
        gaps: accepted losses just before the range or within it, or after which no run copies what
            the range has left.
    """

    by_destination: dict[str, DestinationCount] = field(default_factory=dict)
    coverage: CoverageMap | None = None
    skipped: Counter[str] = field(default_factory=Counter)
    reencoded: int = 0
    nodes: set[str] = field(default_factory=set)
    entries: Sequence[LedgerEntry] = ()
    beyond: int = 0
    forged: int = 0
    replaced: str = ""
    gaps: list[str] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Records of the range, according to the ledger."""
        return self.recorded - self.beyond

    @property
    def unaccounted(self) -> int:
        """Source offsets that no chunk covers, and nothing explains why."""
        return self._offsets(OffsetKind.MISSING)

    @property
    def superseded(self) -> int:
        """Source offsets that no run copies: a loss was accepted after which they differ."""
        return self._offsets(OffsetKind.SUPERSEDED)

    @property
    def forgotten(self) -> int:
        """Source offsets that were copied, and whose ledger entries are gone."""
        return self._offsets(OffsetKind.FORGOTTEN)

    def _offsets(self, kind: OffsetKind) -> int:
        return 0 if self.coverage is None else self.coverage.counts[kind]

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        lines = [] if self.coverage is None else self.coverage.problems
        if self.replaced:
            lines.append(REPLACED.format(self.replaced))
        if self.forged:
            lines.append(f"ledger entries never committed with a checkpoint: {self.forged:,}")
        if len(self.by_destination) < 2:  # noqa: PLR2004 - one destination needs no name
            return lines + self.count_problems
        return lines + [
            f"{to}: {line}"
            for to, count in self.by_destination.items()
            for line in count.count_problems
        ]

    @property
    def records_seen(self) -> Coverage:
        """What became of the records that the ledger has."""
        return Coverage(
            self.recorded, self.by_content, self.by_count, not_verified=self.not_verified
        )

    @property
    def notes(self) -> list[str]:
        """What could not be found out."""
        lines = [records_gone(why, number) for why, number in self.not_verified.items()]
        lines += [
            f"{count:,} records were counted, not compared: {why}"
            for why, count in self.not_compared.items()
        ]
        if self.untimed:
            lines.append(f"{UNTIMED}: {self.untimed:,}")
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
        if self.unattributed:
            why = "because ledger entries of that time have expired"
            lines.append(f"records whose writer is not known, {why}: {self.unattributed:,}")
        lines += [
            f"records in {to} before the first copy, or where there is none: {count.uncopied:,}"
            for to, count in self.by_destination.items()
            if count.uncopied
        ]
        return lines


def records_gone(why: str, number: int) -> str:
    """Return the line about records that are not there, although nothing is wrong."""
    return f"{why}: {number:,} records are gone"


def gap_finding(where: str, gap: str) -> Finding:
    """Return what people are told of an accepted loss."""
    return warning(Kind.GAP, where, f"{gap}; the copy resumed after it")


def merged(whole: OffsetRange, counts: Iterable[DestinationCount]) -> Recount:
    """Return the recount of a range from the counts of its parts, in order."""
    total = Recount(whole)
    for count in counts:
        total.add(count)
        if count.scanned is not None:
            to = str(count.scanned.topic_partition)  # it becomes JSON
            total.by_destination.setdefault(to, DestinationCount(whole)).add(count)
    return total


def merged_with_ledger(
    whole: OffsetRange, counts: Iterable[DestinationCount], entries: Sequence[LedgerEntry]
) -> Recount:
    """Return what `merged` does, with what the ledger says of the range: all must be copied.

    Args:
        entries: that cover the range, of one history.
    """
    total = merged(whole, counts)
    total.coverage = coverage(whole, entries, whole.end)
    total.entries = [entry for entry in entries if not entry.gap]
    for entry in entries:
        total.beyond += _beyond(entry, whole)
        total.reencoded += entry.reencoded
        total.skipped.update(entry.skipped)
        total.nodes.add(entry.node)
    return total


def _beyond(entry: LedgerEntry, offset_range: OffsetRange) -> int:
    """How many records of a chunk are not of a range that it covers in part."""
    source = entry.source
    if entry.records < len(source):
        return 0 if source.end <= offset_range.end else entry.records
    return len(source) - (min(source.end, offset_range.end) - max(source.start, offset_range.start))


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def _not_none(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]


def _joined(offset_range: OffsetRange | None, other: OffsetRange | None) -> OffsetRange | None:
    """Return the offsets of both; those of the later one if they are in different topics."""
    if (
        offset_range is None
        or other is None
        or offset_range.topic_partition != other.topic_partition
    ):
        return other or offset_range
    start, end = min(offset_range.start, other.start), max(offset_range.end, other.end)
    return OffsetRange(offset_range.topic_partition, start, end)

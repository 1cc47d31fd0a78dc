"""Which source offsets an audit looks at, and what the ledger says of them; without I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from relay_pipelines.audit.request import Selection
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import LedgerEntry, OffsetRange, Skipped, TopicPartition
from relay_pipelines.settings.validation_errors import nearest

_SHOWN = 3
_WINDOWS_SHOWN = 10


class OffsetKind(StrEnum):
    """What became of a source offset."""

    COPIED = "copied"
    FILTERED = str(Skipped.FILTERED)
    QUARANTINED = str(Skipped.QUARANTINED)
    COMPACTION_GAP = str(Skipped.COMPACTION_GAP)
    ABORTED = str(Skipped.ABORTED)
    CONTROL = str(Skipped.CONTROL)
    LOST = str(Skipped.LOST)
    NOT_YET = "not_yet"
    MISSING = "missing"  # it must have been copied, but no ledger entry has it
    SUPERSEDED = "superseded"  # a loss was accepted after which it is another record
    FORGOTTEN = "forgotten"  # it was copied, and its ledger entry is gone


@dataclass(frozen=True, slots=True)
class Stretch:
    """The source offsets `[start, end)` of one ledger entry, or of none.

    An entry says how many offsets it skipped, not which. So the counts are those of the stretch.
    """

    start: int
    end: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """What the ledger says about one range.

    Args:
        range: the source offsets that were asked for.
        entries: the ledger entries of the history of its topic-partition, in the order of commits.
        copied_to: the source offset up to which there must be entries.
        covering: those entries that cover the range, in the order of their source offsets.
        stretches: in order, without a gap between them. The first and the last may reach beyond the
            range, because chunks do.
        duplicated: source offsets that more than one entry has.
        unbalanced: entries whose records and skipped offsets are not as many as their offsets.
        disordered: entries whose copies do not lie after those of the entry before them.
    """

    range: OffsetRange
    entries: tuple[LedgerEntry, ...] = ()
    copied_to: int = 0
    covering: tuple[LedgerEntry, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    duplicated: tuple[OffsetRange, ...] = ()
    unbalanced: tuple[OffsetRange, ...] = ()
    disordered: tuple[OffsetRange, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """Of the source."""
        return self.range.topic_partition

    @property
    def destination(self) -> TopicPartition | None:
        """Where the newest copies of its topic-partition are; None if no record was copied."""
        return next((entry.to for entry in reversed(self.entries) if entry.records), None)

    @property
    def chunks(self) -> list[LedgerEntry]:
        """The entries of chunks, not of losses, that cover the range, in the order of offsets."""
        return [entry for entry in self.covering if not entry.gap]

    @property
    def gaps(self) -> list[str]:
        """Accepted losses within the range."""
        return [entry.gap for entry in self.covering if entry.gap]

    @property
    def counts(self) -> Counter[str]:
        """The number of offsets by kind."""
        total: Counter[str] = Counter()
        for stretch in self.stretches:
            total.update(stretch.counts)
        return total

    def offsets(self, kind: OffsetKind) -> int:
        """Return the number of offsets of a kind, without counting the others."""
        return sum(stretch.counts.get(kind, 0) for stretch in self.stretches)

    @property
    def missing(self) -> list[OffsetRange]:
        """The offsets that no entry has, although the checkpoint is after them."""
        return [
            OffsetRange(self.topic_partition, stretch.start, stretch.end)
            for stretch in self.stretches
            if OffsetKind.MISSING in stretch.counts
        ]

    def explained(
        self, why: OffsetKind, before: int | None = None, *, since: int = 0
    ) -> CoverageMap:
        """Return the map with another kind for the offsets that are missing.

        Args:
            before: the source offset up to which; None for all.
            since: the source offset from which.
        """
        stretches: list[Stretch] = []
        for stretch in self.stretches:
            if OffsetKind.MISSING not in stretch.counts:
                stretches.append(stretch)
                continue
            first = min(max(stretch.start, since), stretch.end)
            last = stretch.end if before is None else min(max(first, before), stretch.end)
            pieces = (
                (stretch.start, first, OffsetKind.MISSING),
                (first, last, why),
                (last, stretch.end, OffsetKind.MISSING),
            )
            stretches += [_without_entry(*piece) for piece in pieces if piece[0] < piece[1]]
        return replace(self, stretches=tuple(stretches))

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        kinds = (
            ("source offsets are in no ledger entry", self.missing),
            ("source offsets are in several ledger entries", self.duplicated),
            ("source offsets are in entries whose counts do not add up", self.unbalanced),
            ("source offsets are in entries whose copies are out of order", self.disordered),
        )
        return [
            f"{sum(map(len, ranges)):,} {what}: {_shown(ranges)}"
            for what, ranges in kinds
            if ranges
        ]


def last_history(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries since the last loss after which offsets are other records.

    Args:
        entries: of one topic-partition, in the order of their commits.
    """
    history: list[LedgerEntry] = []
    for entry in entries:
        if entry.begins_anew:
            history.clear()
        history.append(entry)
    return history


def coverage(
    offset_range: OffsetRange, entries: Iterable[LedgerEntry], copied_to: int
) -> CoverageMap:
    """Return what the entries say about a range.

    Args:
        entries: of one history of its topic-partition.
        copied_to: the source offset up to which entries must exist: the checkpoint, as it was
            before the entries were read.
    """
    history = tuple(entries)
    ours = sorted(
        (entry for entry in history if entry.source.overlaps(offset_range)),
        key=lambda entry: entry.source,
    )
    stretches: list[Stretch] = []
    duplicated: list[OffsetRange] = []
    position = offset_range.start
    for entry in ours:
        start, end = entry.source.start, entry.source.end
        if start > position:
            stretches.append(_without_entry(position, start, OffsetKind.MISSING))
        if stretches and start < position:
            duplicated.append(replace(entry.source, end=min(end, position)))
        if end > position or not stretches:
            stretches.append(Stretch(start, end, _counts(entry)))
        position = max(position, end)
    for end, kind in (
        (min(offset_range.end, copied_to), OffsetKind.MISSING),
        (offset_range.end, OffsetKind.NOT_YET),
    ):
        if end > position:
            stretches.append(_without_entry(position, end, kind))
            position = end
    return CoverageMap(
        *(offset_range, history, copied_to, tuple(ours), tuple(stretches), tuple(duplicated)),
        tuple(entry.source for entry in ours if not _is_balanced(entry)),
        tuple(entry.source for entry in disordered(ours, {})),
    )


def disordered(
    entries: Iterable[LedgerEntry], ends: dict[TopicPartition, int]
) -> Iterator[LedgerEntry]:
    """Yield the entries whose copies do not lie after those of the entry before them.

    Args:
        ends: where the copies before the first entry end, where that is known.
    """
    for entry in entries:
        if entry.records:
            copies = entry.destination
            if copies.start < ends.get(copies.topic_partition, 0):
                yield entry
            ends[copies.topic_partition] = copies.end


def binned(stretches: Sequence[Stretch], most: int) -> list[Stretch]:
    """Return at most about so many stretches, by joining neighbours, for a picture of them."""
    if len(stretches) <= most:
        return list(stretches)
    width = max(1, (stretches[-1].end - stretches[0].start) // most)
    joined: list[Stretch] = []
    for stretch in stretches:
        if joined and stretch.end - joined[-1].start <= width:
            before = joined.pop()
            stretch = Stretch(  # noqa: PLW2901 - the joined one takes its place
                before.start, stretch.end, Counter(before.counts) + Counter(stretch.counts)
            )
        joined.append(stretch)
    return joined


def _without_entry(start: int, end: int, kind: OffsetKind) -> Stretch:
    return Stretch(start, end, {str(kind): end - start})


def _counts(entry: LedgerEntry) -> dict[str, int]:
    counts = {str(OffsetKind.COPIED): entry.records, **entry.skipped}
    return {kind: number for kind, number in counts.items() if number}


def _is_balanced(entry: LedgerEntry) -> bool:
    return (
        len(entry.source) == entry.records + sum(entry.skipped.values())
        and len(entry.destination) >= entry.records
        and bool(entry.records) == bool(len(entry.destination))
    )


def _shown(ranges: Sequence[OffsetRange]) -> str:
    more = len(ranges) - _SHOWN
    shown = ", ".join(
        f"[{offset_range.start}, {offset_range.end})" for offset_range in ranges[:_SHOWN]
    )
    return f"{shown} and {more} more" if more > 0 else shown


def select(
    selection: Selection, entries: Sequence[LedgerEntry], copied_to: Mapping[TopicPartition, int]
) -> list[CoverageMap]:
    """Return what the ledger says about the ranges to audit, in order; none is empty.

    Args:
        entries: what the ledger has of a mirror, in the order of commits.
        copied_to: the next offset of each checkpoint, read before the entries.

    Raises:
        ConfigError: the ledger has nothing of what is selected, or not all of it.
    """
    grouped: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.tp].append(entry)
    _require_known(selection, grouped)
    topics = []
    for tp, ledger_entries in sorted(grouped.items()):
        history = last_history(ledger_entries)
        covered = [entry for entry in history if len(entry.source)]
        if not selection.has(tp) or not covered:
            continue
        end = max(copied_to.get(tp, 0), *(entry.source.end for entry in covered))
        offset_range = _range(selection, tp, covered, end)
        if len(offset_range):
            topics.append(coverage(offset_range, history, min(end, offset_range.end)))
    if not topics:
        raise ConfigError(
            "the ledger has no copies in what is to be audited",
            remedy="see `relay ledger` for what it has",
        )
    return topics


def _range(
    selection: Selection, tp: TopicPartition, covered: Sequence[LedgerEntry], end: int
) -> OffsetRange:
    """Return the source offsets to audit in one topic-partition; empty if there are none."""
    if selection.by_entries:
        chosen = [entry.source for entry in covered if selection.wants(entry)]
        start = min((each.start for each in chosen), default=0)
        return OffsetRange(tp, start, max((each.end for each in chosen), default=0))
    first = min(entry.source.start for entry in covered)
    begin, stop = selection.offsets or (None, None)
    start = first if begin is None else begin
    if start < first:
        raise ConfigError(
            f"the ledger has no entry of {tp} before offset {first}: either the mirror began there,"
            " or the ledger no longer has older ones",
            remedy=f"audit from offset {first} on",
        )
    if start >= end:
        raise ConfigError(
            f"{tp} is copied up to offset {end}, and the range begins at {start}",
            remedy="name offsets that are copied; see `relay status`",
        )
    return OffsetRange(tp, start, end if stop is None else stop)


def no_entries(topic: str, topics: Iterable[str]) -> ConfigError:
    """Return the error for a topic of which the ledger has nothing.

    Args:
        topics: of which it has something.
    """
    return ConfigError(
        f"the ledger has no entries of the source topic {topic!r}",
        remedy=nearest(topic, topics, "topics"),
    )


def _require_known(
    selection: Selection, grouped: Mapping[TopicPartition, Sequence[LedgerEntry]]
) -> None:
    topics = {tp.topic for tp in grouped}
    if selection.topics and not topics.intersection(selection.topics):
        raise no_entries(selection.topics[0], topics)
    if selection.partition is not None and not any(map(selection.has, grouped)):
        (topic,) = selection.topics
        partitions = sorted(tp.partition for tp in grouped if tp.topic == topic)
        raise ConfigError(
            f"the ledger has no entries of {topic}-{selection.partition}",
            remedy=f"it has the partitions {', '.join(map(str, partitions))}",
        )
    require_window(selection.window, (entry for some in grouped.values() for entry in some))


def require_window(key: str | None, entries: Iterable[LedgerEntry]) -> None:
    """Refuse a window of which there is no entry, if one is named.

    Raises:
        ConfigError: there is none.
    """
    windows = {entry.window for entry in entries} - {""} if key else set()
    if key and key not in windows:
        raise ConfigError(
            f"the ledger has no entries of the window {key!r}",
            remedy=nearest(key, sorted(windows)[-_WINDOWS_SHOWN:], "windows")
            if windows
            else "no window copied anything that it still has; see `relay ledger`",
        )

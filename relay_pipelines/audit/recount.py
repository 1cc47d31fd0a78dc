"""The count check: compares the destination with the ledger, and the ledger with the source.

The destination must hold what the ledger says, and the ledger must cover every source offset. The
check reads the batch headers at the destination as a read_committed consumer sees them: counts that
a copy reports about itself would prove nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from relay_pipelines.audit.coverage import RangeIndex
from relay_pipelines.audit.retention import RETENTION_CONFIGS, ChunkCount, Retention
from relay_pipelines.audit.verdict import Coverage
from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.accounted import BeforeLedger, own_and_replayed, read_before_ledger
from relay_pipelines.ledger.chain import vouched_records
from relay_pipelines.ledger.checkpoint import Heads, read_heads, wait_until_stable
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, read_ledger
from relay_pipelines.model import (
    Cluster,
    CopyOptions,
    DestinationPosition,
    LedgerEntry,
    OffsetRange,
    Skipped,
    TopicPartition,
)
from relay_pipelines.protocol.admin import CLEANUP_POLICY, each_topic_configs, size_on_disk
from relay_pipelines.protocol.batch import Batch, BatchHeader
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    destination_client,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import FetchedSpan, read

UNTIMED = "timestamps that the destination's brokers have set"
REPLACED = "the destination topic {!r} was deleted and created again since the last copy"
NEEDED_CONFIGS = RETENTION_CONFIGS
"""The keys of a destination topic's configuration that a count needs."""


@dataclass(slots=True)
class Recount:
    """What was found for one source range.

    Args:
        range: the source offsets.
        scanned: the destination offsets that were read; None if there are no ledger entries.
        recorded: records that the ledger has for the chunks which cover the range; those may reach
            beyond it.
        counted: records found where these chunks are.
        foreign: records found between and after them, which this mirror did not write.
        foreign_at: the destination offset of the first one; None if there is none.
        uncopied: records before the first copy, or where there is none, in a topic that the mirror
            has not created: somebody may have written them before it began.
        unattributed: such records where ledger entries have expired: those may have named them.
        skipped: source offsets without a record, by reason, according to the ledger.
        nodes: the source nodes from which the chunks were read.
        unaccounted: source offsets that no chunk covers.
        superseded: such offsets that no run copies any more, because a loss was accepted after
            which they mean other records.
        forgotten: source offsets whose ledger entries retention has deleted.
        duplicated: source offsets that more than one chunk covers.
        forged: ledger entries of the range that no checkpoint leads to; they count for nothing.
        replaced: the topic of the last copy, if it is not the one that was written to any more.
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
        gaps: accepted losses just before the range or within it; with one, offsets may be missing.
        first_ms, last_ms: the timestamps of the oldest and the newest of the records found, by the
            headers of their batches; None if there are none.
        by_destination: the counts of each destination topic-partition that was read: each is judged
            by itself, because another topic's retention excuses nothing. The fields above are their
            sums.
        beyond: how many of the recorded ones are not of the range, so that ranges side by side
            count each once. Where a chunk skipped offsets, nobody knows which of its records are of
            the range: they are all of the one in which it ends.
    """

    range: OffsetRange
    scanned: OffsetRange | None = None
    recorded: int = 0
    counted: int = 0
    foreign: int = 0
    foreign_at: int | None = None
    unattributed: int = 0
    uncopied: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    rewritten: int = 0
    nodes: set[str] = field(default_factory=set)
    unaccounted: int = 0
    superseded: int = 0
    forgotten: int = 0
    duplicated: int = 0
    forged: int = 0
    replaced: str = ""
    differing: int = 0
    by_content: int = 0
    not_compared: Counter[str] = field(default_factory=Counter)
    not_verified: Counter[str] = field(default_factory=Counter)
    untimed: int = 0
    truncated_at: int | None = None
    retention: str = ""
    gaps: list[str] = field(default_factory=list)
    first_ms: int | None = None
    last_ms: int | None = None
    by_destination: dict[str, Recount] = field(default_factory=dict)
    beyond: int = 0

    def add(self, other: Recount) -> None:
        """Add what was counted at the destination, of the same source topic-partition."""
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
        self.foreign_at = _first(self.foreign_at, other.foreign_at)
        self.truncated_at = _first(self.truncated_at, other.truncated_at)
        self.first_ms = min(_known(self.first_ms, other.first_ms), default=None)
        self.last_ms = max(_known(self.last_ms, other.last_ms), default=None)
        self.scanned = _joined(self.scanned, other.scanned)

    def add_by_destination(self, counts: Mapping[str, Recount]) -> None:
        """Add what was counted in each destination topic-partition to the counts of that one."""
        for at, found in counts.items():
            self.by_destination.setdefault(at, Recount(self.range)).add(found)

    @property
    def records(self) -> int:
        """Records of the range, according to the ledger."""
        return self.recorded - self.beyond

    @property
    def by_count(self) -> int:
        """Records that are there, and of which nothing more is known."""
        return self.not_compared.total()

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        lines = []
        if self.unaccounted and not self.gaps:
            lines.append(f"{self.unaccounted:,} source offsets are in no ledger entry")
        if self.duplicated:
            lines.append(f"{self.duplicated:,} source offsets were committed twice")
        if self.replaced:
            lines.append(REPLACED.format(self.replaced))
        if self.forged:
            lines.append(f"ledger entries never committed with a checkpoint: {self.forged:,}")
        if len(self.by_destination) < 2:  # noqa: PLR2004 - one destination needs no name
            return lines + self._count_problems
        return lines + [
            f"{at}: {line}"
            for at, found in self.by_destination.items()
            for line in found._count_problems  # noqa: SLF001 - of the same class
        ]

    @property
    def _count_problems(self) -> list[str]:
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
        if self.recorded - self.counted != self.not_verified.total():
            lines.append(f"{self.recorded:,} records were committed, {self.counted:,} are there")
        elif self.differing:
            lines.append(f"chunks whose bytes differ from what was committed: {self.differing}")
        return lines

    @property
    def records_seen(self) -> Coverage:
        """What became of the records that the ledger has."""
        return Coverage(
            self.recorded, self.by_content, self.by_count, not_verified=self.not_verified
        )

    @property
    def notes(self) -> list[str]:
        """What could not be found out."""
        lines = [f"{why}: {gone:,} records are gone" for why, gone in self.not_verified.items()]
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
                f"{self.forgotten:,} source offsets were copied, and retention has deleted their"
                " ledger entries: nothing can verify them any more"
            )
        if self.unattributed:
            why = "because ledger entries of that time have expired"
            lines.append(f"records whose writer is not known, {why}: {self.unattributed:,}")
        lines += [
            f"records in {at} before the first copy, or where there is none: {found.uncopied:,}"
            for at, found in self.by_destination.items()
            if found.uncopied
        ]
        return lines


@dataclass(frozen=True, slots=True)
class Recounts:
    """The recounts of many ranges, by source topic-partition.

    Args:
        counted: what was found.
        errors: why a range could not be counted.
    """

    counted: dict[TopicPartition, Recount]
    errors: dict[TopicPartition, RelayError]

    @property
    def problems(self) -> list[str]:
        """What is wrong with what was counted, each with its topic-partition."""
        return [f"{at}: {line}" for at, found in self.counted.items() for line in found.problems]


def recount(
    mirror: str,
    ranges: Sequence[OffsetRange],
    destination: Cluster,
    options: CopyOptions,
    clock: Clock,
    committed_since_ms: int,
    generations: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Recounts:
    """Count the records of every non-empty range; one that cannot be counted stops no other.

    Args:
        committed_since_ms: nothing of these ranges was committed before; if the entries since do
            not cover them, the whole ledger is searched.
        generations: in which the ranges were planned, where it is not 0. The same offsets of
            another one, such as of a topic that was created again, are not counted.

    Raises:
        RelayError: the destination does not answer, or refuses the ledger.
    """
    wanted = [offset_range for offset_range in ranges if len(offset_range)]
    if not wanted:
        return Recounts({}, {})
    with destination_client(mirror, destination, options, clock, "recount") as client:

        def count(
            wanted: Sequence[OffsetRange], before: BeforeLedger | None = None
        ) -> dict[TopicPartition, Recount | RelayError]:
            ledger, forged, heads = _entries(
                *(client, mirror, wanted, options, clock, committed_since_ms, generations),
                whole=before is not None,
            )
            own, replayed = own_and_replayed(mirror, ledger)
            accounted = {} if before is None else before.accounted(ledger)
            entries, others = _by_source(own, generations)
            replayed += others
            found = recount_entries(wanted, entries, client, options, clock, replayed, accounted)
            _mark_superseded(found, entries, generations)
            _count_forged(found, forged, generations)
            _mark_replaced(found, client, partial(heads.copies, mirror))
            return dict(zip((each.topic_partition for each in wanted), found, strict=True))

        results = count(wanted)
        counted = [each for each in results.values() if isinstance(each, Recount)]
        if foreign := [each for each in counted if each.foreign or each.forged]:
            # others may have committed since the ledger was read, or replays before its entries
            copies = {each.scanned.topic_partition for each in foreign if each.scanned}
            look = partial(read_before_ledger, client, mirror, copies)
            before = client.retry(look)
            results |= count([each.range for each in foreign], before)
    return Recounts(
        {at: each for at, each in results.items() if isinstance(each, Recount)},
        {at: each for at, each in results.items() if isinstance(each, RelayError)},
    )


def recount_entries(
    ranges: Iterable[OffsetRange],
    entries: Mapping[TopicPartition, Sequence[LedgerEntry]],
    client: ClusterClient,
    options: CopyOptions,
    clock: Clock,
    replayed: Sequence[OffsetRange] = (),
    accounted: Mapping[TopicPartition, OffsetRange] = MappingProxyType({}),
) -> list[Recount | RelayError]:
    """Count the records of every range by entries that are known.

    Args:
        entries: of one history each, sorted by source offset; also those after the ranges, which
            say where their records end.
        replayed: as of `KnownEntries`.
        accounted: by destination topic-partition, as of `count_range`.

    Returns:
        for each range, in this order, what was found, or why it cannot be counted: an error that
        names a topic-partition is that of its range, any other one that of all ranges left.
    """
    known, settings = KnownEntries(entries, replayed), TopicSettings(client)

    def count(offset_range: OffsetRange) -> Recount:
        topics = _topics_of(known.covering(offset_range))
        configs = settings.of(topics, offset_range.topic_partition)
        return count_range(client, offset_range, known, configs, options, clock, accounted)

    counts = _Counts(count, list(ranges), clock)

    def count_left() -> None:
        settings.ask(_topics_of(entry for each in counts.left for entry in known.covering(each)))
        counts.attempt()

    try:
        client.retry(count_left, progress_at=lambda: counts.moved_at)
    except RelayError as error:
        counts.fail(error)
    return [counts.results[index] for index in sorted(counts.results)]


class _Counts:
    """The counts of ranges, in attempts that each try what is left.

    Attributes:
        results: by the index of the range.
        moved_at: when the last range was counted, as of `clock.monotonic()`.
    """

    def __init__(
        self, count: Callable[[OffsetRange], Recount], ranges: Sequence[OffsetRange], clock: Clock
    ) -> None:
        self._count = count
        self._clock = clock
        self._left = dict(enumerate(ranges))
        self.results: dict[int, Recount | RelayError] = {}
        self.moved_at = clock.monotonic()

    @property
    def left(self) -> list[OffsetRange]:
        """The ranges that are worth another attempt."""
        return [*self._left.values()]

    def attempt(self) -> None:
        """Count the ranges that are left.

        Raises:
            RelayError: an error that may pass; one of the whole cluster ends the attempt at once.
        """
        passing = None
        for index, offset_range in list(self._left.items()):
            try:
                self.results[index] = self._count(offset_range)
            except RelayError as error:
                if error.retryable and error.topic_partition is None:
                    raise
                self.results[index] = error
                if error.retryable:
                    passing = passing or error
                    continue
            del self._left[index]
            self.moved_at = self._clock.monotonic()
        if passing is not None:
            raise passing

    def fail(self, error: RelayError) -> None:
        """Give up what is left; what has no error of its own fails with this one."""
        for index in self._left:
            self.results.setdefault(index, error)


class TopicSettings:
    """The configurations that counts need, of destination topics.

    They are asked for together. A topic that does not exist, or that the user may not read, fails
    its own counts.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._configs: dict[str, Mapping[str, object]] = {}
        self._errors: dict[str, RelayError] = {}

    def ask(self, topics: Iterable[str]) -> None:
        """Ask for the topics that are not known.

        Raises:
            RelayError: the destination does not answer, or refuses.
        """
        unknown = sorted(set(topics) - self._configs.keys())
        found, self._errors = each_topic_configs(self._client, unknown, NEEDED_CONFIGS)
        self._configs |= {topic: found[topic] for topic in found.keys() - self._errors.keys()}

    def of(
        self, topics: Iterable[str], source: TopicPartition
    ) -> Mapping[str, Mapping[str, object]]:
        """Return what the count of a source topic-partition needs.

        Raises:
            RelayError: one of the topics cannot be read; it names the source topic-partition.
        """
        for topic in sorted(topics):
            if topic in self._errors:
                raise self._errors[topic].of(source)
        return self._configs


def _topics_of(entries: Iterable[LedgerEntry]) -> set[str]:
    return {entry.destination.topic_partition.topic for entry in entries}


def _entries(
    client: ClusterClient,
    mirror: str,
    wanted: Sequence[OffsetRange],
    options: CopyOptions,
    clock: Clock,
    since_ms: int,
    generations: Mapping[TopicPartition, int],
    *,
    whole: bool,
) -> tuple[list[LedgerEntry], list[LedgerEntry], Heads]:
    """Return the entries of the mirror and its replays for which checkpoints vouch, and the others.

    Those of replays that nobody can read are left out. The heads are those of the checkpoints.

    Args:
        whole: all that the ledger has, and not only those since `since_ms` if they are enough.
    """
    ask = partial(
        read_ledger,
        *(client.cluster, mirror, options, clock),
        with_replays=True,
        only_own_must_be_entries=True,
    )
    read = partial(read_heads, client, mirror)

    def vouched(
        since_ms: int | None, *, settled: bool
    ) -> tuple[list[LedgerEntry], list[LedgerEntry], Heads]:
        # before the ledger, which then has every entry that a head leads to
        heads = client.retry(partial(read, settled=settled))
        records = ask(since_ms, settled=settled)
        counted = vouched_records(records, heads)
        known = {(record.at, record.offset) for record in counted}
        others = [record.entry for record in records if (record.at, record.offset) not in known]
        return [record.entry for record in counted], others, heads

    if not whole:
        found, forged, heads = vouched(max(0, since_ms - CLOCK_SKEW_MS), settled=False)
        entries, _ = _by_source(own_and_replayed(mirror, found)[0], generations)
        if not any(
            _uncovered(offset_range, entries.get(offset_range.topic_partition, []))
            for offset_range in wanted
        ):
            return found, forged, heads
    return vouched(None, settled=True)


class KnownEntries:
    """Ledger entries in an order in which each range finds its own; made once for many ranges.

    Args:
        entries: by source topic-partition, sorted by source offset: those that cover the ranges,
            and all that wrote between and next after their copies.
        replayed: destination offsets that replays of the mirror wrote, which are not foreign.
    """

    def __init__(
        self,
        entries: Mapping[TopicPartition, Sequence[LedgerEntry]],
        replayed: Iterable[OffsetRange] = (),
    ) -> None:
        self._entries = entries
        self._sources = {
            at: RangeIndex([entry.source for entry in some]) for at, some in entries.items()
        }
        self._gaps = {at: [entry for entry in some if entry.gap] for at, some in entries.items()}
        written: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
        # of all sources: several may be pinned to one destination
        for entry in (entry for some in entries.values() for entry in some):
            if entry.records:
                written[entry.destination.topic_partition].append(entry.destination)
        self._written = _by_topic_partition(written)
        by_replays: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
        for each in replayed:
            by_replays[each.topic_partition].append(each)
        self._replayed = _by_topic_partition(by_replays)

    def covering(self, wanted: OffsetRange) -> list[LedgerEntry]:
        """Return the entries that have offsets of a range, in the order of source offsets."""
        at = wanted.topic_partition
        if at not in self._sources:
            return []
        found = [*self._sources[at].overlapping(wanted.start, wanted.end)]
        some = self._entries[at]
        return [some[position] for position in reversed(found) if len(some[position].source)]

    def gaps(self, at: TopicPartition) -> list[LedgerEntry]:
        """Return the accepted losses of a source topic-partition."""
        return self._gaps.get(at, [])

    def written(self, at: TopicPartition) -> RangeIndex:
        """Return where chunks are in a destination topic-partition."""
        return self._written.get(at) or RangeIndex([])

    def is_replayed(self, at: TopicPartition, offset: int) -> bool:
        """Whether a chunk of a replay contains the destination offset."""
        found = self._replayed[at].containing(offset) if at in self._replayed else iter(())
        return next(found, None) is not None  # a position may be 0


def count_range(
    client: ClusterClient,
    wanted: OffsetRange,
    known: KnownEntries,
    configs: Mapping[str, Mapping[str, object]],
    options: CopyOptions,
    clock: Clock,
    accounted: Mapping[TopicPartition, OffsetRange] = MappingProxyType({}),
) -> Recount:
    """Count the records of one range.

    Args:
        configs: `NEEDED_CONFIGS` by destination topic.
        accounted: by destination topic-partition, the offsets of which all entries are known; all
            offsets if it has none. Only within them, an unknown record is a foreign one.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    return _RangeCount(client, wanted, known, configs, options, clock, accounted).count()


def _by_topic_partition(
    ranges: Mapping[TopicPartition, Iterable[OffsetRange]],
) -> dict[TopicPartition, RangeIndex]:
    return {at: RangeIndex(sorted(some)) for at, some in ranges.items()}


def _by_source(
    entries: Iterable[LedgerEntry], generations: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, list[LedgerEntry]], list[OffsetRange]]:
    """Group the entries of these generations, and those that ended them, by source.

    Returns:
        the entries, sorted by source offset; and where the copies of other generations are.
    """
    grouped: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
    others = []
    for entry in entries:
        at = entry.source.topic_partition
        after = entry.generation - generations.get(at, 0)
        if after == 0 or (after == 1 and entry.gap and not len(entry.source)):
            grouped[at].append(entry)
        elif entry.records:
            others.append(entry.destination)
    by_source = {at: sorted(some, key=lambda entry: entry.source) for at, some in grouped.items()}
    return by_source, others


def _mark_replaced(
    results: Iterable[Recount | RelayError],
    client: ClusterClient,
    copies_of: Callable[[TopicPartition], DestinationPosition | None],
) -> None:
    """Note topics that were deleted and created again, by the ids that the checkpoints have."""
    for result in results:
        copies = copies_of(result.range.topic_partition) if isinstance(result, Recount) else None
        if isinstance(result, Recount) and copies and copies.topic_id:
            name = copies.topic_partition.topic
            topic_id = client.topic(name).topic_id if client.has_topic(name) else ""
            result.replaced = name if topic_id not in {"", copies.topic_id} else ""


def _count_forged(
    results: Iterable[Recount | RelayError],
    forged: Iterable[LedgerEntry],
    generations: Mapping[TopicPartition, int],
) -> None:
    """Count what was written to the ledger for the ranges, and no checkpoint leads to."""
    sources: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for entry in forged:
        at = entry.source.topic_partition
        if entry.generation == generations.get(at, 0):
            sources[at].append(entry.source)
    for result in results:
        if isinstance(result, Recount):
            wanted = result.range
            result.forged = sum(
                len(source) > 0 and source.start < wanted.end and source.end > wanted.start
                for source in sources.get(wanted.topic_partition, ())
            )


def _mark_superseded(
    results: Iterable[Recount | RelayError],
    entries: Mapping[TopicPartition, Sequence[LedgerEntry]],
    generations: Mapping[TopicPartition, int],
) -> None:
    """Tell offsets that no run copies any more from those that are missing."""
    for result in results:
        if isinstance(result, Recount):
            at = result.range.topic_partition
            ended = (each.generation > generations.get(at, 0) for each in entries.get(at, ()))
            result.superseded = result.unaccounted if any(ended) else 0


def _uncovered(wanted: OffsetRange, entries: Sequence[LedgerEntry]) -> int:
    """How many offsets no entry covers; the entries are sorted by source offset."""
    position, missing = wanted.start, 0
    for entry in entries:
        start, end = max(entry.source.start, position), min(entry.source.end, wanted.end)
        if end > start:
            missing += start - position
            position = end
    return missing + wanted.end - position


@dataclass
class _Counting:
    """What counting the records of a range needs."""

    _client: ClusterClient
    _wanted: OffsetRange
    _known: KnownEntries
    _configs: Mapping[str, Mapping[str, object]]
    _options: CopyOptions
    _clock: Clock
    _accounted: Mapping[TopicPartition, OffsetRange]


@dataclass
class _RangeCount(_Counting):
    """Counts the records of one range at the destination."""

    def __post_init__(self) -> None:
        self._ours = self._known.covering(self._wanted)
        self._result = Recount(self._wanted)

    def count(self) -> Recount:
        result, ours = self._result, self._ours
        result.unaccounted = _uncovered(result.range, ours)
        # offsets may be uncovered because a loss was accepted since
        result.gaps = [
            entry.gap
            for entry in self._known.gaps(result.range.topic_partition)
            if _concerns(entry.source, result.range)
            or (result.unaccounted and not len(entry.source))
        ]
        result.duplicated = sum(len(entry.source) for entry in ours) - _covered(
            entry.source for entry in ours
        )
        if ours:
            result.beyond = sum(_beyond(entry, result.range) for entry in ours)
            result.rewritten = sum(entry.rewritten for entry in ours)
            for entry in ours:
                result.skipped.update(entry.skipped)
                result.nodes.add(entry.node)
            self._scan()
        return result

    def _scan(self) -> None:
        """Count in every destination topic-partition: a renamed topic has copies in several."""
        placed: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        for entry in self._ours:
            # the first chunks of a mirror have no destination offsets while they have no record
            if entry.destination.start >= 0 and not entry.gap:
                placed[entry.destination.topic_partition].append(entry)
        for at, own in placed.items():
            own.sort(key=lambda entry: entry.destination)
            found = _DestinationCount(
                *(self._client, self._wanted, self._known, self._configs),
                *(self._options, self._clock, self._accounted),
            ).count(at, own)
            self._result.add(found)
            self._result.by_destination[str(at)] = found  # str: it becomes JSON


@dataclass
class _DestinationCount(_Counting):
    """Counts the records of one range in one destination topic-partition, by its settings."""

    def __post_init__(self) -> None:
        self._result = Recount(self._wanted)

    def count(self, at: TopicPartition, own: Sequence[LedgerEntry]) -> Recount:
        """Count the chunks of a topic-partition.

        Args:
            own: the entries of the range, sorted by destination offset.
        """
        result = self._result
        result.recorded = sum(entry.records for entry in own)
        begin, last = own[0].destination.start, max(entry.destination.end for entry in own)
        self._wait_until_readable(at, last)
        low = self._client.list_offsets([at], EARLIEST, READ_COMMITTED)[at]
        end = self._end(at, last)
        if low > begin:
            self._explain_deletion(at, low, own)
        result.scanned = OffsetRange(at, max(low, begin), max(low, begin, end))
        is_compacted = "compact" in self._values(at.topic).get(CLEANUP_POLICY, "")
        chunks = [ChunkCount(entry, is_compacted) for entry in own]
        self._count_records(result.scanned, chunks)
        for chunk in chunks:
            self._judge(chunk, 0 if result.truncated_at is not None else low)
        return result

    def _explain_deletion(self, at: TopicPartition, low: int, own: Sequence[LedgerEntry]) -> None:
        """Find out whether the topic's retention can have deleted the records before `low`."""
        retention = Retention.of(self._values(at.topic))
        size_bytes = partial(size_on_disk, self._client, at)
        if not retention.explains(own, low, self._clock.now_ms(), size_bytes):
            self._result.truncated_at, self._result.retention = low, str(retention)

    def _judge(self, chunk: ChunkCount, low: int) -> None:
        """Add what is there of a chunk to the result.

        Args:
            low: up to where retention may have deleted records.
        """
        result = self._result
        result.untimed += chunk.untimed
        missing = chunk.missing(low)
        if missing is None:
            result.differing += 1
            return
        result.not_verified.update(missing)
        if why := chunk.why_not_compared(missing):
            result.not_compared.update({why: chunk.records} if chunk.records else {})
        elif chunk.has_its_digest:
            result.by_content += chunk.records
        else:
            result.differing += 1

    def _count_records(self, scanned: OffsetRange, chunks: Sequence[ChunkCount]) -> None:
        """Count our records and foreign ones.

        Args:
            chunks: in the order of their destination offsets.
        """
        index = RangeIndex([chunk.entry.destination for chunk in chunks])
        for span in _spans(self._client, scanned, self._options):
            if span.skipped is Skipped.COMPACTION_GAP:
                for position in index.overlapping(span.start, span.end):
                    chunks[position].add_holes(span.start, span.end)
            if span.run is None or span.skipped is not None:
                continue
            batch = Batch(span.run.first, span.run.data)
            start = batch.header.base_offset
            chunk = next((chunks[position] for position in index.containing(start)), None)
            if chunk is not None and chunk.is_own(batch):
                chunk.add(batch)
                self._result.counted += batch.header.records
                self._date(batch.header)
            elif not self._is_of_others(scanned.topic_partition, chunk, start):
                self._add_unknown(scanned.topic_partition, batch.header)

    def _add_unknown(self, at: TopicPartition, header: BatchHeader) -> None:
        """Count records that no entry names; after the accounted offsets, one may name them yet."""
        result, offset, accounted = self._result, header.base_offset, self._accounted.get(at)
        if accounted is not None and offset < accounted.start:
            result.unattributed += header.records
        elif accounted is None or offset < accounted.end:
            result.foreign_at = offset if result.foreign_at is None else result.foreign_at
            result.foreign += header.records

    def _date(self, header: BatchHeader) -> None:
        result, first, last = self._result, header.first_timestamp_ms, header.max_timestamp_ms
        if first is not None:
            result.first_ms = min(first, first if result.first_ms is None else result.first_ms)
        if last >= 0:
            result.last_ms = max(last, last if result.last_ms is None else result.last_ms)

    def _wait_until_readable(self, at: TopicPartition, last: int) -> None:
        """Wait for the markers of our commit, and of earlier transactions of others."""
        high = self._client.list_offsets([at], LATEST, READ_UNCOMMITTED)[at]
        wait_until_stable(self._client, at, min(last, high))

    def _end(self, at: TopicPartition, last: int) -> int:
        """Where the mirror's next chunk begins; after the last one, the end of the destination."""
        start = self._known.written(at).next_start(last)
        ends = [] if start is None else [start]
        accounted = self._accounted.get(at)
        if accounted is not None:
            ends.append(max(last, accounted.end))
        end = min([*ends, self._client.list_offsets([at], LATEST, READ_COMMITTED)[at]])
        # copies of which nothing is known may follow for long
        return min(last, end) if accounted is not None and accounted.start >= end else end

    def _is_of_others(self, at: TopicPartition, chunk: ChunkCount | None, offset: int) -> bool:
        """Whether another source's chunk, or a replay's, contains the offset."""
        written = self._known.written(at)
        ours = None if chunk is None else chunk.entry.destination
        return any(
            written.ranges[position] != ours for position in written.containing(offset)
        ) or self._known.is_replayed(at, offset)

    def _values(self, topic: str) -> dict[str, str]:
        return {
            key: str(getattr(config, "value", ""))
            for key, config in self._configs.get(topic, {}).items()
        }


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def _known(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]


def _joined(one: OffsetRange | None, other: OffsetRange | None) -> OffsetRange | None:
    """Return the offsets of both; those of the later one if they are in different topics."""
    if one is None or other is None or one.topic_partition != other.topic_partition:
        return other or one
    start, end = min(one.start, other.start), max(one.end, other.end)
    return OffsetRange(one.topic_partition, start, end)


def _concerns(gap: OffsetRange, wanted: OffsetRange) -> bool:
    """Whether the gap is just before the range, or within it."""
    return gap.start < wanted.end and gap.end >= wanted.start


def _beyond(entry: LedgerEntry, wanted: OffsetRange) -> int:
    """How many records of a chunk are not of a range that it covers in part."""
    source = entry.source
    if entry.records < len(source):
        return 0 if source.end <= wanted.end else entry.records
    return len(source) - (min(source.end, wanted.end) - max(source.start, wanted.start))


def _covered(ranges: Iterable[OffsetRange]) -> int:
    total, position = 0, -1
    for offset_range in sorted(ranges):
        total += max(0, offset_range.end - max(offset_range.start, position))
        position = max(position, offset_range.end)
    return total


def _spans(
    client: ClusterClient, wanted: OffsetRange, options: CopyOptions
) -> Iterator[FetchedSpan]:
    for spans in read(client, wanted, options.fetch_max_bytes):
        yield from spans

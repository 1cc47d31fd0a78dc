"""The count check of windows and replays: counts source ranges right after they were copied.

It reads the part of the ledger that was written since, and the rest only if that is not enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from relay_pipelines.audit.coverage import OffsetKind, coverage
from relay_pipelines.audit.part_count import count_ranges
from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.recount_parts import KnownEntries
from relay_pipelines.audit.retention import Configs
from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.accounted import BeforeLedger, own_and_replayed, read_before_ledger
from relay_pipelines.ledger.chain import vouched_records
from relay_pipelines.ledger.checkpoint import Heads, read_heads
from relay_pipelines.ledger.ledger_topic import ENTRIES_LOST
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, Since, read_ledger
from relay_pipelines.model import Cluster, CopyOptions, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.clock import Clock

Generations = Mapping[TopicPartition, int]


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
        return [f"{tp}: {line}" for tp, count in self.counted.items() for line in count.problems]


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What the ledger has of a mirror and its replays.

    Args:
        entries: those for which checkpoints vouch.
        forged: the others. Those of replays that nobody can read are left out.
        heads: those of the checkpoints.
    """

    entries: Sequence[LedgerEntry]
    forged: Sequence[LedgerEntry]
    heads: Heads


def recount(
    mirror: str,
    ranges: Sequence[OffsetRange],
    destination: Cluster,
    options: CopyOptions,
    clock: Clock,
    committed_since_ms: int,
    generations: Generations = MappingProxyType({}),
    ledger_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    source_configs: Configs = MappingProxyType({}),
) -> Recounts:
    """Count the records of every non-empty range; one that cannot be counted stops no other.

    Args:
        committed_since_ms: nothing of these ranges was committed before; if the entries since do
            not cover them, the whole ledger is searched.
        generations: in which the ranges were planned, where it is not 0. The same offsets of
            another one, such as of a topic that was created again, are not counted.
        ledger_ends: where the ledger ended when the window before began to copy, if that is known:
            the entries since are tried first.
        source_configs: what the copies follow, as `followed` returns it.

    Raises:
        RelayError: the destination does not answer, or refuses the ledger.
    """
    offset_ranges = [offset_range for offset_range in ranges if len(offset_range)]
    if not offset_ranges:
        return Recounts({}, {})
    with destination_client(mirror, destination, options, clock, "recount") as client:
        windows = _WindowCount(client, committed_since_ms, generations, ledger_ends, source_configs)
        results = windows.count(offset_ranges)
        counted = [each for each in results.values() if isinstance(each, Recount)]
        if doubtful := [each for each in counted if each.tally.foreign or each.forged]:
            # others may have committed since the ledger was read, or replays before its entries
            copies = {each.scanned.topic_partition for each in doubtful if each.scanned}
            before = client.retry(partial(read_before_ledger, client, mirror, copies))
            results |= windows.count([each.range for each in doubtful], before)
    return Recounts(
        {tp: each for tp, each in results.items() if isinstance(each, Recount)},
        {tp: each for tp, each in results.items() if isinstance(each, RelayError)},
    )


@dataclass(frozen=True, slots=True)
class _WindowCount:
    """Counts ranges by what the ledger has of them, as the arguments of `recount` say."""

    client: ClusterClient
    since_ms: int
    generations: Generations
    ledger_ends: Mapping[TopicPartition, int]
    source_configs: Configs = field(default_factory=dict)

    def count(
        self, ranges: Sequence[OffsetRange], before: BeforeLedger | None = None
    ) -> dict[TopicPartition, Recount | RelayError]:
        """Count ranges.

        Args:
            before: what the destination held before the ledger is read, which is read as a whole
                then. Without it, every record that no entry names is taken for a foreign one.
        """
        ledger = self._ledger(ranges, whole=before is not None)
        own, replayed = own_and_replayed(self.client.mirror, ledger.entries)
        accounted = {} if before is None else before.accounted(ledger.entries)
        entries, others = _by_source(own, self.generations)
        known = KnownEntries(entries, (), [*replayed, *others], accounted, self.source_configs)
        results = count_ranges(self.client, ranges, known)
        by_source = dict(zip((each.topic_partition for each in ranges), results, strict=True))
        counted = {tp: each for tp, each in by_source.items() if isinstance(each, Recount)}
        forged: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        for entry in ledger.forged:
            forged[entry.source.topic_partition].append(entry)
        for tp, result in counted.items():
            self._explain(result, entries.get(tp, []), forged[tp])
        self._mark_replaced(counted, ledger.heads)
        return by_source

    def _ledger(self, ranges: Sequence[OffsetRange], *, whole: bool) -> _Ledger:
        """Return the entries since the window before, since the plan, or all: what covers them."""
        planned_at = max(0, self.since_ms - CLOCK_SKEW_MS)
        known = [] if whole else [since for since in (self.ledger_ends, planned_at) if since]
        for since in known:
            ledger = self._read(since, settled=False)
            own, _ = own_and_replayed(self.client.mirror, ledger.entries)
            entries, _ = _by_source(own, self.generations)
            if not any(
                coverage(
                    offset_range, entries.get(offset_range.topic_partition, ()), offset_range.end
                ).missing
                for offset_range in ranges
            ):
                return ledger
        return self._read(None, settled=True)

    def _read(self, since: Since, *, settled: bool) -> _Ledger:
        client = self.client
        # before the ledger, which then has every entry that a head leads to
        heads = client.retry(partial(read_heads, client, client.mirror, settled=settled))
        records = read_ledger(
            client,
            since,
            settled=settled,
            with_replays=True,
            only_own_must_be_entries=True,
        )
        vouched = vouched_records(records, heads)
        known = {(record.at, record.offset) for record in vouched}
        forged = [record.entry for record in records if (record.at, record.offset) not in known]
        return _Ledger([record.entry for record in vouched], forged, heads)

    def _explain(
        self, result: Recount, entries: Sequence[LedgerEntry], forged: Iterable[LedgerEntry]
    ) -> None:
        """Add what the ledger says besides: losses, and entries that were never committed.

        Args:
            entries: of the topic-partition, in the generation of the range, and what ended it.
        """
        offsets, generation = result.range, self.generations.get(result.range.topic_partition, 0)
        if result.coverage and any(entry.generation > generation for entry in entries):
            # what precedes the last chunk had been copied before the loss
            copied = (entry.source.end for entry in entries if entry.generation == generation)
            since = max(copied, default=0)
            result.coverage = result.coverage.explained(OffsetKind.SUPERSEDED, since=since)
        for entry in entries:
            if result.coverage and entry.gap == ENTRIES_LOST:
                result.coverage = result.coverage.explained(
                    OffsetKind.FORGOTTEN, entry.source.start
                )
        is_explained = result.superseded or result.forgotten
        result.gaps = [
            entry.gap
            for entry in entries
            if entry.gap
            if _concerns(entry.source, offsets) or (is_explained and not len(entry.source))
        ]
        result.forged = sum(
            entry.generation == generation and entry.source.overlaps(offsets) for entry in forged
        )

    def _mark_replaced(self, counted: Mapping[TopicPartition, Recount], heads: Heads) -> None:
        """Note topics that were deleted and created again, by the ids that the checkpoints have."""
        copies = {
            tp: position
            for tp in counted
            if (position := heads.copies(self.client.mirror, tp)) and position.topic_id
        }
        topics = {position.topic_partition.topic for position in copies.values()}
        topic_ids = self.client.retry(partial(self._topic_ids, topics)) if topics else {}
        for tp, position in copies.items():
            topic = position.topic_partition.topic
            is_other = topic_ids.get(topic, "") not in {"", position.topic_id}
            counted[tp].replaced = topic if is_other else ""

    def _topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of those that exist; empty if the brokers do not report one."""
        client = self.client
        return {topic: client.topic(topic).topic_id for topic in client.existing(topics)}


def _by_source(
    entries: Iterable[LedgerEntry], generations: Generations
) -> tuple[dict[TopicPartition, list[LedgerEntry]], list[OffsetRange]]:
    """Group the entries of these generations, and those that ended them, by source.

    Returns:
        the entries, sorted by source offset; and where the copies of other generations are.
    """
    grouped: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
    others = []
    for entry in entries:
        tp = entry.source.topic_partition
        after = entry.generation - generations.get(tp, 0)
        if after == 0 or (after == 1 and entry.begins_anew):
            grouped[tp].append(entry)
        elif entry.records:
            others.append(entry.destination)
    by_source = {
        tp: sorted(ledger_entries, key=lambda entry: entry.source)
        for tp, ledger_entries in grouped.items()
    }
    return by_source, others


def _concerns(gap: OffsetRange, offset_range: OffsetRange) -> bool:
    """Whether the gap is just before the range, or within it."""
    return gap.start < offset_range.end and gap.end >= offset_range.start

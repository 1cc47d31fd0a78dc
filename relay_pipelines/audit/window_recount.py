"""The count check of windows and replays: counts source ranges right after they were copied.

It looks twice at most: at what the ledger has got since, and, where that is not plainly good, at
the whole ledger, as an audit does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from relay_pipelines.audit.claims import Claims
from relay_pipelines.audit.coverage import OffsetKind
from relay_pipelines.audit.part_count import count_ranges
from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.retention import Configs
from relay_pipelines.audit.source_logs import destination_topics
from relay_pipelines.errors import DataLossError, RelayError
from relay_pipelines.ledger.accounted import BeforeLedger, ledger_kept_since_ms, read_before_ledger
from relay_pipelines.ledger.chain import (
    not_counted,
    not_of_checkpoint,
    verify_chain,
    vouched_records,
)
from relay_pipelines.ledger.checkpoint import home, key_of
from relay_pipelines.ledger.ledger_topic import ENTRIES_LOST, TOPIC, LedgerRecord
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, LedgerReader, Since
from relay_pipelines.ledger.state_table import StateTable, read_any_state
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
        committed_since_ms: nothing of these ranges was committed before.
        generations: in which the ranges were planned, where it is not 0. The same offsets of
            another one, such as of a topic that was created again, are not counted.
        ledger_ends: where the ledger ended when the window before began to copy; if that is known,
            the first look begins there, else at `committed_since_ms`.
        source_configs: what the copies follow, as `followed` returns it.

    Raises:
        RelayError: the destination does not answer, or refuses the ledger.
    """
    offset_ranges = [offset_range for offset_range in ranges if len(offset_range)]
    if not offset_ranges:
        return Recounts({}, {})
    with destination_client(mirror, destination, options, clock, "recount") as client:
        count = partial(_count, client, generations, source_configs)
        since = ledger_ends or max(0, committed_since_ms - CLOCK_SKEW_MS)
        results = count(offset_ranges, _read(client, since))
        counted = [each for each in results.values() if isinstance(each, Recount)]
        if doubtful := [each for each in counted if each.problems]:
            # others may have committed since the ledger was read, or replays before its entries
            copies = {each.scanned.topic_partition for each in doubtful if each.scanned}
            before = client.retry(partial(read_before_ledger, client, mirror, copies))
            ledger = _read(client)
            kept = client.retry(partial(ledger_kept_since_ms, client))
            before = replace(before, kept_since_ms=kept)
            results |= count([each.range for each in doubtful], ledger, before)
    return Recounts(
        {tp: each for tp, each in results.items() if isinstance(each, Recount)},
        {tp: each for tp, each in results.items() if isinstance(each, RelayError)},
    )


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What the ledger has of a mirror and its replays.

    Args:
        records: all of them. Those of replays that nobody can read are left out.
        vouched: those for which checkpoints vouch.
        forged: those that no checkpoint leads to.
        heads: those of the checkpoints.
    """

    records: Sequence[LedgerRecord]
    vouched: Sequence[LedgerRecord]
    forged: Sequence[LedgerRecord]
    heads: StateTable


def _read(client: ClusterClient, since: Since = None) -> _Ledger:
    """Read what the ledger has got since; all of it, once open transactions have ended, if None."""
    settled = since is None
    ask_heads = partial(read_any_state, client, settled=settled)
    reader = LedgerReader(client, with_replays=True, only_own_must_be_entries=True)

    def ask_records() -> list[LedgerRecord]:
        return list(reader.forward(since, settled=settled))

    # before the ledger, which then has every entry that a head leads to
    heads = client.retry(ask_heads)
    # retention may delete the oldest entries before they are read
    ask = partial(client.retry, ask_records, also=(DataLossError,))
    records = ask()
    vouched = vouched_records(records, heads)
    forged = not_counted(records, vouched)
    if forged and settled:  # or they were committed since the heads were read
        heads_since = client.retry(ask_heads)
        forged = not_counted(forged, vouched_records(ask(), heads_since))
    return _Ledger(records, vouched, forged, heads)


def _count(
    client: ClusterClient,
    generations: Generations,
    source_configs: Configs,
    ranges: Sequence[OffsetRange],
    ledger: _Ledger,
    before: BeforeLedger | None = None,
) -> dict[TopicPartition, Recount | RelayError]:
    """Count ranges by what the ledger has.

    Args:
        before: what the destination held before the whole ledger was read. Without it, every record
            that no entry names is taken for a foreign one, and nothing explains missing entries.
    """
    mirror, entries = client.mirror, [record.entry for record in ledger.vouched]
    accounted = {} if before is None else before.accounted(entries)
    claims = Claims(mirror, entries, accounted, source_configs)
    histories: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.source):
        tp = entry.source.topic_partition
        after = entry.generation - generations.get(tp, 0)
        # those of the generation, and what ended it
        if entry.mirror == mirror and (after == 0 or (after == 1 and entry.begins_anew)):
            histories[tp].append(entry)
    covered = [
        (each, [entry for entry in histories[each.topic_partition] if _covers(entry, each)])
        for each in ranges
    ]
    results = dict(
        zip(
            (each.topic_partition for each in ranges),
            count_ranges(client, covered, claims),
            strict=True,
        )
    )
    counted = {tp: each for tp, each in results.items() if isinstance(each, Recount)}
    for tp, result in counted.items():
        generation = generations.get(tp, 0)
        if before is not None:
            explain(result, histories[tp], generation)
            _explain_expired(result, generation, mirror, ledger, before)
        result.gaps = _gaps(result, histories[tp])
    for record in ledger.forged:
        entry = record.entry
        if found := counted.get(entry.source.topic_partition):
            is_of_range = entry.source.overlaps(found.range)
            generation = generations.get(entry.source.topic_partition, 0)
            found.forged += entry.generation == generation and is_of_range
    _mark_replaced(client, counted, ledger.heads)
    return results


def _covers(entry: LedgerEntry, offset_range: OffsetRange) -> bool:
    return bool(len(entry.source)) and entry.source.overlaps(offset_range)


def explain(result: Recount, entries: Sequence[LedgerEntry], generation: int) -> None:
    """Say why offsets are in no entry: a loss was accepted, or entries were lost.

    Args:
        entries: of the topic-partition, in the generation of the range, and what ended it.
    """
    if result.coverage and any(entry.generation > generation for entry in entries):
        # what precedes the last chunk had been copied before the loss
        copied = (entry.source.end for entry in entries if entry.generation == generation)
        since = max(copied, default=0)
        result.coverage = result.coverage.explained(OffsetKind.SUPERSEDED, since=since)
    for entry in entries:
        if result.coverage and entry.gap == ENTRIES_LOST:
            result.coverage = result.coverage.explained(OffsetKind.FORGOTTEN, entry.source.start)


def _explain_expired(
    result: Recount, generation: int, mirror: str, ledger: _Ledger, before: BeforeLedger
) -> None:
    """Tell offsets whose ledger entries retention has deleted from those that are missing."""
    tp = result.range.topic_partition
    checkpoint = ledger.heads.checkpoint(mirror, tp)
    if checkpoint is None or not result.unaccounted:
        return
    head = checkpoint.ledger_head
    records = [
        record
        for record in ledger.records
        if (record.entry.mirror, record.entry.source.topic_partition) == (mirror, tp)
        if record.entry.number <= head.number  # later ones were committed since
    ]
    kept_since_ms = before.kept_since_ms.get(home(TOPIC, key_of(mirror, tp)), 0)
    chain = verify_chain(tp, records, head, kept_since_ms)
    if chain.breaks or not_of_checkpoint(chain, checkpoint) or not chain.expired:
        return
    oldest = chain.records[0].entry if chain.records else None
    forget(result, oldest, generation)


def forget(result: Recount, oldest: LedgerEntry | None, generation: int) -> None:
    """Say that offsets were in entries which have expired, those before the oldest one left."""
    if oldest is None or oldest.generation > generation:
        first = None
    else:  # of a later generation, no entry has expired
        first = oldest.source.start if oldest.generation == generation else 0
    if result.coverage:
        result.coverage = result.coverage.explained(OffsetKind.FORGOTTEN, first)


def _gaps(result: Recount, entries: Iterable[LedgerEntry]) -> list[str]:
    """Return the losses just before the range or within it, or that explain what is missing."""
    offsets, is_explained = result.range, result.superseded or result.forgotten
    return [
        entry.gap
        for entry in entries
        if entry.gap
        if (entry.source.start < offsets.end and entry.source.end >= offsets.start)
        or (is_explained and not len(entry.source))
    ]


def _mark_replaced(
    client: ClusterClient, counted: Mapping[TopicPartition, Recount], heads: StateTable
) -> None:
    """Note topics that were deleted and created again, by the ids that the checkpoints have."""
    checkpoints = {tp: heads.checkpoint(client.mirror, tp) for tp in counted}
    copies = (each.copies for each in checkpoints.values() if each and each.copies)
    topics = {each.topic_partition.topic for each in copies if each.topic_id}
    if topics:
        there = client.retry(partial(destination_topics, client, topics))
        for tp, each in checkpoints.items():
            counted[tp].replaced = there.replaced(each)

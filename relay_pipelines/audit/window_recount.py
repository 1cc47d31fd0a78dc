"""The count check of windows and replays: counts source ranges right after they were copied.

It looks twice at most: at what the ledger has got since, and, where that is not plainly good, at
the whole ledger, as an audit does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from relay_pipelines.audit.claims import Claims, accounted
from relay_pipelines.audit.coverage import OffsetKind
from relay_pipelines.audit.part_count import count_ranges
from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.retention import Configs
from relay_pipelines.audit.source_logs import destination_topics
from relay_pipelines.errors import DataLossError, RelayError
from relay_pipelines.ledger.chain import vouched
from relay_pipelines.ledger.ledger_topic import ENTRIES_LOST
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, LedgerReader, Since
from relay_pipelines.ledger.state_table import read_any_state
from relay_pipelines.ledger.verified import VerifiedLedger, verified_ledger
from relay_pipelines.model import (
    Checkpoint,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.protocol.client import ClusterClient

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
    client: ClusterClient,
    ranges: Sequence[OffsetRange],
    committed_since_ms: int,
    generations: Generations = MappingProxyType({}),
    ledger_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    source_configs: Configs = MappingProxyType({}),
) -> Recounts:
    """Count the records of every non-empty range; one that cannot be counted stops no other.

    Args:
        client: of the destination, for the mirror or replay.
        committed_since_ms: nothing of these ranges was committed before.
        generations: in which the ranges were planned, where it is not 0. The same offsets of
            another one, such as of a topic that was created again, are not counted.
        ledger_ends: where the ledger ended when the window before began to copy; if that is known,
            the first look begins there, else at `committed_since_ms`.
        source_configs: what the copies follow, as `followed` returns it.
    """
    offset_ranges = [offset_range for offset_range in ranges if len(offset_range)]
    if not offset_ranges:
        return Recounts({}, {})
    count = partial(_count, client, generations, source_configs)
    since = ledger_ends or max(0, committed_since_ms - CLOCK_SKEW_MS)
    results = count(offset_ranges, _newest(client, since, offset_ranges))
    counted = [result for result in results.values() if isinstance(result, Recount)]
    if doubtful := [each for each in counted if each.problems]:
        # others may have committed since the ledger was read, or replays before its entries
        scanned = (part.scanned for each in doubtful for part in each.counts)
        copies = {offsets.topic_partition for offsets in scanned if offsets}
        look = partial(verified_ledger, client, copies, only_own_must_be_entries=True)
        # retention may delete the oldest entries before they are read
        ledger = client.retry(look, also=(DataLossError,))
        results |= count([each.range for each in doubtful], ledger)
    return Recounts(
        {tp: each for tp, each in results.items() if isinstance(each, Recount)},
        {tp: each for tp, each in results.items() if isinstance(each, RelayError)},
    )


def _newest(client: ClusterClient, since: Since, ranges: Iterable[OffsetRange]) -> VerifiedLedger:
    """Read what the ledger has got since, without its chains."""
    # before the ledger, which then has every entry that a head leads to
    heads = client.retry(partial(read_any_state, client))
    reader = LedgerReader(client, with_replays=True, only_own_must_be_entries=True)
    # retention may delete the oldest entries before they are read
    records = client.retry(lambda: list(reader.forward(since)), also=(DataLossError,))
    counted, others = vouched(records, heads)
    newest = {tp: heads.checkpoint(client.mirror, tp) for tp in (r.topic_partition for r in ranges)}
    return VerifiedLedger(
        client.mirror,
        "",
        checkpoints={tp: known for tp, known in newest.items() if known},
        entries=[record.entry for record in counted],
        unvouched=[record.entry for record in others],
    )


def _count(
    client: ClusterClient,
    generations: Generations,
    source_configs: Configs,
    ranges: Sequence[OffsetRange],
    ledger: VerifiedLedger,
) -> dict[TopicPartition, Recount | RelayError]:
    """Count ranges by what the ledger has.

    Without chains, every record that no entry names is taken for a foreign one, and nothing
    explains missing entries.
    """
    mirror, entries, is_whole = client.mirror, ledger.entries, bool(ledger.chains)
    claims = Claims(mirror, entries, accounted(ledger) if is_whole else {}, source_configs)
    histories: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.source):
        tp = entry.tp
        after = entry.generation - generations.get(tp, 0)
        # those of the generation, and what ended it
        if entry.mirror == mirror and (after == 0 or (after == 1 and entry.begins_anew)):
            histories[tp].append(entry)
    covered = [
        (each, [entry for entry in histories[each.topic_partition] if entry.source.overlaps(each)])
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
        if is_whole:
            explain(result, histories[tp], generation)
            _explain_expired(result, generation, ledger)
        result.gaps = _gaps(result, histories[tp])
    for entry in ledger.unvouched:
        tp = entry.tp
        if count := counted.get(tp):
            is_of_range = entry.source.overlaps(count.range)
            count.forged += entry.generation == generations.get(tp, 0) and is_of_range
    _mark_replaced(client, counted, ledger.checkpoints)
    return results


def explain(result: Recount, entries: Sequence[LedgerEntry], generation: int) -> None:
    """Say why offsets are in no entry: a loss was accepted, or entries were lost.

    Args:
        entries: of the topic-partition, in the generation of the range, and what ended it.
    """
    if any(entry.generation > generation for entry in entries):
        # what precedes the last chunk had been copied before the loss
        copied = (entry.source.end for entry in entries if entry.generation == generation)
        since = max(copied, default=0)
        result.coverage = result.coverage.explained(OffsetKind.SUPERSEDED, since=since)
    for entry in entries:
        if entry.gap == ENTRIES_LOST:
            result.coverage = result.coverage.explained(OffsetKind.FORGOTTEN, entry.source.start)


def _explain_expired(result: Recount, generation: int, ledger: VerifiedLedger) -> None:
    """Tell offsets whose ledger entries retention has deleted from those that are missing."""
    chain = ledger.chains.get(result.range.topic_partition)
    if chain and chain.expired and not any(not each.replay for each in chain.breaks):
        forget(result, chain.records[0].entry if chain.records else None, generation)


def forget(result: Recount, oldest: LedgerEntry | None, generation: int) -> None:
    """Say that offsets were in entries which have expired, those before the oldest one left."""
    if oldest is None or oldest.generation > generation:
        first = None
    else:  # of a later generation, no entry has expired
        first = oldest.source.start if oldest.generation == generation else 0
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
    client: ClusterClient,
    counted: Mapping[TopicPartition, Recount],
    checkpoints: Mapping[TopicPartition, Checkpoint],
) -> None:
    """Note topics that were deleted and created again, by the ids that the checkpoints have."""
    copies = (checkpoints[tp].copies for tp in counted if tp in checkpoints)
    topics = {copy.topic_partition.topic for copy in copies if copy and copy.topic_id}
    if topics:
        there = client.retry(partial(destination_topics, client, topics))
        for tp, each in counted.items():
            each.gone = [*filter(None, [there.replaced(checkpoints.get(tp))])]

"""An audit of one mirror: coverage by the ledger, recount, and comparison of both sides.

`begin` runs on the driver and finds what to read; `Audit.add` takes what the tasks found.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from relay_pipelines.errors import ConfigError, SourceError
from relay_pipelines.model import (
    Cluster,
    CopyOptions,
    LedgerEntry,
    OffsetRange,
    RecordPolicy,
    Skipped,
    TopicPartition,
)
from relay_pipelines.protocol.admin import CLEANUP_POLICY, topic_configs
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.clients import destination_client, source_client
from relay_pipelines.snapshot.cluster_snapshot import read_checkpoints
from relay_pipelines.state.checkpoint import REPLAY
from relay_pipelines.verify.chain import REMEDY, Chain
from relay_pipelines.verify.chunks import AuditJob, ChunkResult, Client, ComparedChunk
from relay_pipelines.verify.coverage import CoverageMap, Kind, coverage
from relay_pipelines.verify.recount import NEEDED_CONFIGS, UNTIMED, Recount
from relay_pipelines.verify.recount_parts import (
    PartResult,
    RecountPart,
    by_destination,
    merged,
    parts_of,
)
from relay_pipelines.verify.retention import Retention
from relay_pipelines.verify.selection import Selected, Selection, select
from relay_pipelines.verify.uncopied import uncopied
from relay_pipelines.verify.verdict import (
    UNEXPLAINED,
    UNREADABLE,
    Coverage,
    Verdict,
    judge,
    total,
)
from relay_pipelines.verify.verified_ledger import VerifiedLedger, read_verified_ledger

BY_RECORD = "record by record"
BY_KEY = "key by key, because it is compacted"
_NOT_COMPARED = "not compared: "
_PART_BYTES = 256 << 20  # its batches are counted, which is fast
_LEFT_OUT = (Skipped.FILTERED, Skipped.QUARANTINED)

Configs = Mapping[str, Mapping[str, str]]


class Level(StrEnum):
    """How much an audit reads."""

    LEDGER = "ledger"
    RECOUNT = "recount"
    FULL = "full"
    SAMPLE = "sample"

    @property
    def compares(self) -> bool:
        """Whether both sides are read."""
        return self in {Level.FULL, Level.SAMPLE}


@dataclass(slots=True)
class PartitionAudit:
    """What an audit found in one topic-partition.

    Args:
        coverage: by the ledger.
        chain: what the verification of its ledger entries found.
        level: of the audit.
        destination: the topic-partition with the copies; None if no record was copied.
        parts: what to count at the destination.
        counted: the parts that were counted so far.
        rule: how its chunks are compared; empty if they are not.
        uncompared: how many records are in no chunk to compare, by reason.
        chunks: the chunks to compare.
        results: of those that were compared so far.
        lost: why the copies are gone as a whole; empty if they are not.
    """

    coverage: CoverageMap
    chain: Chain
    level: Level
    destination: TopicPartition | None = None
    parts: list[RecountPart] = field(default_factory=list)
    counted: list[PartResult] = field(default_factory=list)
    rule: str = ""
    uncompared: Counter[str] = field(default_factory=Counter)
    chunks: list[ComparedChunk] = field(default_factory=list)
    results: list[ChunkResult] = field(default_factory=list)
    lost: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        """Of the source."""
        return self.coverage.range.topic_partition

    @property
    def recount(self) -> Recount | None:
        """The sum of the parts; None if not all were counted."""
        is_whole = sum(part.recount is not None for part in self.counted) >= len(self.parts)
        return self.counted_so_far if is_whole else None

    @property
    def counted_so_far(self) -> Recount | None:
        """The sum of the parts that could be counted; None if none could."""
        counted = sorted(self.counted, key=lambda part: part.range)
        recounts = [part.recount for part in counted if part.recount is not None]
        if not recounts:
            return None
        return merged(
            OffsetRange(self.topic_partition, counted[0].range.start, counted[-1].range.end),
            recounts,
        )

    @property
    def records(self) -> int:
        """Records that are the same on both sides, or gone for a later one of their key."""
        return sum(result.records for result in self.results)

    @property
    def first_difference(self) -> ChunkResult | None:
        """The chunk with the first difference, by the source's offsets."""
        differing = [result for result in self.results if result.difference]
        return min(differing, key=lambda result: result.chunk.source, default=None)

    @property
    def verdict(self) -> Verdict:
        """What was found, with what it rests on."""
        return verdict_of(self.level, [self])

    @property
    def records_seen(self) -> Coverage:
        """What became of the records that the ledger has in the range."""
        copied = self.coverage.counts[Kind.COPIED]
        ledger = Coverage(entries=len(self.chain.records), expired=self.chain.expired)
        recount = self.counted_so_far
        if self.level.compares:
            seen = ledger + self._compared(copied)
        elif self.level is Level.RECOUNT and recount is not None:
            seen = ledger + replace(recount.records_seen, records=copied)
        else:
            seen = ledger + Coverage(copied, left_out=0 if self.level is Level.RECOUNT else copied)
        if self.errors:
            return seen.explained(UNREADABLE)
        return seen if self.problems else seen.explained(UNEXPLAINED)

    def _compared(self, copied: int) -> Coverage:
        """Return what became of the records of the chunks that are compared."""
        not_verified = Counter(self.uncompared)
        for result in self.results:
            if why := result.unread or (result.error and UNREADABLE):
                not_verified[why] += result.chunk.records
            not_verified.update(result.not_verified)
        sampled = sum(chunk.records for chunk in self.chunks) + self.uncompared.total()
        left_out = copied - sampled if self.level is Level.SAMPLE else 0
        same = sum(min(result.records, result.chunk.records) for result in self.results)
        return Coverage(max(copied, sampled), same, left_out=left_out, not_verified=not_verified)

    @property
    def problems(self) -> list[str]:
        """What is wrong; empty if nothing is."""
        lines = [f"{broken.what_and_where}; {REMEDY}" for broken in self.chain.breaks]
        lines += [*self.coverage.problems, *filter(None, [self.lost])]
        recount = self.counted_so_far
        if recount is not None:
            lines += recount.problems
            if recount.foreign_at is not None:
                counts = recount.by_destination.items()
                at = next((to for to, each in counts if each.foreign), str(self.destination))
                there = f"{at} at offset {recount.foreign_at}"
                lines.append(f"the first record that this mirror did not write is in {there}")
        first = self.first_difference
        if first is not None and first.difference is not None:
            differing = sum(result.difference is not None for result in self.results)
            chunk = first.chunk
            lines.append(
                f"differing chunks: {differing:,} of {len(self.results):,}; the first is"
                f" [{chunk.source.start}, {chunk.source.end}): {first.difference.what}"
            )
        return lines

    @property
    def notes(self) -> list[str]:
        """What people may not expect, and what could not be compared."""
        lines = [f"{gap}; the copy resumed after it" for gap in self.coverage.gaps]
        recount = self.counted_so_far
        lines += self._untimed if recount is None else recount.notes
        unread = Counter(self.uncompared)
        for result in self.results:
            if result.unread:
                unread[result.unread] += result.chunk.records
        lines += [f"{count:,} records were not compared: {why}" for why, count in unread.items()]
        if self.chain.lost:
            lines.append(
                f"ledger entries that were lost, as `relay restore` has noted: {self.chain.lost:,};"
                " what was copied before cannot be audited"
            )
        if self.chain.expired:
            lines.append(
                f"ledger entries that retention has deleted: {self.chain.expired:,}; what was"
                " copied before cannot be audited"
            )
        return lines

    @property
    def _untimed(self) -> list[str]:
        untimed = sum(result.untimed for result in self.results)
        return [f"{UNTIMED}: {untimed:,}"] if untimed else []

    @property
    def errors(self) -> list[str]:
        """Why something could not be read; each line once."""
        errors = {result.error for result in self.results} | {part.error for part in self.counted}
        return sorted(errors - {""})


@dataclass(slots=True)
class Audit:
    """What an audit found in one mirror.

    Args:
        share: of the chunks that were compared, from 0 to 1.
        seed: that chose them; empty if all were.
        strict: whether whatever is noted, or not verified, is a difference.
    """

    mirror: str
    level: Level
    job: AuditJob
    partitions: dict[TopicPartition, PartitionAudit]
    share: float = 1.0
    seed: str = ""
    seconds: float = 0.0
    strict: bool = False

    @property
    def exit_code(self) -> int:
        """Of a command: 0 if it passes, 4 for a difference, 1 if something could not be read."""
        return self.verdict.exit_code(strict=self.strict)

    @property
    def topics(self) -> dict[str, list[PartitionAudit]]:
        """The topic-partitions of each source topic."""
        grouped: dict[str, list[PartitionAudit]] = defaultdict(list)
        for at, found in self.partitions.items():
            grouped[at.topic].append(found)
        return grouped

    @property
    def work(self) -> list[ComparedChunk | RecountPart]:
        """All that is to be compared and counted, in order."""
        wanted: list[ComparedChunk | RecountPart] = []
        for found in self.partitions.values():
            wanted += [*found.parts, *found.chunks]
        return wanted

    @property
    def problems(self) -> list[str]:
        """What is wrong, with its topic-partition; empty if nothing is."""
        return [f"{at}: {line}" for at, found in self.partitions.items() for line in found.problems]

    @property
    def verdict(self) -> Verdict:
        """What was found, with what it rests on."""
        return verdict_of(self.level, self.partitions.values())

    @property
    def errors(self) -> list[str]:
        """Why something could not be read."""
        return [f"{at}: {line}" for at, found in self.partitions.items() for line in found.errors]

    def add(self, chunks: Iterable[ChunkResult], parts: Iterable[PartResult] = ()) -> None:
        """Take the results of a task."""
        for result in chunks:
            self.partitions[result.chunk.source.topic_partition].results.append(result)
        for part in parts:
            self.partitions[part.range.topic_partition].counted.append(part)


def verdict_of(level: Level, partitions: Collection[PartitionAudit]) -> Verdict:
    """Return the verdict on some topic-partitions of an audit."""
    return judge(
        total(each.records_seen for each in partitions),
        differs=any(each.problems for each in partitions),
        failed=any(each.errors for each in partitions),
        noted=any(each.notes for each in partitions),
        reads=level is not Level.LEDGER,
    )


def default_seed(clock: Clock) -> str:
    """Return today's date in UTC: all samples of a day are the same unless a seed is given."""
    return str(dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC).date())


def begin(
    name: str,
    mirror: Mirror,
    selection: Selection,
    level: Level,
    clock: Clock,
    *,
    share: float = 1.0,
    seed: str = "",
    client: Client = Client.RELAY,
    strict: bool = False,
) -> Audit:
    """Verify the ledger, and find what to count and to compare. On the driver.

    Args:
        share, seed: for the level `sample`, which of the chunks to compare.
        client: what reads both sides to compare them.
        strict: as of `Audit`.

    Raises:
        ConfigError: the ledger does not have what is to be audited.
        TamperedError: a record of the ledger is no entry.
        RelayError: a cluster does not answer, or refuses.
    """
    ledger = read_verified_ledger(name, mirror, clock)
    reads = level is not Level.LEDGER
    there = _at_destination(mirror, ledger, clock) if reads else _Destination()
    entries = [record.entry for chain in ledger.chains.values() for record in chain.records]
    broken = {at for at, chain in ledger.chains.items() if chain.breaks and selection.has(at)}
    expired = _expired(selection, ledger)
    selected = _select(selection, entries, ledger, broken, expired)
    nodes = _readable_nodes(name, mirror, clock) if level.compares else mirror.nodes
    job = AuditJob(name, nodes, mirror.destination_cluster, mirror.copy_options, client)
    chosen = (share, seed) if level is Level.SAMPLE else (1.0, "")
    audit = Audit(name, level, job, {}, *chosen, strict=strict)
    for each in selected:
        found = audit.partitions[each.topic_partition] = PartitionAudit(
            coverage(each.range, each.entries, each.copied_to),
            ledger.chains[each.topic_partition],
            level,
            _destination(each.entries),
        )
        if gone := there.gone.intersection(_topics_of_copies(each)):
            found.lost = f"the destination has no topic {min(gone)!r} any more"
    for at in sorted((broken | expired) - audit.partitions.keys()):
        nothing = CoverageMap(OffsetRange(at, 0, 0))
        audit.partitions[at] = PartitionAudit(nothing, ledger.chains[at], level)
    selected = [each for each in selected if not audit.partitions[each.topic_partition].lost]
    if level in {Level.RECOUNT, Level.FULL}:
        _plan_recount(audit, selected, entries, ledger)
        _plan_uncopied(audit, selection, selected, entries, ledger)
    if level.compares:
        configs = _at_source(audit, mirror, clock), there.configs
        shared = _shared(entries) | {written.topic_partition for written in ledger.replayed}
        _plan(audit, mirror, selected, configs, shared)
        for at, found in audit.partitions.items():
            ids = ledger.checkpoints[at].topic_ids if at in ledger.checkpoints else {}
            found.chunks = [
                replace(chunk, topic_id=ids.get(chunk.node, "")) for chunk in found.chunks
            ]
    return audit


def _readable_nodes(name: str, mirror: Mirror, clock: Clock) -> tuple[Cluster, ...]:
    """Return the nodes to compare with: none in quarantine, unless all are."""
    if len(mirror.nodes) == 1:
        return mirror.nodes
    quarantined = read_checkpoints(name.partition(REPLAY)[0], mirror, clock).quarantined
    nodes = [node for node in mirror.nodes if node.name not in quarantined]
    return tuple(nodes) or mirror.nodes


def _expired(selection: Selection, ledger: VerifiedLedger) -> set[TopicPartition]:
    """Return the topic-partitions that were copied, and whose entries retention has all deleted.

    Nobody knows their windows and times any more.
    """
    if selection.by_entries:
        return set()
    return {
        at
        for at, chain in ledger.chains.items()
        if selection.has(at) and not chain.records and not chain.breaks
    }


def _select(
    selection: Selection,
    entries: Sequence[LedgerEntry],
    ledger: VerifiedLedger,
    broken: Collection[TopicPartition],
    expired: Collection[TopicPartition],
) -> list[Selected]:
    """Return the ranges to audit; none if the entries that had them are gone.

    Args:
        broken: topic-partitions whose entries are not those that were committed.
        expired: as of `_expired`.
    """
    copied_to = {at: checkpoint.next_offset for at, checkpoint in ledger.checkpoints.items()}
    try:
        return select(selection, entries, copied_to)
    except ConfigError:
        has_entries = any(selection.has(entry.source.topic_partition) for entry in entries)
        if not broken and (has_entries or not expired):
            raise
        return []


def _destination(entries: Sequence[LedgerEntry]) -> TopicPartition | None:
    written = [entry.destination.topic_partition for entry in entries if entry.records]
    return written[-1] if written else None


def _topics_of_copies(selected: Selected) -> set[str]:
    """Return the topics with copies of a range, and the one that has the newest copies."""
    newest = _destination(selected.entries)
    topics = {entry.destination.topic_partition.topic for entry in selected.copied if entry.records}
    return topics | ({newest.topic} if newest else set())


def _plan_recount(
    audit: Audit,
    selected: Sequence[Selected],
    entries: Sequence[LedgerEntry],
    ledger: VerifiedLedger,
) -> None:
    """Find the parts to count at the destination.

    Args:
        entries: all that the ledger has.
    """
    shared = _shared(entries)
    written: dict[TopicPartition | None, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        if entry.records and entry.destination.topic_partition in shared:
            written[entry.destination.topic_partition].append(entry)
    replayed: dict[TopicPartition | None, list[OffsetRange]] = defaultdict(list)
    for one in ledger.replayed:
        replayed[one.topic_partition].append(one)
    accounted = ledger.accounted()
    for some in written.values():
        some.sort(key=lambda entry: entry.destination)
    for each in selected:
        found = audit.partitions[each.topic_partition]
        own = sorted(each.entries, key=lambda entry: entry.source)
        for part, to, entries_there in by_destination(replace(each.range, end=each.copied_to), own):
            others = [
                entry
                for entry in written[to]
                if entry.source.topic_partition != each.topic_partition
            ]
            known = accounted.get(to, OffsetRange(to, 0, 0)) if to else None
            found.parts += parts_of(part, entries_there, others, _PART_BYTES, known, replayed[to])


def _plan_uncopied(
    audit: Audit,
    selection: Selection,
    selected: Sequence[Selected],
    entries: Sequence[LedgerEntry],
    ledger: VerifiedLedger,
) -> None:
    """Find what to look at where nothing was copied, unless only a part of a topic is audited."""
    if selection.by_entries or (selection.start, selection.end) != (None, None):
        return
    audited: dict[TopicPartition, Selected] = {}
    for each in reversed(selected):  # the first one is that to which others are added
        for to in {entry.destination.topic_partition for entry in each.entries}:
            audited[to] = audited[TopicPartition(to.topic, -1)] = each
    topics, others = {at.topic for at in audited}, ledger.before.others
    accounted = {at: known for at, known in ledger.accounted().items() if at not in others}
    for there in uncopied(topics, accounted, entries, ledger.replayed, ledger.created):
        to = there.offsets.topic_partition
        each = audited.get(to) or audited[TopicPartition(to.topic, -1)]
        if selection.partition is None or to in audited:
            nothing = replace(each.range, end=each.range.start)
            part = RecountPart(nothing, {}, 0, uncopied=there)
            audit.partitions[each.topic_partition].parts.append(part)


def _plan(
    audit: Audit,
    mirror: Mirror,
    selected: Sequence[Selected],
    configs: tuple[Configs, Configs],
    shared: Container[TopicPartition],
) -> None:
    """Find the chunks to compare, and by which rule.

    Args:
        configs: by topic, at the source and at the destination.
        shared: destination topic-partitions to which several sources are copied.
    """
    for each in selected:
        found = audit.partitions[each.topic_partition]
        if found.destination is None:
            continue
        copied: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        for entry in each.copied:
            copied[entry.destination.topic_partition].append(entry)
        rules, chunks = [], []
        for to, entries in copied.items():
            rule, some = _compared(audit, mirror, each, (to, entries), configs, shared)
            rules.append(rule)
            chunks += some
            if not some:
                records = sum(entry.records for entry in entries)
                found.uncompared[rule.removeprefix(_NOT_COMPARED)] += records
        found.rule = "; ".join(dict.fromkeys(rules))
        found.chunks = _sampled(audit, chunks)


def _compared(
    audit: Audit,
    mirror: Mirror,
    selected: Selected,
    copied: tuple[TopicPartition, list[LedgerEntry]],
    configs: tuple[Configs, Configs],
    shared: Container[TopicPartition],
) -> tuple[str, list[ComparedChunk]]:
    """Return the rule for the copies in one destination topic-partition, and their chunks."""
    to, entries = copied
    topic = selected.topic_partition.topic
    here, there = configs[0].get(topic), configs[1].get(to.topic, {})
    kinds = None if here is None else here.get(CLEANUP_POLICY, ""), there.get(CLEANUP_POLICY, "")
    why = _why_not(audit, mirror.record_policy(topic), kinds, is_shared=to in shared)
    if why:
        return why, []
    retention = Retention.of(there)
    if _is_compacted(kinds):
        has_records = any(entry.records for entry in entries)
        chunks = [_compacted(selected, to, kinds, retention)] if has_records else []
        return BY_KEY, chunks
    return BY_RECORD, [_chunk(entry, shared, retention) for entry in entries]


def _why_not(
    audit: Audit, policy: RecordPolicy, kinds: tuple[str | None, str], *, is_shared: bool
) -> str:
    """Return why a topic's records cannot be compared; empty if they can.

    Args:
        kinds: cleanup.policy on both sides; None if the source has no such topic.
        is_shared: whether several sources are copied to the same destination.
    """
    compacted = _is_compacted(kinds)
    reasons = {
        "the source no longer has the topic": kinds[0] is None,
        "select or transform may change the records": bool(policy.transform or policy.select),
        "it is compacted and filtered": compacted and bool(policy.filters or policy.where),
        "other topic-partitions are copied there, too, and librdkafka does not show which records"
        " are whose": is_shared and audit.job.client is Client.LIBRDKAFKA,
        "it is compacted, and other topic-partitions are copied there, too": is_shared
        and compacted,
        "it is compacted, so a sample would have to read all of it": compacted
        and audit.level is Level.SAMPLE,
    }
    return next((f"{_NOT_COMPARED}{why}" for why, holds in reasons.items() if holds), "")


def _is_compacted(kinds: Iterable[str | None]) -> bool:
    return any("compact" in kind for kind in kinds if kind)


def _sampled(audit: Audit, chunks: list[ComparedChunk]) -> list[ComparedChunk]:
    """Return the share of the chunks that the seed chooses, in order; at least one."""
    if audit.level is not Level.SAMPLE or not chunks:
        return chunks
    chooser = random.Random(f"{audit.seed}/{chunks[0].source.topic_partition}")  # noqa: S311 - no secret
    chosen = chooser.sample(range(len(chunks)), max(1, round(audit.share * len(chunks))))
    return [chunks[index] for index in sorted(chosen)]


def _chunk(
    entry: LedgerEntry, shared: Container[TopicPartition], retention: Retention
) -> ComparedChunk:
    copies = entry.destination
    return ComparedChunk(
        entry.source,
        # before its first record, a topic-partition has no destination offsets
        copies if entry.records else OffsetRange(copies.topic_partition, 0, 0),
        entry.records,
        entry.size_bytes,
        sum(entry.skipped.get(str(reason), 0) for reason in _LEFT_OUT),
        is_shared=copies.topic_partition in shared,
        retention=retention,
        entry=entry,
        node=entry.node,
    )


def _compacted(
    each: Selected,
    destination: TopicPartition,
    kinds: tuple[str | None, str],
    retention: Retention,
) -> ComparedChunk:
    """Return all of a topic-partition: any record may be gone for one that is outside a range."""
    copied = [
        entry
        for entry in each.entries
        if entry.records and entry.destination.topic_partition == destination
    ]
    start, end = copied[0].source.start, max(entry.source.end for entry in copied)
    copies = min(e.destination.start for e in copied), max(e.destination.end for e in copied)
    newest = max(copied, key=lambda entry: entry.source)
    # where the range begins and ends in the log of one node
    is_of_one = start == 0 or len({entry.node for entry in copied}) == 1
    return ComparedChunk(
        OffsetRange(each.topic_partition, start, end),
        OffsetRange(destination, *copies),
        sum(entry.records for entry in copied),
        sum(entry.size_bytes for entry in copied),
        compacted_at_source=_is_compacted(kinds[:1]),
        compacted_at_destination=_is_compacted(kinds[1:]),
        retention=retention,
        node=newest.node if is_of_one else "",
    )


def _shared(entries: Iterable[LedgerEntry]) -> set[TopicPartition]:
    """Return the destination topic-partitions to which several sources are copied."""
    sources: dict[TopicPartition, set[TopicPartition]] = defaultdict(set)
    for entry in entries:
        if entry.records:
            sources[entry.destination.topic_partition].add(entry.source.topic_partition)
    return {to for to, copied in sources.items() if len(copied) > 1}


def _at_source(audit: Audit, mirror: Mirror, clock: Clock) -> Configs:
    """Return the configurations of the topics that the source has, from a node that answers."""
    topics = {at.topic for at in audit.partitions}
    options = mirror.copy_options
    *others, last = mirror.nodes
    for node in others:
        with suppress(SourceError):
            client = source_client(audit.mirror, node, options.request_timeout_ms, "audit")
            return _configs(client, topics, audit.mirror, options, clock, patient=False)
    client = source_client(audit.mirror, last, options.request_timeout_ms, "audit")
    return _configs(client, topics, audit.mirror, options, clock)


@dataclass(frozen=True, slots=True)
class _Destination:
    """The destination's topics.

    Args:
        gone: topics to which records were copied, and which are not there any more.
        configs: of the others, by topic.
    """

    gone: frozenset[str] = frozenset()
    configs: Configs = field(default_factory=dict)


def _at_destination(mirror: Mirror, ledger: VerifiedLedger, clock: Clock) -> _Destination:
    options = mirror.copy_options
    topics = {checkpoint.destination.topic for checkpoint in ledger.checkpoints.values()}
    topics |= {  # after a changed name, copies are in the former topic, too
        record.entry.destination.topic_partition.topic
        for chain in ledger.chains.values()
        for record in chain.records
        if record.entry.records
    }
    client = destination_client(ledger.mirror, mirror.destination_cluster, options, "audit")
    configs = _configs(client, topics, ledger.mirror, options, clock)
    return _Destination(frozenset(topics - configs.keys()), configs)


def _configs(
    client: ClusterClient,
    topics: Iterable[str],
    name: str,
    options: CopyOptions,
    clock: Clock,
    *,
    patient: bool = True,
) -> Configs:
    def ask() -> Configs:
        existing = sorted(client.existing(topics))
        return {
            topic: {key: str(config.value) for key, config in values.items()}
            for topic, values in topic_configs(client, existing, NEEDED_CONFIGS).items()
        }

    with client:
        return retry(ask, name, options, clock, client, patient=patient)

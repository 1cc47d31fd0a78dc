"""An audit of one mirror: coverage by the ledger, recount, and comparison of both sides.

`begin` runs on the driver and finds what to read; `Audit.add` takes what the tasks found.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relay_pipelines.audit.chunks import AuditJob
from relay_pipelines.audit.claims import Claims, RecountPart, accounted
from relay_pipelines.audit.comparison import ComparedChunk, Comparison, Difference
from relay_pipelines.audit.coverage import CoverageMap, OffsetKind, coverage, last_history, select
from relay_pipelines.audit.recount import UNTIMED, DestinationCount, Recount, gap_finding
from relay_pipelines.audit.request import AuditRequest, Level, Selection
from relay_pipelines.audit.retention import CleanupPolicies, Configs, followed, is_compacted
from relay_pipelines.audit.source_logs import (
    GONE,
    SourceLogs,
    read_destination_topics,
    read_source_logs,
)
from relay_pipelines.audit.verdict import (
    UNEXPLAINED,
    UNREADABLE,
    State,
    Tally,
    Verdict,
    judge,
    total,
)
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.finding import Finding, Kind, Severity
from relay_pipelines.ledger.chain import REMEDY, Chain
from relay_pipelines.ledger.verified import VerifiedLedger, read_verified_ledger
from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange, Skipped, TopicPartition
from relay_pipelines.plan.policies import stretches
from relay_pipelines.sides import Sides

BY_RECORD = "record by record"
BY_KEY = "key by key, because it is compacted"
_NOT_COMPARED = "not compared: "
_CHANGED = "select or transform may have changed the records"
_PART_BYTES = 256 << 20  # its batches are counted, which is fast
_LEFT_OUT = (Skipped.FILTERED, Skipped.QUARANTINED)


@dataclass(slots=True)
class PartitionAudit:
    """What an audit found in one topic-partition.

    Args:
        coverage: by the ledger.
        chain: what the verification of its ledger entries found.
        level: of the audit.
        parts: what to count at the destination.
        counted: the parts that were counted so far.
        rule: how its chunks are compared; empty if they are not.
        uncompared: how many records are in no chunk to compare, by reason.
        chunks: the chunks to compare.
        results: of those that were compared so far.
        gone: as of `Recount`.
        source_unread: why it is not known how long the source keeps records; empty if it is.
        policies: which source offsets were decided by which configuration, in words; empty if all
            were by one.
    """

    coverage: CoverageMap
    chain: Chain
    level: Level
    parts: list[RecountPart] = field(default_factory=list)
    counted: list[DestinationCount] = field(default_factory=list)
    rule: str = ""
    uncompared: Counter[str] = field(default_factory=Counter)
    chunks: list[ComparedChunk] = field(default_factory=list)
    results: list[Comparison] = field(default_factory=list)
    gone: Sequence[str] = ()
    source_unread: str = ""
    policies: Sequence[str] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """Of the source."""
        return self.coverage.topic_partition

    @property
    def destination(self) -> TopicPartition | None:
        """The topic-partition with the copies; None if no record was copied."""
        return self.coverage.destination

    @property
    def recount(self) -> Recount | None:
        """The sum of the parts; None if not all were counted, or there are none."""
        count = self.counted_so_far
        return count if count.counts and len(count.counts) >= len(self.parts) else None

    @property
    def counted_so_far(self) -> Recount:
        """The sum of the parts that could be counted."""
        counts = [part for part in self.counted if not part.error]
        return Recount(self.coverage, sorted(counts, key=lambda part: part.range), self.gone)

    @property
    def records(self) -> int:
        """Records that are the same on both sides, or gone for a later one of their key."""
        return sum(result.records for result in self.results)

    @property
    def first_difference(self) -> tuple[Comparison, Difference] | None:
        """The first difference by the source's offsets, and its chunk; None if there is none."""
        differing = [(result, result.difference) for result in self.results if result.difference]
        return min(differing, key=lambda pair: pair[0].chunk.source, default=None)

    @property
    def copied_chunks(self) -> int:
        """Chunks that the ledger has in the range."""
        return len(self.coverage.chunks)

    @property
    def compared_chunks(self) -> int:
        """How many of them were compared; all of a compacted topic-partition at once."""
        results = [each for each in self.results if not (each.unread or each.error)]
        whole = any(result.chunk.is_compacted for result in results)
        return self.copied_chunks if whole else len(results)

    @property
    def differing(self) -> int:
        """Chunks that differ, and what the ledger and the recount say besides."""
        chunks = sum(result.difference is not None for result in self.results)
        return chunks + len(self.differences) - bool(chunks)

    @property
    def read_bytes(self) -> int:
        """How much was read."""
        compared = sum(result.size_bytes for result in self.results)
        return compared + sum(part.size_bytes for part in self.counted)

    @property
    def verdict(self) -> Verdict:
        """What was found, with what it rests on."""
        return judge(self.records_seen, self.findings, reads=self.level is not Level.LEDGER)

    @property
    def records_seen(self) -> Tally:
        """What became of the records that the ledger has in the range."""
        copied = self.coverage.offsets(OffsetKind.COPIED)
        ledger = Tally(entries=len(self.chain.records), expired=self.chain.expired)
        recount = self.counted_so_far
        if self.level.compares:
            seen = ledger + self._compared(copied)
        elif self.level is Level.RECOUNT and recount.counts:
            seen = ledger + replace(recount.tally, records=copied)
        else:
            left_out = 0 if self.level is Level.RECOUNT else copied
            seen = ledger + Tally(copied, left_out=left_out)
        if self._unreadable:
            return seen.explained(UNREADABLE)
        return seen if self.differences else seen.explained(UNEXPLAINED)

    def _compared(self, copied: int) -> Tally:
        """Return what became of the records of the chunks that are compared."""
        not_verified = Counter(self.uncompared)
        for result in self.results:
            if why := result.unread or (result.error and UNREADABLE):
                not_verified[why] += result.chunk.records
            not_verified.update(result.not_verified)
        sampled = sum(chunk.records for chunk in self.chunks) + self.uncompared.total()
        left_out = copied - sampled if self.level is Level.SAMPLE else 0
        same = sum(min(result.records, result.chunk.records) for result in self.results)
        gone = sum(result.superseded for result in self.results)
        return Tally(
            max(copied, sampled),
            by_content=same - gone,
            left_out=left_out,
            not_verified=not_verified,
            superseded=gone,
        )

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, what could not be read, and what people may not expect."""
        return [*self.differences, *self._unreadable, *self._warnings, *self._rules]

    @property
    def differences(self) -> list[Finding]:
        """What is not the same, or not as the ledger has it."""
        broken = [
            self._finding(Kind.BROKEN_CHAIN, Severity.DIFFERENCE, each.what_and_where, REMEDY)
            for each in self.chain.breaks
        ]
        recount = self.counted_so_far
        lines = recount.problems
        if first_foreign := recount.first_foreign:
            at = first_foreign.destination or str(self.destination)
            there = f"{at} at offset {first_foreign.foreign_at}"
            lines.append(f"the first record that this mirror did not write is in {there}")
        if first := self.first_difference:
            result, difference = first
            differing = sum(each.difference is not None for each in self.results)
            source = result.chunk.source
            lines.append(
                f"differing chunks: {differing:,} of {len(self.results):,}; the first is"
                f" [{source.start}, {source.end}), compared with upstream {result.upstream}:"
                f" {difference.what}"
            )
        others = (self._finding(Kind.OTHER_RECORDS, Severity.DIFFERENCE, line) for line in lines)
        return [*broken, *others]

    @property
    def _unreadable(self) -> list[Finding]:
        """Why something could not be read; each line once."""
        lines = {result.error for result in self.results} | {part.error for part in self.counted}
        return [
            self._finding(Kind.UNREADABLE, Severity.ERROR, line) for line in sorted(lines - {""})
        ]

    @property
    def _warnings(self) -> list[Finding]:
        """What people may not expect, and what could not be compared."""
        gaps = [gap_finding(str(self.topic_partition), gap) for gap in self.coverage.gaps]
        recount = self.counted_so_far
        # a comparison says itself what it could not compare
        lines = recount.notes(by_count=not self.level.compares)
        untimed = sum(result.untimed for result in self.results)
        if untimed and not recount.counts:
            lines.append(f"{UNTIMED}: {untimed:,}")
        if self.source_unread and recount.tally.not_verified:
            lines.append(
                f"whether the source keeps the records that are gone is not known:"
                f" {self.source_unread}"
            )
        uncompared = Counter(self.uncompared)
        for result in self.results:
            if result.unread:
                uncompared[result.unread] += result.chunk.records
        lines += [
            f"{number:,} records were not compared: {why}"
            for why, number in uncompared.items()
            if number
        ]
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
        others = (self._finding(Kind.NOT_VERIFIED, Severity.WARNING, line) for line in lines)
        return [*gaps, *others]

    @property
    def _rules(self) -> list[Finding]:
        """How records are compared, if it is not one by one, and what had decided them."""
        lines = [self.rule] if self.rule not in {"", BY_RECORD} else []
        if self.policies:
            lines.append(f"several configurations decided its records: {', '.join(self.policies)}")
        return [self._finding(Kind.COMPARED_BY, Severity.OK, line) for line in lines]

    def _finding(self, kind: Kind, severity: Severity, text: str, remedy: str = "") -> Finding:
        return Finding(kind, str(self.topic_partition), severity, text, remedy)


@dataclass(slots=True)
class Audit:
    """What an audit found in one mirror.

    Args:
        request: with the seed that chose the chunks of a sample.
    """

    mirror: str
    request: AuditRequest
    job: AuditJob
    partitions: dict[TopicPartition, PartitionAudit]
    seconds: float = 0.0

    @property
    def level(self) -> Level:
        """How much it reads."""
        return self.request.level

    @property
    def exit_code(self) -> int:
        """Of a command: 0 if it passes, 4 for a difference, 1 if something could not be read."""
        return self.verdict.exit_code(strict=self.request.strict)

    @property
    def by_topic(self) -> dict[str, Audit]:
        """The same for each source topic that was asked for or has copies, sorted.

        One without copies has no topic-partitions.
        """
        grouped: dict[str, dict[TopicPartition, PartitionAudit]]
        grouped = {topic: {} for topic in self.request.topics}
        for tp, partition_audit in self.partitions.items():
            grouped.setdefault(tp.topic, {})[tp] = partition_audit
        return {topic: replace(self, partitions=grouped[topic]) for topic in sorted(grouped)}

    @property
    def work(self) -> list[ComparedChunk | RecountPart]:
        """All that is to be compared and counted, in order."""
        work: list[ComparedChunk | RecountPart] = []
        for partition_audit in self.partitions.values():
            work += [*partition_audit.parts, *partition_audit.chunks]
        return work

    @property
    def findings(self) -> list[Finding]:
        """What was found in its topic-partitions."""
        return [finding for partition in self.partitions.values() for finding in partition.findings]

    @property
    def verdict(self) -> Verdict:
        """What was found, with what it rests on; it has failed if there was nothing to look at."""
        if not self.partitions:
            return Verdict(State.FAILED, Tally())
        seen = total(partition.records_seen for partition in self.partitions.values())
        return judge(seen, self.findings, reads=self.level is not Level.LEDGER)

    def add(self, results: Iterable[Comparison | DestinationCount]) -> None:
        """Take the results of a task."""
        for result in results:
            if isinstance(result, Comparison):
                self.partitions[result.chunk.source.topic_partition].results.append(result)
            else:
                self.partitions[result.range.topic_partition].counted.append(result)


def begin(sides: Sides, request: AuditRequest) -> Audit:
    """Verify the ledger, and find what to count and to compare. On the driver.

    Args:
        request: of one window, or of none.

    Raises:
        ConfigError: the ledger does not have what is to be audited.
        TamperedError: a record of the ledger is no entry.
    """
    if request.level is Level.SAMPLE and not request.seed:
        today = dt.datetime.fromtimestamp(sides.clock.now_ms() / 1000, dt.UTC).date()
        request = replace(request, seed=str(today))  # all samples of a day are the same
    ledger = read_verified_ledger(sides)
    sides = sides.at(ledger.cluster_id)
    level, reads = request.level, request.level is not Level.LEDGER
    there = read_destination_topics(sides, ledger, with_configs=reads)
    selected = _selected(request, ledger)
    job = AuditJob(sides.name, (), sides.destination_cluster, sides.options)
    audit = Audit(sides.name, request, job, {})
    lost: dict[TopicPartition, str] = {}
    for each in selected:
        tp = each.topic_partition
        checkpoint = ledger.checkpoints.get(tp)
        lost[tp] = there.lost(_topics_of_copies(each, checkpoint))
        audit.partitions[tp] = PartitionAudit(
            each,
            ledger.chains[tp],
            level,
            gone=[*filter(None, (lost[tp], there.replaced(checkpoint)))],
            policies=stretches(each.chunks),
        )
    selected = [each for each in selected if not lost[each.topic_partition]]
    if not reads:
        return audit
    logs = _source_logs(audit, sides, ledger)
    audit.job = replace(job, upstreams=tuple(logs.clusters))
    source_configs = followed(sides.mirror.topics, logs.configs)
    if level in {Level.RECOUNT, Level.FULL}:
        # where nothing is known of the destination, nothing there is foreign
        copies = {entry.to for entry in ledger.entries}
        known = {to: OffsetRange(to, 0, 0) for to in copies} | accounted(ledger)
        claims = Claims(sides.name, ledger.entries, known, source_configs)
        for each in selected:
            copied = replace(each.range, end=each.copied_to)
            parts = claims.parts(copied, each.chunks, _PART_BYTES)
            audit.partitions[each.topic_partition].parts += parts
        _plan_uncopied(audit, request, selected, ledger, claims)
    if level.compares:
        replayed = {written.topic_partition for written in ledger.replayed}
        shared = _shared(ledger.own_entries) | replayed
        planning = _Planning(
            request, ledger.checkpoints, logs, there.configs, source_configs, shared
        )
        for each in selected:
            if each.destination is not None:
                planning.plan(audit.partitions[each.topic_partition])
    return audit


def _source_logs(audit: Audit, sides: Sides, ledger: VerifiedLedger) -> SourceLogs:
    """Ask the source; a recount can do without it, and says that it does not know its policies.

    Raises:
        RelayError: no upstream answers, and there is something to compare.
    """
    topics = {tp.topic for tp in audit.partitions}
    compares = audit.level.compares
    try:
        logs = read_source_logs(sides, ledger, topics, patient=compares)
    except RelayError as error:
        if compares:
            raise
        logs = SourceLogs()
        unread = str(error.what)
    else:
        away = [f"upstream {upstream} {why}" for upstream, why in logs.away.items()]
        unread = ", ".join(away) or GONE
    for tp, partition_audit in audit.partitions.items():
        if tp.topic not in logs.configs:
            partition_audit.source_unread = unread
    return logs


def _without_chunks(selection: Selection, ledger: VerifiedLedger) -> set[TopicPartition]:
    """Return the topic-partitions of which the ledger has no chunk, without anything being wrong.

    Retention has deleted all their entries, so that nobody knows windows and times any more; or
    they were reset, and nothing was copied since.
    """
    if selection.by_entries:
        return set()
    return {
        tp
        for tp, chain in ledger.chains.items()
        if selection.has(tp)
        and not chain.breaks
        and not any(len(entry.source) for entry in last_history(chain.entries))
    }


def _selected(selection: Selection, ledger: VerifiedLedger) -> list[CoverageMap]:
    """Return the ranges to audit; those without chunks, of which the ledger says why, are empty."""
    entries, selected = ledger.own_entries, list[CoverageMap]()
    broken = {tp for tp, chain in ledger.chains.items() if chain.breaks and selection.has(tp)}
    without_chunks = _without_chunks(selection, ledger)
    try:
        selected = select(selection, entries, ledger.copied_to)
    except ConfigError:
        have_chunks = {entry.tp for entry in entries} - without_chunks
        if not broken and (any(map(selection.has, have_chunks)) or not without_chunks):
            raise
    others = (broken | without_chunks).difference(each.topic_partition for each in selected)
    return selected + [coverage(OffsetRange(tp, 0, 0), (), 0) for tp in sorted(others)]


def _topics_of_copies(selected: CoverageMap, checkpoint: Checkpoint | None) -> set[str]:
    """Return the topics with copies of a range, and the one that has the newest copies."""
    newest = selected.destination
    if not selected.entries and checkpoint and checkpoint.copies:
        newest = checkpoint.copies.topic_partition
    topics = {entry.to.topic for entry in selected.chunks if entry.records}
    return topics | ({newest.topic} if newest else set())


def _plan_uncopied(
    audit: Audit,
    selection: Selection,
    selected: Sequence[CoverageMap],
    ledger: VerifiedLedger,
    claims: Claims,
) -> None:
    """Find what to look at where nothing was copied, unless only a part of a topic is audited."""
    if selection.by_entries or (selection.offsets or (None, None)) != (None, None):
        return
    audited: dict[TopicPartition, OffsetRange] = {}
    of_topics: dict[str, OffsetRange] = {}
    for each in reversed(selected):  # the first one is that to which others are added
        for to in {entry.to for entry in each.entries}:
            audited[to] = of_topics[to.topic] = replace(each.range, end=each.range.start)

    def range_of(to: TopicPartition) -> OffsetRange | None:
        if to in ledger.others or to not in ledger.ends:
            return None
        of_topic = of_topics.get(to.topic) if selection.partition is None else None
        return audited.get(to, of_topic)

    for part in claims.uncopied(range_of, ledger.created):
        partition_audit = audit.partitions[part.range.topic_partition]
        topic = part.destination.topic_partition.topic
        if hidden := ledger.hidden.get(topic):
            why = f"{part.destination} was not looked at: {topic} {hidden.may_be_there}"
            unread = DestinationCount(part.range, error=f"{why}; {hidden.error.remedy}")
            partition_audit.counted.append(unread)
        else:
            partition_audit.parts.append(part)


@dataclass(frozen=True, slots=True)
class _Planning:
    """Finds the chunks to compare, and by which rule.

    Args:
        logs: of the source.
        configs: of the destination's topics.
        followed: what copies follow of the source's.
        shared: destination topic-partitions to which several sources are copied.
    """

    request: AuditRequest
    checkpoints: Mapping[TopicPartition, Checkpoint]
    logs: SourceLogs
    configs: Configs
    followed: Configs
    shared: Container[TopicPartition]

    def plan(self, audited: PartitionAudit) -> None:
        """Plan one topic-partition."""
        copied: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        for entry in audited.coverage.chunks:
            copied[entry.to].append(entry)
        rules = [self._add(audited, to, entries) for to, entries in copied.items()]
        audited.rule = "; ".join(dict.fromkeys(rules))
        audited.chunks = _sampled(self.request, audited.chunks)

    def _add(
        self, audited: PartitionAudit, to: TopicPartition, entries: Sequence[LedgerEntry]
    ) -> str:
        """Add the chunks in one destination topic-partition that can be compared.

        Returns:
            the rule, or why there are none; how many records are in none, by reason, is added, too.
        """
        tp, records = audited.topic_partition, sum(entry.records for entry in entries)
        here, there = self.logs.configs.get(tp.topic), self.configs.get(to.topic, {})
        policies = CleanupPolicies(there, self.followed.get(tp.topic, {}))
        at_source = is_compacted(here or {})
        compacted = at_source or policies.compact
        if here is not None and (why := self._why_not(to, entries, compacted=compacted)):
            audited.uncompared[why] += records
            return f"{_NOT_COMPARED}{why}"
        changed = [entry for entry in entries if entry.may_change_records and not compacted]
        if compacted:
            chunks = (
                [_compacted(audited.coverage, to, policies, at_source=at_source)] if records else []
            )
        else:
            same = (entry for entry in entries if not entry.may_change_records)
            chunks = [_chunk(entry, self.shared, policies) for entry in same]
        readable, uncompared = [], Counter[str]()
        for chunk in chunks:
            own, may_hold, why = self.logs.holders(
                tp.topic, chunk.upstream, self.checkpoints.get(tp)
            )
            if may_hold:
                readable.append(replace(chunk, own_logs=own, no_own=why))
            else:
                uncompared[why] += chunk.records
        uncompared += Counter({_CHANGED: sum(entry.records for entry in changed)})
        audited.chunks += readable
        audited.uncompared.update(uncompared)
        if uncompared and not readable:
            return _NOT_COMPARED + "; ".join(uncompared)
        return BY_KEY if compacted else BY_RECORD

    def _why_not(
        self, to: TopicPartition, entries: Sequence[LedgerEntry], *, compacted: bool
    ) -> str:
        """Return why a topic's records cannot be compared; empty if they can.

        Args:
            entries: which say how the records were copied; relay.yaml may say something else now.
            compacted: whether a cleaner may work on either side.
        """
        changed = [entry.may_change_records for entry in entries]
        if not compacted:
            return _CHANGED if all(changed) else ""
        reasons = {
            _CHANGED: any(changed),
            "it is compacted and filtered": any(entry.may_leave_out for entry in entries),
            "it is compacted, and other topic-partitions are copied there, too": to in self.shared,
            "it is compacted, so a sample would have to read all of it": self.request.level
            is Level.SAMPLE,
        }
        return next((why for why, holds in reasons.items() if holds), "")


def _sampled(request: AuditRequest, chunks: list[ComparedChunk]) -> list[ComparedChunk]:
    """Return the share of the chunks that the seed chooses, in order; at least one."""
    if request.level is not Level.SAMPLE or not chunks:
        return chunks
    chooser = random.Random(f"{request.seed}/{chunks[0].source.topic_partition}")  # noqa: S311 - no secret
    number = max(1, round(request.share / 100 * len(chunks)))
    chosen = chooser.sample(range(len(chunks)), number)
    return [chunks[index] for index in sorted(chosen)]


def _chunk(
    entry: LedgerEntry, shared: Container[TopicPartition], policies: CleanupPolicies
) -> ComparedChunk:
    copies = entry.destination
    return ComparedChunk(
        entry.source,
        # before its first record, a topic-partition has no destination offsets
        copies if entry.records else OffsetRange(copies.topic_partition, 0, 0),
        entry.records,
        entry.size_bytes,
        sum(entry.skipped.get(str(reason), 0) for reason in _LEFT_OUT),
        producer_id=entry.producer_id if copies.topic_partition in shared else None,
        policies=policies,
        entry=entry,
        upstream=entry.upstream,
    )


def _compacted(
    topic: CoverageMap,
    destination: TopicPartition,
    policies: CleanupPolicies,
    *,
    at_source: bool,
) -> ComparedChunk:
    """Return all of a topic-partition: any record may be gone for one that is outside a range."""
    copied = [entry for entry in topic.entries if entry.records and entry.to == destination]
    start, end = copied[0].source.start, max(entry.source.end for entry in copied)
    copies = min(e.destination.start for e in copied), max(e.destination.end for e in copied)
    newest = max(copied, key=lambda entry: entry.source)
    # where the range begins and ends in the log of one upstream
    is_of_one = start == 0 or len({entry.upstream for entry in copied}) == 1
    return ComparedChunk(
        OffsetRange(topic.topic_partition, start, end),
        OffsetRange(destination, *copies),
        sum(entry.records for entry in copied),
        sum(entry.size_bytes for entry in copied),
        compacted_at_source=at_source,
        policies=policies,
        upstream=newest.upstream if is_of_one else "",
    )


def _shared(entries: Iterable[LedgerEntry]) -> set[TopicPartition]:
    """Return the destination topic-partitions to which several sources are copied."""
    sources: dict[TopicPartition, set[TopicPartition]] = defaultdict(set)
    for entry in entries:
        if entry.records:
            sources[entry.to].add(entry.tp)
    return {to for to, copied in sources.items() if len(copied) > 1}

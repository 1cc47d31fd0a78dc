"""Which offsets a replay reads: at the source, or where the ledger says that their copies are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from relay_pipelines.audit.coverage import CoverageMap, coverage, select
from relay_pipelines.audit.request import Selection
from relay_pipelines.errors import (
    ConfigError,
    RetentionPassedError,
    TamperedError,
    TopicRecreatedError,
)
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.ledger.committed import Wanted
from relay_pipelines.ledger.offset_map import Copied, copies_of, merged
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.ledger.verified import VerifiedLedger, read_verified_ledger
from relay_pipelines.model import (
    Intervals,
    LedgerEntry,
    OffsetRange,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.protocol.client import EARLIEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.open_transactions import wait_until_stable
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.offsets_by_time import ranges_between

_READ_SOURCE = "replay from the source: --side source"
_READ_DESTINATION = "read the copies instead: --side destination"


@dataclass(frozen=True, slots=True)
class ReplayedRanges:
    """What a replay reads.

    Args:
        ranges: none is empty.
        kept: the offsets whose records are replayed, where these are not all; as in `CopyRange`.
        findings: what the operator may not expect.
    """

    topic: str
    ranges: Sequence[OffsetRange]
    kept: Mapping[TopicPartition, Intervals] = field(default_factory=dict)
    findings: Sequence[Finding] = ()


def at_source(
    sides: Sides, request: ReplayRequest, snapshot: ClusterSnapshot, known: CheckpointSnapshot
) -> ReplayedRanges:
    """Return the source offsets that are asked for.

    Args:
        sides: of the mirror whose topic it is.
        snapshot: of that topic.
        known: of that mirror.

    Raises:
        ConfigError: there are no such offsets.
        RetentionPassedError: the source no longer has them.
    """
    ranges, findings = _asked(sides, request, snapshot, known)
    positions = {position.topic_partition: position for position in snapshot.positions}
    for offset_range in ranges:
        tp, position = offset_range.topic_partition, positions.get(offset_range.topic_partition)
        if position is None or offset_range.end > position.end_offset:
            end = "no such partition" if position is None else f"ends at {position.end_offset}"
            raise ConfigError(
                f"{tp}: the source has no offsets up to {offset_range.end}: {end}",
                remedy="name offsets that it has; see `relay status`",
            )
        if offset_range.start < position.low_watermark:
            raise RetentionPassedError(
                f"the source begins at offset {position.low_watermark}, and no longer has those"
                f" from {offset_range.start} on",
                remedy=_READ_DESTINATION,
                topic_partition=tp,
                offset=offset_range.start,
            )
    return ReplayedRanges(request.topic, _not_empty(ranges), findings=findings)


def _require_readable(snapshot: ClusterSnapshot, asked: Container[TopicPartition]) -> None:
    """Refuse to leave a topic-partition out: the ends of all are frozen together."""
    for tp, error in snapshot.held_for(Blocker.UNKNOWN).items():
        if tp in asked:
            raise error


def upstream_of_window(sides: Sides, request: ReplayRequest) -> str:
    """Return the upstream from which a window was copied, whose offsets the ledger has.

    Raises:
        ConfigError: it was copied from several, whose offsets may differ.
        TamperedError: the ledger's entries are not those that were committed.
    """
    selected, _ = _selected(sides, request)
    copied = [entry for each in selected for entry in each.chunks]
    upstream, *others = sorted({entry.upstream for entry in copied})
    if others:
        raise ConfigError(
            f"the window {request.window!r} was copied from the upstreams"
            f" {', '.join([upstream, *others])}, whose offsets may differ",
            remedy=_READ_DESTINATION,
        )
    return upstream


def _require_copied_log(
    selected: Iterable[CoverageMap], snapshot: ClusterSnapshot, known: CheckpointSnapshot
) -> None:
    """Refuse offsets of the ledger if the topic is no longer the one that was copied."""
    copied = known.checkpoints
    for each in selected:
        tp = each.topic_partition
        log = UpstreamIdentity(
            snapshot.upstream.name, snapshot.topics[tp.topic].metadata.topic_id, ""
        )
        if tp in copied and copied[tp].is_recreated(log):
            raise TopicRecreatedError(
                "the topic was deleted and created again since the window was copied",
                remedy=_READ_DESTINATION,
                topic_partition=tp,
            )


def _asked(
    sides: Sides, request: ReplayRequest, snapshot: ClusterSnapshot, known: CheckpointSnapshot
) -> tuple[list[OffsetRange], list[Finding]]:
    if request.window:
        selected, _ = _selected(sides, request)
        _require_readable(snapshot, {each.topic_partition for each in selected})
        _require_copied_log(selected, snapshot, known)
        return [each.range for each in selected], []
    unknown = snapshot.held_for(Blocker.UNKNOWN)
    _require_readable(snapshot, {tp for tp in unknown if request.partition in {None, tp.partition}})
    replayed = [
        position
        for position in snapshot.positions
        if request.partition in {None, position.topic_partition.partition}
    ]
    if not replayed:
        raise ConfigError(
            f"the topic {request.topic!r} has no partition {request.partition}",
            remedy=f"it has {len(snapshot.positions)} partitions, from 0",
        )
    if request.offsets is not None:
        start, end = request.offsets
        return [
            OffsetRange(
                position.topic_partition,
                position.low_watermark if start is None else start,
                position.end_offset if end is None else end,
            )
            for position in replayed
        ], []
    limited = {position.topic_partition: position for position in replayed}
    # only the beginning comes from the time index: before it, all records are older than the span;
    # after the first one that is newer, there may be more of the span
    spans = ranges_between(snapshot, request.from_ms or 0, None)
    ranges = [span for span in spans if span.topic_partition in limited]
    findings = [
        warning(
            Kind.REPLAYED_RANGE,
            str(span.topic_partition),
            f"the source begins at offset {span.start}",
            f"if it had older records of the time span, {_READ_DESTINATION}",
        )
        for span in ranges
        if span.start and span.start == limited[span.topic_partition].low_watermark
    ]
    return ranges, findings


def at_destination(sides: Sides, request: ReplayRequest) -> ReplayedRanges:
    """Return where the copies of the source offsets that are asked for are.

    Raises:
        ConfigError: the ledger does not have these offsets, or cannot tell them apart.
        TamperedError: its entries are not those that were committed.
        RetentionPassedError: the destination no longer has them.
    """
    selected, gone = _selected(sides, request)
    entries = sorted(
        ((each.range, entry) for each in selected for entry in each.chunks),
        key=lambda of_range: of_range[1].destination,
    )
    topics = {entry.to.topic for _, entry in entries if entry.records}
    if len(topics) > 1:
        raise ConfigError(
            f"the offsets were copied to several topics: {', '.join(sorted(topics))}",
            remedy="replay the offsets of one topic after those of the other",
        )
    sources: dict[TopicPartition, set[TopicPartition]] = defaultdict(set)
    for _, entry in entries:
        sources[entry.to].add(entry.tp)
    with sides.destination() as client:
        by_partition, findings = client.retry(partial(_copies, client, entries, request))
    kept = {
        tp: merged(copied, one_source=len(sources[tp]) == 1)
        for tp, copied in by_partition.items()
        if copied
    }
    ranges = [
        OffsetRange(tp, intervals[0][0], intervals[-1][1]) for tp, intervals in sorted(kept.items())
    ]
    several = {tp: intervals for tp, intervals in kept.items() if len(intervals) > 1}
    return ReplayedRanges(next(iter(topics), ""), _not_empty(ranges), several, [*gone, *findings])


def _selected(sides: Sides, request: ReplayRequest) -> tuple[list[CoverageMap], list[Finding]]:
    """Return what the ledger has of the request, of a time span all; and what it has no more."""
    ledger = read_verified_ledger(sides)
    selection = Selection((request.topic,), request.partition, request.window, request.offsets)
    for broken in ledger.breaks:
        if selection.has(broken.topic_partition):
            raise TamperedError(
                f"{broken}, so that it is unknown what was copied where",
                remedy="see all such entries with `relay audit --level ledger`; offsets and dates"
                " can be replayed with --side source, which does not read the ledger",
            )
    selected = select(selection, ledger.own_entries, ledger.copied_to)
    for each in selected:
        for missing in coverage(each.range, each.entries, each.range.end).missing:
            raise ConfigError(
                f"{missing.topic_partition}: the ledger has no copies of the offsets"
                f" [{missing.start}, {missing.end})",
                remedy="name offsets that were copied; see `relay ledger`",
            )
    return selected, _gone(ledger, selection)


def _gone(ledger: VerifiedLedger, selection: Selection) -> list[Finding]:
    """Say which entries are gone that may be of the request; refuse a part of a window."""
    findings = []
    for tp, chain in ledger.chains.items():
        if not selection.has(tp):
            continue
        gone, (start, _) = chain.expired + chain.lost, selection.offsets or (None, None)
        if selection.window:
            head = ledger.checkpoints[tp].ledger_head
            Wanted.of_windows([selection.window]).require(tp, chain.records, head)
        elif gone and start is None:
            text = f"ledger entries that are gone: {gone:,}; their copies are not replayed"
            findings.append(warning(Kind.REPLAYED_RANGE, str(tp), text))
    return findings


def _not_empty(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    if offset_ranges := [offset_range for offset_range in ranges if len(offset_range)]:
        return offset_ranges
    raise ConfigError(
        "there are no records in the range that is to be replayed",
        remedy="name offsets, dates or a window with records; see `relay ledger`",
    )


def _copies(
    client: ClusterClient,
    entries: Sequence[tuple[OffsetRange, LedgerEntry]],
    request: ReplayRequest,
) -> tuple[dict[TopicPartition, list[Copied]], list[Finding]]:
    """Return the copies by topic-partition of the destination, in any order, and findings.

    Args:
        entries: chunks in the order of their copies, each with the source offsets that are wanted.
    """
    by_partition: dict[TopicPartition, list[Copied]] = defaultdict(list)
    findings: dict[TopicPartition, Finding] = {}
    ends: dict[TopicPartition, int] = defaultdict(int)
    for _, entry in entries:
        tp = entry.to
        ends[tp] = max(ends[tp], entry.destination.end)
    low = client.list_offsets(ends, EARLIEST, READ_COMMITTED)
    for tp, end in ends.items():
        wait_until_stable(client, tp, end)
    for within, entry in entries:
        tp = entry.to
        copies = copies_of(client, entry, within, _READ_SOURCE) if entry.records else ()
        for start, stop in copies:
            if start < low[tp] and not request.has_dates:
                raise RetentionPassedError(
                    f"the destination begins at offset {low[tp]}, and no longer has the copies"
                    f" from {start} on",
                    remedy="replay a later range, or read the source: --side source",
                    topic_partition=tp,
                    offset=start,
                )
            if start < low[tp]:  # every record's timestamp decides: it may be anywhere
                findings[tp] = warning(
                    Kind.REPLAYED_RANGE,
                    str(tp),
                    f"the destination begins at offset {low[tp]}; it no longer has older copies, of"
                    " which some may be of the time span",
                )
            if stop > low[tp]:
                by_partition[tp].append(Copied(max(start, low[tp]), stop, entry.source))
    return by_partition, list(findings.values())

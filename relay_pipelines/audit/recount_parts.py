"""The recount of a range in parts, each of which a task can count.

`parts_of` and `merged` run on the driver, `count_parts` in a task.

Records at the destination where nothing was copied: before the first copy, or instead of one.

A mirror that has created the topic knows that it was empty, so they are foreign. In a topic that
existed before, somebody may have written them before the mirror began.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from relay_pipelines.audit.chunks import AuditJob
from relay_pipelines.audit.coverage import RangeIndex
from relay_pipelines.audit.recount import KnownEntries, Recount, TopicSettings, count_range
from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyOptions, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    ClusterClient,
    destination_client,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import read

_CHUNKS = 1_000  # a part has no more, because every batch is looked up among them

Entries = Mapping[TopicPartition, Sequence[LedgerEntry]]


@dataclass(frozen=True, slots=True)
class RecountPart:
    """Whole chunks of a range.

    Args:
        range: the source offsets.
        entries: what `count_range` needs.
        accounted: of the destination, as of `count_range`; None for all offsets.
        replayed: as of `KnownEntries`, where the part may be.
        uncopied: destination offsets to look at instead, where nothing was copied.
    """

    range: OffsetRange
    entries: Entries
    size_bytes: int
    accounted: OffsetRange | None = None
    replayed: tuple[OffsetRange, ...] = ()
    uncopied: Uncopied | None = None


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a task counted.

    Args:
        recount: None if the destination could not be read.
        error: why it could not be read; empty if it was.
    """

    range: OffsetRange
    size_bytes: int
    recount: Recount | None = None
    error: str = ""


def parts_of(
    wanted: OffsetRange,
    own: Sequence[LedgerEntry],
    others: Sequence[LedgerEntry],
    size_bytes: int,
    accounted: OffsetRange | None,
    replayed: Iterable[OffsetRange] = (),
) -> list[RecountPart]:
    """Cut a range between its chunks, into parts of about a size.

    Args:
        own: the entries of its topic-partition, sorted by source offset.
        others: those of other topic-partitions that are copied to the same one, sorted by
            destination offset.
        accounted: as in `RecountPart`.
        replayed: where replays wrote to the same one.
    """
    parts: list[RecountPart] = []
    by_others = RangeIndex([entry.destination for entry in others])
    neighbours = others, by_others, RangeIndex(sorted(replayed))
    start, first, size, most_end = wanted.start, 0, 0, -1
    for index, (entry, following) in enumerate(pairwise(own)):
        most_end = max(most_end, entry.source.end)
        if most_end <= wanted.start:
            first = index + 1
            continue
        size += entry.size_bytes
        is_full = size >= size_bytes or index - first >= _CHUNKS
        # not within entries that overlap: both parts would count them
        if is_full and most_end == following.source.start and most_end < wanted.end:
            part = OffsetRange(wanted.topic_partition, start, most_end)
            parts.append(_part(part, own, (first, index + 1), neighbours, accounted))
            start, first, size = most_end, index + 1, 0
    last = OffsetRange(wanted.topic_partition, start, wanted.end)
    return [*parts, _part(last, own, (first, len(own)), neighbours, accounted)]


def by_destination(
    wanted: OffsetRange, entries: Sequence[LedgerEntry]
) -> list[tuple[OffsetRange, TopicPartition | None, list[LedgerEntry]]]:
    """Cut a range where its copies go on in another destination topic-partition.

    Args:
        entries: of its topic-partition, sorted by source offset.

    Returns:
        Each part, where its copies are (None: nowhere), and all entries of that destination: also
        those outside of the part, which say whose records follow its own.
    """
    begins: list[tuple[int, TopicPartition | None]] = []
    for entry in entries:
        at = _placed_in(entry)
        if at is not None and entry.source.end > wanted.start and entry.source.start < wanted.end:
            if not begins:
                begins.append((wanted.start, at))
            elif begins[-1][1] != at:
                begins.append((entry.source.start, at))
    begins = begins or [(wanted.start, None)]
    ends = [*(start for start, _ in begins[1:]), wanted.end]
    return [
        (
            OffsetRange(wanted.topic_partition, start, end),
            at,
            [entry for entry in entries if at is None or _placed_in(entry) in {None, at}],
        )
        for (start, at), end in zip(begins, ends, strict=True)
    ]


def _placed_in(entry: LedgerEntry) -> TopicPartition | None:
    """Return where an entry's copies are, or would be; None before the first, and for losses."""
    is_placed = entry.destination.start >= 0 and not entry.gap
    return entry.destination.topic_partition if is_placed else None


def merged(whole: OffsetRange, recounts: Sequence[Recount]) -> Recount:
    """Return the recount of a range from those of its parts, in order."""
    total = Recount(whole)
    for each in recounts:
        total.add(each)
        total.add_by_destination(each.by_destination)
        total.skipped.update(each.skipped)
        total.rewritten += each.rewritten
        total.nodes |= each.nodes
        total.unaccounted += each.unaccounted
        total.duplicated += each.duplicated
        total.gaps = list(dict.fromkeys([*total.gaps, *each.gaps]))
    return total


def count_parts(job: AuditJob, parts: Sequence[RecountPart], clock: Clock) -> Iterator[PartResult]:
    """Count each part and yield its result; never raises a `RelayError`.

    An error that names a topic-partition concerns its part alone; after another one that retries
    did not help against, no other part is tried.
    """
    away = ""
    with destination_client(job.mirror, job.destination, job.options, clock, "recount") as client:
        for part in parts:
            found, error = None, away
            if not away:
                ask = partial(_count, client, job, part, clock)
                try:
                    found = client.retry(ask)
                except RelayError as failed:
                    error = str(failed)
                    away = error if failed.retryable and failed.topic_partition is None else ""
            yield PartResult(part.range, part.size_bytes, found, error)


def _count(client: ClusterClient, job: AuditJob, part: RecountPart, clock: Clock) -> Recount:
    if part.uncopied is not None:
        return count_uncopied(client, part.range, part.uncopied, job.options)
    topics = {
        entry.destination.topic_partition.topic for some in part.entries.values() for entry in some
    }
    settings = TopicSettings(client)
    settings.ask(topics)
    configs = settings.of(topics, part.range.topic_partition)
    known = KnownEntries(part.entries, part.replayed)
    accounted = {} if part.accounted is None else {part.accounted.topic_partition: part.accounted}
    return count_range(client, part.range, known, configs, job.options, clock, accounted)


def _part(
    wanted: OffsetRange,
    own: Sequence[LedgerEntry],
    indices: tuple[int, int],
    neighbours: tuple[Sequence[LedgerEntry], RangeIndex, RangeIndex],
    accounted: OffsetRange | None,
) -> RecountPart:
    first, last = indices
    ours = own[first:last]
    # where the scan ends, and losses just before the range
    later = (own[index] for index in range(last, len(own)))
    following = next(([entry] for entry in later if entry.records), [])
    before = [entry for entry in own[max(0, first - 1) : first] if entry.gap]
    others, by_others, by_replays = neighbours
    replayed: list[OffsetRange] = []
    entries = defaultdict(list, {wanted.topic_partition: [*before, *ours, *following]})
    # the scan begins at chunks without records, too, except for the first ones of a mirror
    placed = [each.destination.start for each in ours if not each.gap]
    begin = min((start for start in placed if start >= 0), default=None)
    if begin is not None:
        stop = following[0].destination.start if following else sys.maxsize
        end = max(begin + 1, stop)
        for position in reversed([*by_others.overlapping(begin, end)]):
            entries[others[position].source.topic_partition].append(others[position])
        replayed = [by_replays.ranges[position] for position in by_replays.overlapping(begin, end)]
    return RecountPart(
        wanted,
        dict(entries),
        sum(entry.size_bytes for entry in ours),
        accounted,
        tuple(replayed),
    )


@dataclass(frozen=True, slots=True)
class Uncopied:
    """Destination offsets in which the mirror has no copies.

    Args:
        offsets: of one topic-partition; retention may have deleted some of them.
        replayed: those of them that replays of the mirror wrote.
        created_id: the id of the topic as the mirror has created it; empty if it has not.
    """

    offsets: OffsetRange
    replayed: tuple[OffsetRange, ...] = ()
    created_id: str = ""


def uncopied(
    topics: Iterable[str],
    accounted: Mapping[TopicPartition, OffsetRange],
    entries: Iterable[LedgerEntry],
    replayed: Iterable[OffsetRange],
    created: Mapping[str, str],
) -> list[Uncopied]:
    """Return the offsets of topics before their first copies, or all where there are no copies.

    Args:
        topics: at the destination.
        accounted: the offsets of which the ledger has every entry. Where entries have expired,
            nobody knows what they had named.
        entries: all of the mirror.
        replayed: where its replays wrote.
        created: topic -> its id, of those that the mirror has created.
    """
    firsts: dict[TopicPartition, int] = {}
    for entry in entries:
        if entry.records:
            copies = entry.destination
            known = firsts.get(copies.topic_partition, copies.start)
            firsts[copies.topic_partition] = min(known, copies.start)
    by_replays: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for one in replayed:
        by_replays[one.topic_partition].append(one)
    wanted = set(topics)
    return [
        Uncopied(
            OffsetRange(at, 0, end),
            tuple(one for one in by_replays[at] if one.start < end),
            created.get(at.topic, ""),
        )
        for at, known in sorted(accounted.items())
        if at.topic in wanted and not known.start and (end := firsts.get(at, known.end)) > 0
    ]


def count_uncopied(
    client: ClusterClient, source: OffsetRange, there: Uncopied, options: CopyOptions
) -> Recount:
    """Count the records of others in these offsets. In a task.

    Args:
        source: the range to whose recount they are added.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    at = there.offsets.topic_partition
    low = client.list_offsets([at], EARLIEST, READ_COMMITTED)[at]
    end = min(there.offsets.end, client.list_offsets([at], LATEST, READ_COMMITTED)[at])
    wanted = OffsetRange(at, min(low, end), end)
    topic_id = client.topic(at.topic).topic_id
    found, was_empty = Recount(source), bool(topic_id) and topic_id == there.created_id
    replayed = RangeIndex(sorted(there.replayed))
    for spans in read(client, wanted, options.fetch_max_bytes):
        for span in spans:
            is_replayed = next(replayed.containing(span.start), None) is not None
            if span.run is None or span.skipped is not None or is_replayed:
                continue
            header = span.run.first
            if was_empty and header.records:
                found.foreign += header.records
                found.foreign_at = span.start if found.foreign_at is None else found.foreign_at
            else:
                found.uncopied += header.records
    result = Recount(source)
    result.add(found)
    result.by_destination[str(at)] = found
    return result

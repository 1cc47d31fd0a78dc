"""Counts the records of a part at the destination, as a read_committed consumer sees them.

It reads batch headers: counts that a copy reports about itself would prove nothing. In a task, or
in the process of a window's check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from relay_pipelines.audit.chunks import AuditJob
from relay_pipelines.audit.claims import Claims, RecountPart
from relay_pipelines.audit.coverage import coverage
from relay_pipelines.audit.recount import DestinationCount, Recount
from relay_pipelines.audit.retention import (
    RETENTION_CONFIGS,
    ChunkCount,
    CleanupPolicies,
    Configs,
    config_texts,
)
from relay_pipelines.errors import DataLossError, RelayError
from relay_pipelines.ledger.chunk_copies import RangeIndex
from relay_pipelines.model import LedgerEntry, OffsetRange, Skipped
from relay_pipelines.protocol.admin import each_topic_configs, size_on_disk
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
from relay_pipelines.protocol.fetch import FetchResponse
from relay_pipelines.protocol.open_transactions import wait_until_stable
from relay_pipelines.protocol.reader import FetchedSpan, fetch_first, read

_TOGETHER = 100  # parts whose leaders are asked in common
_FEW_BYTES = 32 << 10  # of a part whose records come with those of others


def count_in_task(
    job: AuditJob, parts: Sequence[RecountPart], clock: Clock
) -> list[DestinationCount]:
    """Count parts; never raises a `RelayError`."""
    if not parts:
        return []
    with destination_client(job.mirror, job.destination, job.options, clock, "recount") as client:
        counts = count_parts(client, parts)
    return [
        DestinationCount(part.range, size_bytes=part.size_bytes, error=str(count))
        if isinstance(count, RelayError)
        else count
        for part, count in zip(parts, counts, strict=True)
    ]


def count_ranges(
    client: ClusterClient,
    ranges: Sequence[tuple[OffsetRange, Sequence[LedgerEntry]]],
    claims: Claims,
) -> list[Recount | RelayError]:
    """Count ranges in this process, all offsets of which must be copied.

    Args:
        ranges: each with the entries of one history that cover it, in order of source offsets.

    Returns:
        for each range, in this order, what was found, or why it cannot be counted.
    """
    parts = [claims.parts(offsets, entries) for offsets, entries in ranges]
    counts = iter(count_parts(client, [*chain(*parts)]))
    results: list[Recount | RelayError] = []
    for (offset_range, entries), some in zip(ranges, parts, strict=True):
        own = [*islice(counts, len(some))]
        counted = [count for count in own if isinstance(count, DestinationCount)]
        errors = [count for count in own if isinstance(count, RelayError)]
        covered = coverage(offset_range, entries, offset_range.end)
        results.append(errors[0] if errors else Recount(covered, counted))
    return results


def count_parts(
    client: ClusterClient, parts: Sequence[RecountPart]
) -> list[DestinationCount | RelayError]:
    """Count parts, in attempts that each try what is left.

    Returns:
        for each part, in this order, what was found, or why it cannot be counted: an error that
        names a topic-partition is its own, any other one that of all parts left.
    """
    results: dict[int, DestinationCount | RelayError] = {}
    left, moved_at = dict(enumerate(parts)), client.clock.monotonic()

    def attempt() -> None:
        """Raise an error that may pass; one of the whole cluster ends the attempt at once."""
        nonlocal moved_at
        passing = None
        configs, refused = _configs(client, left.values())
        for index, part, log in _asked(client, left):
            try:
                if error := refused.get(part.destination.topic_partition.topic):
                    raise error.of(part.range.topic_partition)
                results[index] = _count(client, part, log or _ask(client, {0: part})[0], configs)
            except RelayError as error:
                if error.retryable and error.topic_partition is None:
                    raise
                results[index] = error
                if error.retryable or isinstance(error, DataLossError):
                    passing = passing or error
                    continue
            del left[index]
            moved_at = client.clock.monotonic()
        if passing is not None:
            raise passing

    try:
        # records that are deleted while they are counted are gone for the next attempt
        client.retry(attempt, progress_at=lambda: moved_at, also=(DataLossError,))
    except RelayError as error:
        for index in left:
            results.setdefault(index, error)
    return [results[index] for index in range(len(parts))]


def _configs(
    client: ClusterClient, parts: Iterable[RecountPart]
) -> tuple[Configs, Mapping[str, RelayError]]:
    """Ask for all topics with chunks together: one that cannot be read fails its own parts."""
    topics = sorted({part.destination.topic_partition.topic for part in parts if part.entries})
    configs, errors = each_topic_configs(client, topics, RETENTION_CONFIGS)
    return config_texts(configs), errors


class _Log(NamedTuple):
    """What a leader said of the log with a part: where it begins, and its last stable offset.

    Args:
        first: the first records of the part, if they are few.
    """

    low: int
    stable: int
    first: FetchResponse | None


def _asked(
    client: ClusterClient, left: Mapping[int, RecountPart]
) -> Iterator[tuple[int, RecountPart, _Log | None]]:
    """Yield the parts that are left now, and what the leaders said of them together.

    None if they could not be asked together: each is asked about alone, so that it fails alone.
    """
    parts = iter(list(left.items()))
    while some := dict(islice(parts, _TOGETHER)):
        logs: Mapping[int, _Log] = {}
        try:
            logs = _ask(client, some)
        except RelayError as error:
            if error.retryable and error.topic_partition is None:
                raise
        for index, part in some.items():
            yield index, part, logs.get(index)


def _ask(client: ClusterClient, parts: Mapping[int, RecountPart]) -> Mapping[int, _Log]:
    """Ask the leaders where the logs begin and end, with one request for each question."""
    at = {index: part.destination.topic_partition for index, part in parts.items()}
    copied = {at[index] for index, part in parts.items() if part.entries}
    # for the markers of our commit, and of earlier transactions of others
    high = client.list_offsets(copied, LATEST, READ_UNCOMMITTED)
    stable = client.list_offsets(copied, LATEST, READ_COMMITTED)
    for index, part in parts.items():
        if part.entries and stable[at[index]] < (end := min(part.last, high[at[index]])):
            wait_until_stable(client, at[index], end)
    low = client.list_offsets(set(at.values()), EARLIEST, READ_COMMITTED)
    stable = client.list_offsets(set(at.values()), LATEST, READ_COMMITTED)
    begins = {index: max(low[at[index]], part.destination.start) for index, part in parts.items()}
    few = {
        at[index]: begins[index]
        for index, part in parts.items()
        if part.size_bytes <= _FEW_BYTES and begins[index] < part.end(stable[at[index]])
    }
    first = client.whole(fetch_first(client, few)) if len(few) > 1 else {}
    return {
        index: _Log(low[to], stable[to], first.get(to) if few.get(to) == begins[index] else None)
        for index, to in at.items()
    }


def _count(
    client: ClusterClient, part: RecountPart, log: _Log, configs: Configs
) -> DestinationCount:
    """Count one part."""
    to, start, low = part.destination.topic_partition, part.destination.start, log.low
    policies = CleanupPolicies(configs.get(to.topic, {}), part.source_config)
    size_bytes = partial(size_on_disk, client, to)
    unexplained = (
        policies.contradicting(part.entries, low, client.clock.now_ms(), size_bytes)
        if low > start
        else ""
    )
    end = part.end(log.stable)
    scanned = OffsetRange(to, max(low, start), max(low, start, end))
    counting = PartCount(
        part,
        is_compacted=policies.compact,
        was_empty=bool(part.created_id) and client.topic(to.topic).topic_id == part.created_id,
    )
    for spans in read(client, scanned, client.options.fetch_max_bytes, first=log.first):
        for span in spans:
            counting.add(span)
    counting.judge(0 if unexplained else low)
    if unexplained:
        counting.result.truncated = (
            f"the destination's log begins at offset {low}, although {unexplained}: records before"
            " it were deleted"
        )
    counting.result.unlike_source = policies.difference
    counting.result.scanned = scanned
    return counting.result


class PartCount:
    """Counts what the spans of a part hold. Pure.

    Args:
        is_compacted: whether a cleaner may work on the topic.
        was_empty: whether the topic is known to have been empty before the mirror's first copy.
    """

    def __init__(self, part: RecountPart, *, is_compacted: bool, was_empty: bool = False) -> None:
        self.result = DestinationCount(part.range, size_bytes=part.size_bytes)
        self._tally = self.result.tally
        self._tally.records = sum(entry.records for entry in part.entries)
        self._part = part
        self._was_empty = was_empty
        self._chunks = [ChunkCount(entry, is_compacted) for entry in part.entries]
        self._index = RangeIndex([entry.destination for entry in part.entries])
        self._others = RangeIndex(part.others)

    def add(self, span: FetchedSpan) -> None:
        """Count the records of a span: those of our chunks, and foreign ones."""
        if span.skipped is Skipped.COMPACTION_GAP:
            for position in self._index.overlapping(span.start, span.end):
                self._chunks[position].add_holes(span.start, span.end)
        if span.run is None or span.skipped is not None:
            return
        batch = Batch(span.run.first, span.run.data)
        header = batch.header
        offset, producer_id = header.base_offset, header.producer_id
        within = (self._chunks[position] for position in self._index.containing(offset))
        chunk = next((each for each in within if each.entry.producer_id == producer_id), None)
        if chunk is not None:
            chunk.add(batch)
            self._tally.counted += header.records
            self._date(header)
        elif not any(
            self._part.others[position].producer_id == producer_id
            for position in self._others.containing(offset)
        ):
            self._add_unknown(header)

    def judge(self, low: int) -> None:
        """Add what is there of each chunk to the result, after all spans.

        Args:
            low: up to where retention may have deleted records.
        """
        tally = self._tally
        for chunk in self._chunks:
            tally.untimed += chunk.untimed
            missing = chunk.missing(low)
            if missing is None:
                tally.differing += 1
                continue
            tally.not_verified.update(missing)
            if why := chunk.why_not_compared(missing):
                tally.not_compared.update({why: chunk.records} if chunk.records else {})
            elif chunk.has_its_digest:
                tally.by_content += chunk.records
            else:
                tally.differing += 1

    def _date(self, header: BatchHeader) -> None:
        result, first_ms, last_ms = self.result, header.first_timestamp_ms, header.max_timestamp_ms
        if first_ms is not None:
            earlier = first_ms if result.first_ms is None else result.first_ms
            result.first_ms = min(first_ms, earlier)
        if last_ms >= 0:
            result.last_ms = max(last_ms, -1 if result.last_ms is None else result.last_ms)

    def _add_unknown(self, header: BatchHeader) -> None:
        """Count records that no chunk claims."""
        tally, offset, part = self._tally, header.base_offset, self._part
        if part.created_id is not None and not self._was_empty:
            tally.uncopied += header.records
        elif offset < part.expired_to:
            tally.unattributed += header.records
        elif header.records and offset < part.known_to:
            tally.foreign += header.records
            if self.result.foreign_at is None:
                self.result.foreign_at = offset

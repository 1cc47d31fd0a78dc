"""Records at the destination where nothing was copied: before the first copy, or instead of one.

A mirror that has created the topic knows that it was empty, so they are foreign. In a topic that
existed before, somebody may have written them before the mirror began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relay_pipelines.audit.range_index import RangeIndex
from relay_pipelines.audit.recount import Recount
from relay_pipelines.model import CopyOptions, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import read


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
    client: ClusterClient, source: OffsetRange, there: Uncopied, options: CopyOptions, clock: Clock
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
    for spans in read(client, wanted, options.fetch_max_bytes, clock):
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

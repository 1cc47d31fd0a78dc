"""The destination offsets of which the ledger has every entry: others show nothing about records.

A mirror and its replays may write to one topic, at the same time. Their ledger entries are in
several partitions of the ledger, and retention removes those at different times.

Since when the retention of the ledger's topic can have removed no entry.

The chunks of a mirror on one side, without the records of others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import family_of, home, key_of
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS
from relay_pipelines.ledger.state_table import UnreadableCheckpoint, read_any_state
from relay_pipelines.model import Checkpoint, Intervals, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.admin import RETENTIONS, readable_topic_configs
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.reader import FetchedSpan


@dataclass(frozen=True, slots=True)
class BeforeLedger:
    """What the destination held before the ledger was read.

    Args:
        checkpoints: of a mirror and its replays.
        ends: the last stable offsets of the topics with copies: what is below them is in an entry
            that the reader finds.
        others: the topic-partitions into which other mirrors copy.
        hidden: topics into which other mirrors may copy whose checkpoints cannot be read.
        kept_since_ms: by topic-partition of the ledger, as of `ledger_kept_since_ms`.
    """

    checkpoints: tuple[Checkpoint, ...]
    ends: Mapping[TopicPartition, int]
    others: frozenset[TopicPartition] = frozenset()
    hidden: Mapping[str, UnreadableCheckpoint] = field(default_factory=dict)
    kept_since_ms: Mapping[TopicPartition, int] = field(default_factory=dict)

    def accounted(self, entries: Iterable[LedgerEntry]) -> dict[TopicPartition, OffsetRange]:
        """Return, by destination topic-partition, the offsets of which the ledger has every entry.

        Args:
            entries: all that the ledger has of the mirror and its replays.
        """
        grouped: dict[tuple[str, TopicPartition], list[LedgerEntry]] = defaultdict(list)
        copied: dict[TopicPartition, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            grouped[entry.mirror, entry.source.topic_partition].append(entry)
            if entry.records:
                copied[entry.destination.topic_partition].append(entry)
        starts = dict.fromkeys(self.ends, 0)
        for source_checkpoint in self.checkpoints:
            tp, own = (
                _copies_in(source_checkpoint),
                grouped[source_checkpoint.mirror, source_checkpoint.source],
            )
            start = self._complete_from(source_checkpoint, own, copied[tp])
            starts[tp] = max(starts.get(tp, 0), start)
        return {tp: OffsetRange(tp, starts[tp], end) for tp, end in self.ends.items()}

    def _complete_from(
        self,
        checkpoint: Checkpoint,
        own: Iterable[LedgerEntry],
        copied: Iterable[LedgerEntry],
    ) -> int:
        """Return the destination offset after the copies of the newest entry that is gone; or 0.

        Only retention takes entries. Others are missing, and what they might have named is foreign:
        a checkpoint alone, which another process may have written, excuses nothing.

        Args:
            own: the entries of the checkpoint's chain.
            copied: those with records in the same destination topic-partition, of all chains.
        """
        numbered, head = {entry.number: entry for entry in own}, checkpoint.ledger_head
        newest = next((number for number in range(head.number, 0, -1) if number not in numbered), 0)
        after = numbered.get(newest + 1)
        gone_ms = head.committed_at_ms if after is None else after.previous_at_ms
        key = key_of(checkpoint.mirror, checkpoint.source)
        if not newest or gone_ms >= self.kept_since_ms.get(home(ledger_topic.TOPIC, key), 0):
            return 0
        tp = _copies_in(checkpoint)
        follow = [
            entry.destination.start
            for entry in numbered.values()
            if entry.number > newest and entry.records and entry.destination.topic_partition == tp
        ]
        end = min(follow, default=checkpoint.copies.next_offset if checkpoint.copies else 0)
        # its copies are before those that were committed later
        later_ms = gone_ms + CLOCK_SKEW_MS
        later = (
            ledger_entry.destination.start
            for ledger_entry in copied
            if ledger_entry.committed_at_ms > later_ms
        )
        return min([end, *later])


def read_before_ledger(
    client: ClusterClient,
    name: str,
    copies: Iterable[TopicPartition] = (),
    *,
    settled: bool = False,
) -> BeforeLedger:
    """Read what `BeforeLedger` holds of a mirror or replay.

    Args:
        copies: destination topic-partitions besides those that the checkpoints name.
        settled: as of `read_state`.

    Raises:
        TamperedError, UnsupportedError: a checkpoint of the mirror or of a replay cannot be read.
        RelayError: the destination does not answer, or refuses.
    """
    every = read_any_state(client, settled=settled).every_mirror()
    for hidden in every.unreadable:
        if _is_of(hidden.mirror, name):
            raise hidden.error.of(hidden.source)
    ours = tuple(each for each in every.checkpoints if _is_of(each.mirror, name))
    topic_partitions = {*copies, *map(_copies_in, ours)}
    existing = client.existing({tp.topic for tp in topic_partitions})
    partitions = [  # also those without copies, into which others may write
        tp
        for topic in existing
        for tp in (TopicPartition(topic, each) for each in client.topic(topic).leaders)
        if client.has_leader(tp)  # what has none fails for itself when it is read
    ]
    others = frozenset(map(_copies_in, every.checkpoints)) - set(map(_copies_in, ours))
    ends = client.list_offsets(partitions, LATEST, READ_COMMITTED)
    return BeforeLedger(
        *(ours, ends, others, every.hidden_in(client, existing), ledger_kept_since_ms(client))
    )


def _is_of(written_by: str, name: str) -> bool:
    """Whether both names are of one family."""
    return family_of(written_by) == family_of(name)


def _copies_in(checkpoint: Checkpoint) -> TopicPartition:
    """Return the topic-partition with the last record copied; without one, where it would go."""
    return checkpoint.copies.topic_partition if checkpoint.copies else checkpoint.destination


_RETENTION_MS, _RETENTION_BYTES = RETENTIONS


def ledger_kept_since_ms(client: ClusterClient) -> dict[TopicPartition, int]:
    """Return since when no entry can have been removed by retention, by ledger topic-partition.

    0 means never, because nothing was removed. Empty if there is no ledger.
    """
    if not client.has_topic(ledger_topic.TOPIC):
        return {}
    low = client.list_offsets(checkpoint.homes(ledger_topic.TOPIC), EARLIEST, READ_COMMITTED)
    configs, _ = readable_topic_configs(client, [ledger_topic.TOPIC], RETENTIONS)
    values = {key: config.value for key, config in configs[ledger_topic.TOPIC].items()}
    retention_ms = int(values.get(_RETENTION_MS, ledger_topic.CONFIGS[_RETENTION_MS]))
    now_ms = client.clock.now_ms()
    since = now_ms - retention_ms + CLOCK_SKEW_MS if retention_ms >= 0 else 0
    if int(values.get(_RETENTION_BYTES, -1)) >= 0:
        since = now_ms + CLOCK_SKEW_MS  # any entry may be gone
    return {tp: since if offset else 0 for tp, offset in low.items()}


def source_offsets(entries: Iterable[LedgerEntry]) -> dict[int, Intervals]:
    """Return the source offsets of chunks by partition, in order; neighbours are joined."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.source):
        some, offsets = found[entry.source.topic_partition.partition], entry.source
        if some and offsets.start <= some[-1][1]:
            some[-1] = some[-1][0], max(some[-1][1], offsets.end)
        else:
            some.append((offsets.start, offsets.end))
    return {partition: tuple(some) for partition, some in sorted(found.items())}


class ChunkCopies(NamedTuple):
    """Where the records of a chunk are: its offsets `[start, end)`, and their producer id.

    Records of others may lie between them. Without a producer id (-1), all are the chunk's.
    """

    start: int
    end: int
    producer_id: int = -1

    @classmethod
    def of(cls, entry: LedgerEntry) -> ChunkCopies:
        """Return those of a ledger entry."""
        return cls(entry.destination.start, entry.destination.end, entry.producer_id)


def destination_offsets(
    entries: Iterable[LedgerEntry],
) -> dict[int, tuple[ChunkCopies, ...]]:
    """Return where the copies of each chunk with records are, by partition, in order."""
    found: dict[int, list[ChunkCopies]] = defaultdict(list)
    for entry in entries:
        if entry.records:
            found[entry.destination.topic_partition.partition].append(ChunkCopies.of(entry))
    return {partition: tuple(sorted(some)) for partition, some in sorted(found.items())}


def own_batches(chunks: Sequence[ChunkCopies]) -> Callable[[FetchedSpan], bool]:
    """Return what tells whether a span at the destination holds records of chunks.

    Args:
        chunks: in order.
    """
    index = RangeIndex(chunks)

    def is_own(span: FetchedSpan) -> bool:
        if span.run is None or span.skipped is not None:
            return False
        # chunks of several partitions that are pinned to one may overlap
        within = (chunks[position] for position in index.containing(span.start))
        return any(chunk.producer_id in {-1, span.run.first.producer_id} for chunk in within)

    return is_own


class RangeIndex:
    """Finds, among offset ranges of one topic-partition, those that overlap others.

    A look-up takes logarithmic time, unless ranges lie within each other.

    Args:
        ranges: sorted by their start.
    """

    def __init__(self, ranges: Sequence[OffsetRange | ChunkCopies]) -> None:
        self._ranges = ranges
        self._starts = [offset_range.start for offset_range in ranges]
        self._most_ends = list(accumulate((offset_range.end for offset_range in ranges), max))

    def overlapping(self, start: int, end: int) -> Iterator[int]:
        """Yield the positions of the ranges that overlap `[start, end)`, the last one first."""
        position = bisect_left(self._starts, end) - 1
        while position >= 0 and self._most_ends[position] > start:
            if self._ranges[position].end > start:
                yield position
            position -= 1

    def containing(self, offset: int) -> Iterator[int]:
        """Yield the positions of the ranges that contain an offset, the last one first."""
        return self.overlapping(offset, offset + 1)

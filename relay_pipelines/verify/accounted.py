"""The destination offsets of which the ledger has every entry: others show nothing about records.

A mirror and its replays may write to one topic, at the same time. Their ledger entries are in
several partitions of the ledger, and retention removes those at different times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.state.checkpoint import REPLAY, TOPIC, read_all_mirrors


@dataclass(frozen=True, slots=True)
class BeforeLedger:
    """What the destination held before the ledger was read.

    Args:
        checkpoints: of a mirror and its replays.
        ends: the last stable offsets of the topics with copies: what is below them is in an entry
            that the reader finds.
        others: the topic-partitions into which other mirrors copy.
    """

    checkpoints: tuple[Checkpoint, ...]
    ends: Mapping[TopicPartition, int]
    others: frozenset[TopicPartition] = frozenset()

    def accounted(self, entries: Iterable[LedgerEntry]) -> dict[TopicPartition, OffsetRange]:
        """Return, by destination topic-partition, the offsets of which the ledger has every entry.

        Args:
            entries: all that the ledger has of the mirror and its replays.
        """
        grouped: dict[tuple[str, TopicPartition], list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            grouped[entry.mirror, entry.source.topic_partition].append(entry)
        starts = dict.fromkeys(self.ends, 0)
        for checkpoint in self.checkpoints:
            at = _copies_in(checkpoint)
            start = _complete_from(checkpoint, grouped[checkpoint.mirror, checkpoint.source])
            starts[at] = max(starts.get(at, 0), start)
        return {at: OffsetRange(at, starts[at], end) for at, end in self.ends.items()}


def read_before_ledger(
    client: ClusterClient, name: str, clock: Clock, copies: Iterable[TopicPartition] = ()
) -> BeforeLedger:
    """Read what `BeforeLedger` holds of a mirror or replay.

    Args:
        copies: destination topic-partitions besides those that the checkpoints name.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    family = name.partition(REPLAY)[0]
    found = read_all_mirrors(client, clock) if client.has_topic(TOPIC) else []
    ours = tuple(each for each in found if each.mirror.partition(REPLAY)[0] == family)
    wanted = {*copies, *map(_copies_in, ours)}
    existing = client.existing({at.topic for at in wanted})
    there = [  # also those without copies, into which others may write
        at
        for topic in existing
        for at in (TopicPartition(topic, each) for each in client.topic(topic).leaders)
        if client.has_leader(at)  # what has none fails for itself when it is read
    ]
    others = frozenset(map(_copies_in, found)) - set(map(_copies_in, ours))
    return BeforeLedger(ours, client.list_offsets(there, LATEST, READ_COMMITTED), others)


def _copies_in(checkpoint: Checkpoint) -> TopicPartition:
    """Return the topic-partition with the last record copied; without one, where it would go."""
    return checkpoint.copies.topic_partition if checkpoint.copies else checkpoint.destination


def _complete_from(checkpoint: Checkpoint, entries: Iterable[LedgerEntry]) -> int:
    """Return the destination offset after the copies of the newest entry that is missing; or 0."""
    numbered = {entry.number: entry for entry in entries}
    head = checkpoint.ledger_head.number
    newest = next((number for number in range(head, 0, -1) if number not in numbered), 0)
    if not newest:
        return 0
    after = (
        entry.destination.start
        for number, entry in numbered.items()
        if number > newest
        and entry.records
        and entry.destination.topic_partition == _copies_in(checkpoint)
    )
    return min(after, default=checkpoint.copies.next_offset if checkpoint.copies else 0)

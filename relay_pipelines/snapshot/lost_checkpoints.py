"""Checkpoints that are gone, or that are not the last ones: ledger or destination know more.

docs/transactions.md argues what this finds (**T**). It reads ledger and copies only where the
destination holds more than the checkpoint says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from relay_pipelines.ledger import followed, ledger_topic
from relay_pipelines.ledger.checkpoint import Key, home, key_of
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.model import Checkpoint, DestinationPosition, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.metadata import Metadata
from relay_pipelines.protocol.reader import read

_LEDGER_OFFSETS = 10_000  # per partition of the ledger, two per entry
_MARKER = 1
_MOST_OFFSETS_AFTER = 10_000
_FETCH_BYTES = 1 << 20


# what this process has looked at, so that it reads each record once
_EXAMINED: dict[tuple[tuple[str, ...], str, TopicPartition], tuple[DestinationPosition, int]] = {}
"""The copies after which no record of the mirror was found, and up to which offset."""


@dataclass(frozen=True, slots=True)
class Lost:
    """By source topic-partition, what shows that its checkpoint is not the last one.

    Args:
        entries: the newest ledger entry, which is newer.
        copies: where the destination has records of the mirror after its copies, though the ledger
            has no newer entry.
    """

    entries: Mapping[TopicPartition, LedgerRecord] = field(default_factory=dict)
    copies: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LostCheckpoints:
    """Finds them for one mirror.

    Args:
        at_destination: the topics of the destination that concern the mirror.
    """

    client: ClusterClient
    mirror: str
    at_destination: Metadata

    def find(
        self, destinations: Mapping[TopicPartition, TopicPartition], snapshot: CheckpointSnapshot
    ) -> tuple[CheckpointSnapshot, Lost]:
        """Return what is lost.

        Another run may have committed since the checkpoints were read, so they are read again then,
        and returned.

        Args:
            destinations: by source topic-partition, where the configuration wants the copies.
        """
        suspects = self._written_after(destinations, snapshot.checkpoints)
        if not suspects or ledger_topic.TOPIC not in self.at_destination.topics:
            return snapshot, Lost()
        newest = self._newest_entries(suspects, snapshot.checkpoints)
        if newer := _newer(newest, snapshot.checkpoints):
            snapshot = self._read_again(snapshot)
            newer = _newer(newer, snapshot.checkpoints)
        copies = self._copies_after(suspects, newer.keys(), snapshot.checkpoints)
        if copies:
            known, snapshot = snapshot.checkpoints, self._read_again(snapshot)
            now = snapshot.checkpoints
            copies = {tp: after for tp, after in copies.items() if now.get(tp) == known[tp]}
        return snapshot, Lost(newer, copies)

    def _read_again(self, snapshot: CheckpointSnapshot) -> CheckpointSnapshot:
        """Return the checkpoints of all that was committed so far."""
        if not snapshot.ends:
            return snapshot
        return read_state(self.client, settled=True).of(self.mirror)

    def _copies_after(
        self,
        suspects: Mapping[TopicPartition, Collection[TopicPartition]],
        newer: Collection[TopicPartition],
        checkpoints: Mapping[TopicPartition, Checkpoint],
    ) -> dict[TopicPartition, int]:
        """Return where committed records of the last copy's producer follow it.

        A transactional id keeps its producer id for days, and no other uses it.

        Args:
            newer: those of which the ledger has newer entries, which need no other proof.
        """
        after = {}
        for tp, written in suspects.items():
            copies = checkpoints[tp].copies if tp in checkpoints and tp not in newer else None
            if copies is None or copies.topic_partition not in written:
                continue
            if (offset := self._own_after(tp, copies)) is not None:
                after[tp] = offset
        return after

    def _own_after(self, tp: TopicPartition, copies: DestinationPosition) -> int | None:
        to, last = copies.topic_partition, copies.next_offset - 1
        low = self.client.list_offsets([to], EARLIEST, READ_COMMITTED)[to]
        end = self.client.list_offsets([to], LATEST, READ_COMMITTED)[to]
        offset_range = OffsetRange(to, last, min(end, last + _MOST_OFFSETS_AFTER))
        at = self.client.cluster.bootstrap_servers, self.mirror, tp
        if copies.topic_id and _EXAMINED.get(at) == (copies, offset_range.end):
            return None
        producer = None
        for spans in read(self.client, offset_range, _FETCH_BYTES) if last >= low else ():
            for span in spans:
                if span.run is None or span.skipped is not None:
                    continue
                if span.start <= last:
                    producer = span.run.first.producer_id
                elif span.run.first.producer_id == producer:
                    return span.start
        _EXAMINED[at] = copies, offset_range.end
        return None

    def _written_after(
        self,
        destinations: Mapping[TopicPartition, TopicPartition],
        checkpoints: Mapping[TopicPartition, Checkpoint],
    ) -> dict[TopicPartition, set[TopicPartition]]:
        """Return the source topic-partitions after whose last known copy something was written.

        And where: in the topic-partition with the copies, or in that which the configuration names.
        """
        known = {
            tp: _ends_of_copies(checkpoints.get(tp), destination)
            for tp, destination in destinations.items()
        }
        led = {to for ends in known.values() for to in ends if self.at_destination.has_leader(to)}
        # the end of what every replica has: an open transaction holds the last stable offset back
        ends_now = self.client.list_offsets(led, LATEST, READ_UNCOMMITTED)
        written = {
            tp: {to for to, end in ends.items() if ends_now.get(to, 0) > end}
            for tp, ends in known.items()
        }
        return {tp: partitions for tp, partitions in written.items() if partitions}

    def _newest_entries(
        self, suspects: Collection[TopicPartition], checkpoints: Mapping[TopicPartition, Checkpoint]
    ) -> dict[TopicPartition, LedgerRecord]:
        """Return the newest ledger entries of these topic-partitions, if they are late enough."""
        homes: dict[TopicPartition, list[TopicPartition]] = defaultdict(list)
        for tp in suspects:
            homes[home(ledger_topic.TOPIC, key_of(self.mirror, tp))].append(tp)
        # what was committed before an open transaction is below the last stable offset; nobody
        # waits here for what a killed task has left open, as its successor aborts it
        ends = self.client.list_offsets(homes, LATEST, READ_COMMITTED)
        low = self.client.list_offsets(homes, EARLIEST, READ_COMMITTED)
        starts = {
            at: max(low[at], self._start(at, ends[at], map(checkpoints.get, sources)))
            for at, sources in homes.items()
        }
        # an entry of before that stands at the end once more is not the newest one
        values = followed.newest_values(
            self.client, ends, starts, lambda value: value.decoded(ledger_topic.number_of)
        )
        return {
            tp: ledger_topic.record_at(key.encode(), value.raw, at, value.offset)
            for at, sources in homes.items()
            for tp in sources
            if (value := values.get(key := Key.of(self.mirror, tp)))
        }

    def _start(self, home: TopicPartition, end: int, known: Iterable[Checkpoint | None]) -> int:
        """Return from where the ledger has the entries after these checkpoints.

        The entry of a checkpoint's head has its time. Without one, only the end is read: a new
        mirror must not read the ledger of all others before each of its snapshots.
        """
        heads = [
            None if checkpoint is None else checkpoint.ledger_head.committed_at_ms
            for checkpoint in known
        ]
        starts = [end - _LEDGER_OFFSETS] if None in heads else []
        if times := [head for head in heads if head is not None]:
            starts.append(self.client.first_offsets(min(times), {home: end})[home])
        return min(starts)


def _ends_of_copies(
    checkpoint: Checkpoint | None, destination: TopicPartition
) -> dict[TopicPartition, int]:
    """Return, where copies are or may be, the offset after the last one known and its marker.

    If the checkpoint is not the last one, a reset may have decided for another destination since.
    """
    ends = {destination: 0}
    if checkpoint is not None and checkpoint.copies is not None:
        ends[checkpoint.copies.topic_partition] = checkpoint.copies.next_offset + _MARKER
    return ends


def _newer(
    newest: Mapping[TopicPartition, LedgerRecord], checkpoints: Mapping[TopicPartition, Checkpoint]
) -> dict[TopicPartition, LedgerRecord]:
    """Return the entries that were committed after the checkpoints."""
    return {
        tp: record
        for tp, record in newest.items()
        if tp not in checkpoints or record.entry.number > checkpoints[tp].ledger_head.number
    }

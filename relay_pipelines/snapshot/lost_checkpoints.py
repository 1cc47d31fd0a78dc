"""Checkpoints that are gone, or that are not the last ones: the ledger has newer entries.

docs/transactions.md argues what this finds (**T**). It reads the ledger only where the destination
holds more than the checkpoint says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from relay_pipelines.model import Checkpoint, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    Metadata,
)
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.state import checkpoint, ledger
from relay_pipelines.state.checkpoint import CheckpointCache, CheckpointSnapshot
from relay_pipelines.state.ledger import LedgerRecord
from relay_pipelines.state.ledger_reader import read_records

_LEDGER_OFFSETS = 10_000  # per partition of the ledger, two per entry
_MARKER = 1


@dataclass(frozen=True, slots=True)
class LostCheckpoints:
    """Finds them for one mirror.

    Args:
        at_destination: all topics of the destination.
        cache: what was read before, of the ledger as well.
    """

    client: ClusterClient
    mirror: str
    at_destination: Metadata
    options: CopyOptions
    clock: Clock
    cache: CheckpointCache

    def find(
        self, destinations: Mapping[TopicPartition, TopicPartition], found: CheckpointSnapshot
    ) -> tuple[CheckpointSnapshot, dict[TopicPartition, LedgerRecord]]:
        """Return the newest ledger entry of each topic-partition whose checkpoint is before it.

        Another run may have committed since the checkpoints were read, so they are read again then,
        and returned.

        Args:
            destinations: by source topic-partition, where the configuration wants the copies.
        """
        suspects = self._written_after(destinations, found.checkpoints)
        if not suspects or ledger.TOPIC not in self.at_destination.topics:
            return found, {}
        newest = self._newest_entries(suspects, found.checkpoints)
        if newer := _newer(newest, found.checkpoints):
            if found.ends:
                homes = checkpoint.homes(checkpoint.TOPIC)
                checkpoint.wait_for_open_transactions(self.client, homes, self.options, self.clock)
                found = checkpoint.read_all(self.client, self.mirror, self.clock)
            newer = _newer(newer, found.checkpoints)
        return found, newer

    def _written_after(
        self,
        destinations: Mapping[TopicPartition, TopicPartition],
        checkpoints: Mapping[TopicPartition, Checkpoint],
    ) -> set[TopicPartition]:
        """Return the source topic-partitions after whose last known copy something was written."""
        known = {
            at: _end_of_copies(checkpoints.get(at), destination)
            for at, destination in destinations.items()
        }
        topics = self.at_destination.topics
        led = {
            to
            for to, _ in known.values()
            if to.topic in topics
            and to.partition in topics[to.topic].leaders
            and topics[to.topic].has_leader(to.partition)
        }
        # the end of what every replica has: an open transaction holds the last stable offset back
        ends = self.client.list_offsets(led, LATEST, READ_UNCOMMITTED)
        return {at for at, (to, end) in known.items() if ends.get(to, 0) > end}

    def _newest_entries(
        self, suspects: Collection[TopicPartition], checkpoints: Mapping[TopicPartition, Checkpoint]
    ) -> dict[TopicPartition, LedgerRecord]:
        """Return the newest ledger entries of these topic-partitions, if they are late enough."""
        homes: dict[TopicPartition, list[TopicPartition]] = defaultdict(list)
        for at in suspects:
            key = checkpoint.key_of(self.mirror, at)
            homes[checkpoint.home(ledger.TOPIC, key)].append(at)
        checkpoint.wait_for_open_transactions(self.client, homes, self.options, self.clock)
        ends = self.client.list_offsets(homes, LATEST, READ_COMMITTED)
        low = self.client.list_offsets(homes, EARLIEST, READ_COMMITTED)
        newest: dict[TopicPartition, LedgerRecord] = {}
        for home, sources in homes.items():
            start = self._start(home, ends[home], [checkpoints.get(at) for at in sources])
            found = self._read(OffsetRange(home, max(low[home], start), ends[home]))
            newest |= {at: found[at] for at in sources if at in found}
        return newest

    def _start(self, home: TopicPartition, end: int, known: Iterable[Checkpoint | None]) -> int:
        """Return from where the ledger has the entries after these checkpoints.

        The entry of a checkpoint's head has its time. Without one, only the end is read: a new
        mirror must not read the ledger of all others before each of its snapshots.
        """
        heads = [None if each is None else each.ledger_head.committed_at_ms for each in known]
        starts = [end - _LEDGER_OFFSETS] if None in heads else []
        if times := [head for head in heads if head is not None]:
            starts.append(self.client.first_offsets(min(times), {home: end})[home])
        return min(starts)

    def _read(self, wanted: OffsetRange) -> dict[TopicPartition, LedgerRecord]:
        """Return the newest entry of each source topic-partition in a range of the ledger."""
        start, found = self.cache.entries(self.client, wanted)
        prefixes = checkpoint.key_prefixes(self.mirror)
        missing = OffsetRange(wanted.topic_partition, start, wanted.end)
        for records in read_records(self.client, missing, prefixes, self.clock):
            found |= {record.entry.source.topic_partition: record for record in records}
        self.cache.put_entries(self.client, wanted, found)
        return found


def _end_of_copies(
    known: Checkpoint | None, destination: TopicPartition
) -> tuple[TopicPartition, int]:
    """Return where the copies are, and the offset after the last one and its marker."""
    if known is None or known.copies is None:
        return destination, 0
    return known.copies.topic_partition, known.copies.next_offset + _MARKER


def _newer(
    newest: Mapping[TopicPartition, LedgerRecord], checkpoints: Mapping[TopicPartition, Checkpoint]
) -> dict[TopicPartition, LedgerRecord]:
    """Return the entries that were committed after the checkpoints."""
    return {
        at: record
        for at, record in newest.items()
        if at not in checkpoints or record.entry.number > checkpoints[at].ledger_head.number
    }

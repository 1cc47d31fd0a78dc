"""What the source holds of every topic-partition, and how far it was copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relay_pipelines.copy.position import read_positions, unproved_logs
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.batch_timestamps import timestamps_ms
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient, Metadata
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import start_offsets
from relay_pipelines.state.checkpoint import CheckpointSnapshot
from relay_pipelines.state.ledger import LedgerRecord


class Positions:
    """The positions of a mirror.

    Args:
        source: the node to read.
        at_destination: all topics of the destination.
        destinations: source topic -> destination topic, of the included topics.
        ledger_records: the last ledger entry per topic-partition that has lost its checkpoint.
        among_several: whether the source has other nodes.
    """

    def __init__(
        self,
        source: ClusterClient,
        at_destination: Metadata,
        destinations: Mapping[str, str],
        checkpoints: CheckpointSnapshot,
        ledger_records: Mapping[TopicPartition, LedgerRecord],
        mirror: Mirror,
        clock: Clock,
        *,
        among_several: bool,
    ) -> None:
        self._source = source
        self._at_destination = at_destination
        self._destinations = destinations
        self._snapshot = checkpoints
        self._ledger_records = ledger_records
        self._mirror = mirror
        self._clock = clock
        self._among_several = among_several

    def all(self) -> list[Position]:
        """Every topic-partition of the included topics, in order."""
        wanted = [
            at for topic in self._destinations for at in self._source.topic(topic).topic_partitions
        ]
        # before the last stable offsets: records written between the two requests would look like
        # an open transaction
        high = self._source.list_offsets(wanted, LATEST, READ_UNCOMMITTED)
        at_source = read_positions(
            self._source,
            wanted,
            self._snapshot.checkpoints,
            among_several=self._among_several,
        )
        starts = start_offsets.start_offsets(
            self._source, self._snapshot, self._ledger_records, wanted
        )
        ends = {at: position.end_offset for at, position in at_source.items()}
        known = {at: copied for at, copied in self._snapshot.checkpoints.items() if at in ends}
        unproved = unproved_logs(self._source, ends, known, self._clock)
        positions = [
            replace(
                self._completed(at_source[at], starts.get(at)),
                high_watermark=high[at],
                recreated=at_source[at].recreated or at in unproved,
            )
            for at in wanted
        ]
        return self._with_open_since(positions)

    def _completed(self, position: Position, start: int | None) -> Position:
        """Add what only the destination knows."""
        checkpoint = self._snapshot.checkpoints.get(position.topic_partition)
        if checkpoint is not None:
            return replace(position, destination_lost=self._destination_lost(checkpoint))
        last = self._ledger_records.get(position.topic_partition)
        return replace(
            position, next_offset=start, ledger_end=None if last is None else last.entry.source.end
        )

    def _destination_lost(self, checkpoint: Checkpoint) -> str:
        if checkpoint.copies is None:
            return ""
        copied_to = checkpoint.copies.topic_partition.topic
        if self._destinations[checkpoint.source.topic] != copied_to:
            return ""
        topic = self._at_destination.topics.get(copied_to)
        if topic is None:
            return f"topic {copied_to!r}, which holds the copies, was deleted at the destination"
        known_id = checkpoint.copies.topic_id
        if known_id and topic.topic_id and topic.topic_id != known_id:
            return (
                f"topic {copied_to!r}, which held the copies, was deleted at the destination"
                " and created again"
            )
        return ""

    def _with_open_since(self, positions: Sequence[Position]) -> list[Position]:
        """Add since when transactions are open; the ones with the most records are asked first."""
        held_up = sorted(
            (position.open_transaction for position in positions if position.open_transaction),
            key=len,
            reverse=True,
        )
        since = timestamps_ms(
            self._source,
            {transaction.topic_partition: transaction.start for transaction in held_up},
        )
        return [
            replace(position, open_since_ms=since.get(position.topic_partition))
            for position in positions
        ]

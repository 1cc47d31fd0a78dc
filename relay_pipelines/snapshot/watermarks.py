"""Where a mirror stands: what the source holds of every topic-partition, how far it was copied, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from relay_pipelines.copy.position import read_positions
from relay_pipelines.model import Checkpoint, LedgerEntry, TopicPartition
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.batch_timestamps import timestamps_ms
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient, Metadata
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import start_offsets
from relay_pipelines.state.checkpoint import CheckpointSnapshot


class Positions:
    """The positions of a mirror.

    Args:
        source: the node that is read.
        at_destination: all of its topics.
        renamed: source topic -> destination topic, of the topics wanted.
        recorded: the last ledger entry per topic-partition, of a mirror without checkpoints.
    """

    def __init__(
        self,
        source: ClusterClient,
        at_destination: Metadata,
        renamed: Mapping[str, str],
        known: CheckpointSnapshot,
        recorded: Mapping[TopicPartition, LedgerEntry],
        mirror: Mirror,
    ) -> None:
        self._source = source
        self._at_destination = at_destination
        self._renamed = renamed
        self._known = known
        self._checkpoints = known.checkpoints
        self._recorded = recorded
        self._mirror = mirror

    def all(self) -> list[Position]:
        """Every topic-partition of the topics wanted, in order."""
        wanted = [
            one for topic in self._renamed for one in self._source.topic(topic).topic_partitions
        ]
        # before the last stable offsets, or what is written meanwhile would look like an open
        # transaction
        high = self._source.list_offsets(wanted, LATEST, READ_UNCOMMITTED)
        found = read_positions(
            self._source, wanted, self._checkpoints, among_several=len(self._mirror.nodes) > 1
        )
        low = {at: position.low_watermark for at, position in found.items()}
        end = {at: position.end_offset for at, position in found.items()}
        starts = start_offsets.starts(
            self._source, self._mirror.start, self._known, self._recorded, (low, end)
        )
        completed = [
            replace(self._completed(found[at], starts.get(at)), high_watermark=high[at])
            for at in wanted
        ]
        held_up = sorted(
            (each.open_transaction for each in completed if each.open_transaction),
            key=len,
            reverse=True,
        )
        since = timestamps_ms(self._source, {each.topic_partition: each.start for each in held_up})
        return [replace(each, open_since_ms=since.get(each.topic_partition)) for each in completed]

    def _completed(self, position: Position, start: int | None) -> Position:
        """Add what the node does not know."""
        checkpoint = self._checkpoints.get(position.topic_partition)
        if checkpoint is not None:
            return replace(position, destination_lost=self._copy_gone(checkpoint))
        entry = self._recorded.get(position.topic_partition)
        return replace(
            position, next_offset=start, recorded=None if entry is None else entry.source.end
        )

    def _copy_gone(self, checkpoint: Checkpoint) -> str:
        copied_to = checkpoint.destination.topic
        if (
            self._renamed[checkpoint.source.topic] != copied_to
            or checkpoint.destination_next_offset <= 0
        ):
            return ""
        there = self._at_destination.topics.get(copied_to)
        if there is None:
            return f"topic {copied_to!r}, which holds the copies, was deleted at the destination"
        if (
            checkpoint.destination_topic_id
            and there.topic_id
            and there.topic_id != checkpoint.destination_topic_id
        ):
            return f"topic {copied_to!r}, which held the copies, was deleted at the destination and created again"
        return ""

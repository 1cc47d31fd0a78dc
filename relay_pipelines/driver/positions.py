"""Where a mirror stands: what the source holds of every topic-partition, how far it was copied, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Mapping

from relay_pipelines.copy.checkpoint import Stored
from relay_pipelines.driver import starting
from relay_pipelines.model import Checkpoint, LedgerEntry, TopicPartition
from relay_pipelines.plan.windows import Position
from relay_pipelines.settings import Mirror
from relay_pipelines.wire.cluster import EARLIEST, LATEST, READ_COMMITTED, ClusterClient, Metadata


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
        known: Stored,
        recorded: Mapping[TopicPartition, LedgerEntry],
        mirror: Mirror,
    ) -> None:
        self._source = source
        self._at_destination = at_destination
        self._renamed = renamed
        self._known = known
        self._checkpoints = known.checkpoints
        self._recorded = recorded
        self._start = mirror.start
        self._single = len(mirror.nodes) == 1

    def all(self) -> list[Position]:
        """Every topic-partition of the topics wanted, in order."""
        wanted = [one for topic in self._renamed for one in self._source.topic(topic).topic_partitions]
        low = self._source.list_offsets(wanted, EARLIEST, READ_COMMITTED)
        end = self._source.list_offsets(wanted, LATEST, READ_COMMITTED)
        # an epoch means something only on the node, and in the topic, that it was read from
        epochs = {
            at: checkpoint.leader_epoch
            for at in wanted
            if (checkpoint := self._checkpoints.get(at))
            and checkpoint.node == self._source.cluster.name
            and checkpoint.leader_epoch >= 0
            and not self._rebuilt(checkpoint)
        }
        ends = self._source.epoch_ends(epochs)
        starts = starting.starts(self._source, self._start, self._known, self._recorded, (low, end))
        return [self._position(at, low[at], end[at], ends.get(at), starts.get(at)) for at in wanted]

    def _position(self, at: TopicPartition, low: int, end: int, epoch_end: int | None, start: int | None) -> Position:
        checkpoint = self._checkpoints.get(at)
        if checkpoint is None:
            entry = self._recorded.get(at)
            return Position(at, low, end, start, recorded=None if entry is None else entry.source.end)
        cut_at = None
        if epoch_end is not None and epoch_end < checkpoint.next_offset:
            # no such epoch any more: nobody knows where, and it cannot be above the end
            cut_at = min(end, checkpoint.next_offset) if epoch_end < 0 else epoch_end
        return Position(
            at,
            low,
            end,
            checkpoint.next_offset,
            # of several nodes one may be built anew; whether it has the same records is for the task to find out
            recreated=self._single and self._rebuilt(checkpoint),
            truncated_at=cut_at,
            copy_gone=self._copy_gone(checkpoint),
        )

    def _rebuilt(self, checkpoint: Checkpoint) -> bool:
        # brokers before Kafka 2.8 tell no topic ids; identical nodes have different ones
        ids = checkpoint.topic_ids.get(self._source.cluster.name), self._source.topic(checkpoint.source.topic).topic_id
        return all(ids) and ids[0] != ids[1]

    def _copy_gone(self, checkpoint: Checkpoint) -> str:
        copied_to = checkpoint.destination.topic
        if self._renamed[checkpoint.source.topic] != copied_to or checkpoint.destination_next_offset <= 0:
            return ""
        there = self._at_destination.topics.get(copied_to)
        if there is None:
            return f"topic {copied_to!r}, which holds the copies, was deleted at the destination"
        if checkpoint.destination_topic_id and there.topic_id and there.topic_id != checkpoint.destination_topic_id:
            return f"topic {copied_to!r}, which held the copies, was deleted at the destination and created again"
        return ""

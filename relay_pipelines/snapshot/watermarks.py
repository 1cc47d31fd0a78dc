"""What the source holds of every topic-partition, and how far it was copied."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay_pipelines.copy.position import LogPosition, read_log_positions, unproved_logs
from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.plan.blockers import destination_changed
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import Target
from relay_pipelines.protocol.batch import timestamps_ms
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.metadata import Metadata
from relay_pipelines.snapshot import start_offsets
from relay_pipelines.snapshot.lost_checkpoints import Lost


class Positions:
    """The positions of a mirror.

    Args:
        source: the upstream to read.
        at_destination: the topics of the destination that concern the mirror.
        targets: source topic -> where its records go, of the included topics.
        lost: which checkpoints are gone, or not the last ones.
        leaderless: topic-partitions that have no position, as nobody knows their offsets.
        among_several: whether the source has other upstreams.
    """

    def __init__(
        self,
        source: ClusterClient,
        at_destination: Metadata,
        targets: Mapping[str, Target],
        checkpoints: CheckpointSnapshot,
        lost: Lost,
        leaderless: Container[TopicPartition],
        *,
        among_several: bool,
    ) -> None:
        self._leaderless = leaderless
        self._source = source
        self._at_destination = at_destination
        self._targets = targets
        self._snapshot = checkpoints
        self._lost = lost
        self._among_several = among_several

    def all(self) -> tuple[list[Position], dict[TopicPartition, RelayError]]:
        """Every topic-partition of the included topics, in order; and those that nobody can judge.

        Of these, the last record copied would have to be compared, and cannot be read.
        """
        partitions = [
            tp
            for topic in self._targets
            for tp in self._source.topic(topic).topic_partitions
            if tp not in self._leaderless
        ]
        # before the last stable offsets: records written between the two requests would look like
        # an open transaction
        high = self._source.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
        at_source = read_log_positions(
            self._source,
            partitions,
            self._snapshot.checkpoints,
            among_several=self._among_several,
        )
        starts = start_offsets.start_offsets(
            self._source, self._snapshot, self._lost.entries, partitions
        )
        ends = {tp: position.end_offset for tp, position in at_source.items()}
        known = {tp: copied for tp, copied in self._snapshot.checkpoints.items() if tp in ends}
        # an epoch that ends too early says more: where the other records begin
        doubted = {
            tp for tp in self._snapshot.doubted if tp in ends and at_source[tp].truncated_at is None
        }
        unproved, unreadable = unproved_logs(self._source, ends, known, doubted)
        positions = [
            Position(
                *self._of_log(at_source[tp], starts.get(tp), is_unproved=tp in unproved),
                **self._known_at_destination(tp),
                first_offset=at_source[tp].low_watermark,
                high_watermark=high[tp],
                copies_after=self._lost.copies.get(tp),
            )
            for tp in partitions
            if tp not in unreadable
        ]
        return self._with_open_since(positions), unreadable

    def _of_log(
        self, position: LogPosition, start: int | None, *, is_unproved: bool
    ) -> LogPosition:
        """Add where a topic-partition starts of which nothing was copied, and another log."""
        tp = position.topic_partition
        if tp not in self._snapshot.checkpoints and tp not in self._lost.entries:
            position = position._replace(next_offset=start)
        return position._replace(recreated=True) if is_unproved else position

    def _known_at_destination(self, tp: TopicPartition) -> dict[str, Any]:
        """Return the fields of a position that only the destination knows."""
        if (newest := self._lost.entries.get(tp)) is not None:
            return {"ledger_end": newest.entry.source.end}
        checkpoint = self._snapshot.checkpoints.get(tp)
        return {} if checkpoint is None else self._of_copies(checkpoint)

    def _of_copies(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Return what happened to the topic with the copies, if they belong there."""
        to = self._targets[checkpoint.source.topic].of(checkpoint.source)
        if checkpoint.bound_to != to or not (gone := _gone(self._at_destination, checkpoint)):
            return {}
        return {"destination_lost": f"topic {to.topic!r}, which held the copies, {gone}"}

    def _with_open_since(self, positions: Sequence[Position]) -> list[Position]:
        """Add since when transactions are open; the ones with the most records are asked first."""
        held_up = sorted(
            (position.open_transaction for position in positions if position.open_records),
            key=len,
            reverse=True,
        )
        since = timestamps_ms(
            self._source,
            {transaction.topic_partition: transaction.start for transaction in held_up},
        )
        return [
            replace(position, open_since_ms=since[position.topic_partition])
            if position.topic_partition in since
            else position
            for position in positions
        ]


def bound_elsewhere(
    checkpoints: Mapping[TopicPartition, Checkpoint],
    targets: Mapping[str, Target],
    at_destination: Metadata,
) -> dict[TopicPartition, RelayError]:
    """Return the topic-partitions whose copies are in another place than the configuration names.

    Args:
        targets, at_destination: as of `Positions`.
    """
    return {
        tp: error
        for tp, checkpoint in checkpoints.items()
        if (to := targets.get(tp.topic))
        and (error := destination_changed(checkpoint, to.of(tp), _gone(at_destination, checkpoint)))
    }


def _gone(at_destination: Metadata, checkpoint: Checkpoint) -> str:
    """What happened to the topic that holds the copies; empty if it is there, or none has any."""
    copies = checkpoint.copies
    if copies is None:
        return ""
    topic = at_destination.topics.get(copies.topic_partition.topic)
    if topic is None:
        return "does not exist at the destination"
    is_other = copies.topic_id and topic.topic_id and topic.topic_id != copies.topic_id
    return "was deleted at the destination and created again" if is_other else ""

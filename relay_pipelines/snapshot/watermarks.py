"""What the source holds of every topic-partition, and how far it was copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay_pipelines.copy import position
from relay_pipelines.errors import RelayError
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.plan.blockers import destination_changed
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import Target
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.protocol.metadata import Metadata
from relay_pipelines.protocol.reader import timestamps_ms
from relay_pipelines.snapshot import start_offsets
from relay_pipelines.snapshot.lost_checkpoints import Lost


def read_positions(
    source: ClusterClient,
    partitions: Sequence[TopicPartition],
    targets: Mapping[str, Target],
    at_destination: Metadata,
    state: CheckpointSnapshot,
    lost: Lost,
    *,
    among_several: bool,
) -> tuple[list[Position], dict[TopicPartition, RelayError]]:
    """Return the positions of topic-partitions, in order; and why some cannot be judged.

    Of these, the last record copied would have to be compared, and cannot be read.

    Args:
        source: the upstream to read.
        targets: source topic -> where its records go.
        at_destination: the topics of the destination that concern the mirror.
        lost: which checkpoints are gone, or not the last ones.
        among_several: whether the source has other upstreams.
    """
    # before the last stable offsets: records written between the two requests would look like an
    # open transaction
    high = source.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
    checkpoints = state.checkpoints
    starts = start_offsets.start_offsets(source, state, lost.entries, partitions)

    def known(tp: TopicPartition) -> dict[str, Any]:
        """Return the fields that the log of a topic-partition does not tell."""
        fields: dict[str, Any] = {
            "high_watermark": high[tp],
            "copies_after": lost.copies.get(tp),
        }
        if tp in starts:
            fields["next_offset"] = starts[tp]
        if (newest := lost.entries.get(tp)) is not None:
            fields["ledger_end"] = newest.entry.source.end
        elif copied := checkpoints.get(tp):
            to = targets[tp.topic].of(tp)
            if copied.bound_to == to and (gone := _gone(at_destination, state, copied)):
                what = f"topic {to.topic!r}, which held the copies, {gone}"
                fields["destination_lost"] = what
        return fields

    look = position.read_positions(
        source, partitions, checkpoints, among_several=among_several, known=known
    )
    by_partition = source.whole(look)
    ends = {tp: each.end_offset for tp, each in by_partition.items()}
    compared = {tp: copied for tp, copied in checkpoints.items() if tp in ends}
    # an epoch that ends too early says more: where the other records begin
    doubted = {tp for tp in state.doubted if tp in ends and by_partition[tp].truncated_at is None}
    unproved, unreadable = position.unproved_logs(source, ends, compared, doubted)
    positions = [
        replace(each, recreated=True) if tp in unproved else each
        for tp, each in by_partition.items()
        if tp not in unreadable
    ]
    return _with_open_since(source, positions), unreadable


def bound_elsewhere(
    state: CheckpointSnapshot, targets: Mapping[str, Target], at_destination: Metadata
) -> dict[TopicPartition, RelayError]:
    """Return the topic-partitions whose copies are in another place than the configuration names.

    Args:
        targets, at_destination: as of `read_positions`.
    """
    errors = {
        tp: destination_changed(checkpoint, to.of(tp), _gone(at_destination, state, checkpoint))
        for tp, checkpoint in state.checkpoints.items()
        if (to := targets.get(tp.topic))
    }
    return {tp: error for tp, error in errors.items() if error}


def _gone(at_destination: Metadata, state: CheckpointSnapshot, checkpoint: Checkpoint) -> str:
    """What happened to the topic that holds the copies; empty if it is there, or none has any."""
    copies = checkpoint.copies
    if copies is None:
        return ""
    topic = at_destination.topics.get(copies.topic_partition.topic)
    if topic is None:
        return "does not exist at the destination"
    if not copies.topic_id or topic.topic_id in {"", copies.topic_id}:
        return ""
    # a run creates what is missing, of whatever topic it copies then
    is_ours = topic.topic_id == state.created.get(copies.topic_partition.topic)
    by_whom = " by a run of this mirror" if is_ours else ""
    return f"was deleted at the destination and created again{by_whom}"


def _with_open_since(source: ClusterClient, positions: Sequence[Position]) -> list[Position]:
    """Add since when transactions are open; the ones with the most records are asked first."""
    held_up = sorted(
        (each for each in positions if each.open_records), key=lambda each: -each.open_records
    )
    since = timestamps_ms(source, {each.topic_partition: each.end_offset for each in held_up})
    return [
        replace(each, open_since_ms=since[tp]) if (tp := each.topic_partition) in since else each
        for each in positions
    ]

"""Moves the checkpoints of a topic whose copies are elsewhere, or gone, as an operator decides.

A mirror never decides this by itself: `relay reset` does, per topic. docs/transactions.md argues
why no record is then duplicated, or missing without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from relay_pipelines.errors import DestinationTopicLostError, FencedError, RelayError
from relay_pipelines.model import Checkpoint, OffsetRange, Policy, TopicPartition
from relay_pipelines.plan.blockers import Blocker, losses, unknown_beginning
from relay_pipelines.plan.positions import Position
from relay_pipelines.prepare.checkpoint_moves import Move, move_checkpoint, without_logs
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_UNCOMMITTED
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


class ResetTo(StrEnum):
    """Where the copy of a topic goes on after a reset."""

    EARLIEST = "earliest"
    """At the low watermark of the source: everything that it still has is copied again."""
    CURRENT = "current"
    """At the offset reached: what was copied before is not copied again."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset does with one source topic-partition.

    Args:
        checkpoint: as it is now; None if nothing was copied.
        destination: where the configuration wants the copies.
        policy: what decides the records from then on.
        next_offset: where the copy goes on.
        is_there: whether its copies are where relay.yaml names them.
        stays: why the checkpoint is not moved; empty if it is.
        error: why it cannot be moved now; it then stays, too.
    """

    position: Position
    checkpoint: Checkpoint | None
    destination: TopicPartition
    to: ResetTo
    policy: Policy
    next_offset: int
    is_there: bool
    stays: str = ""
    error: RelayError | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Of the source."""
        return self.position.topic_partition

    @property
    def decides_only(self) -> bool:
        """Whether only the configuration that decides the records is another one."""
        return self.is_there and self.to is ResetTo.CURRENT

    @property
    def what(self) -> str:
        """What becomes of the topic-partition, in a line."""
        if self.stays:
            return f"stays as it is: {self.stays}"
        if self.decides_only:
            return (
                f"goes on at offset {self.next_offset} into {self.destination}, and this"
                " configuration decides its records from there on"
            )
        before = f"of the offsets before {self.position.begin}"
        copies = self.checkpoint.copies if self.checkpoint else None
        if copies is None:
            where = f"no record {before} is there"
        elif self.position.destination_lost:
            where = f"the copies {before} are gone"
        else:
            where = f"the copies {before} are in {copies.topic_partition}"
        if self.to is ResetTo.CURRENT:  # losses at the source stay with the guards
            return f"goes on at offset {self.next_offset} into {self.destination}; {where}"
        given_up = [
            loss.what
            for loss in losses(_at_best_upstream(self.position))
            if loss.error is not DestinationTopicLostError
        ]
        doing = f"is copied again from offset {self.next_offset} into {self.destination}"
        return "; ".join([doing, where, *given_up])


def plan_resets(snapshot: ClusterSnapshot, to: ResetTo) -> list[Reset]:
    """Say what a reset of all topics of the snapshot does; writes nothing."""
    return [_plan(snapshot, position, to) for position in snapshot.positions]


def _plan(snapshot: ClusterSnapshot, position: Position, to: ResetTo) -> Reset:
    tp = position.topic_partition
    checkpoint, destination = snapshot.checkpoints.get(tp), snapshot.destination_of(tp)
    begin = position.begin
    if to is ResetTo.EARLIEST:
        begin = _at_best_upstream(position).low_watermark
    is_there = not (snapshot.blocker(tp, Blocker.BOUND_ELSEWHERE) or position.destination_lost)
    policy = snapshot.policies[tp.topic]
    planned = Reset(position, checkpoint, destination, to, policy, begin, is_there)
    stays = _why_it_stays(planned)
    error: RelayError | None = None
    if to is ResetTo.EARLIEST and not stays:
        error = unknown_beginning(position)
    # the move counts on where it is
    error = snapshot.blocker(tp, Blocker.MOVED) or error
    if position.ledger_end is not None:  # what it decided on would not be the last checkpoint
        error = snapshot.blocker(tp, Blocker.CHECKPOINT_LOST)
    return replace(planned, stays=stays if error is None else error.what, error=error)


def _at_best_upstream(position: Position) -> Position:
    """Return the position at the upstream that has the most: the copy goes on there."""
    first = position.low_watermark if position.first_offset is None else position.first_offset
    return replace(position, low_watermark=first)


def _why_it_stays(planned: Reset) -> str:
    """Say why the checkpoint is not moved; empty if there is something to decide."""
    position, checkpoint, destination = planned.position, planned.checkpoint, planned.destination
    if checkpoint is None:
        return "it has no checkpoint"
    is_decided = planned.policy == checkpoint.policy
    if not planned.is_there or (planned.to is ResetTo.CURRENT and not is_decided):
        return ""
    if checkpoint.copies is not None:
        where = f"its copies are in {destination}, as relay.yaml says"
        return f"{where} (`relay replay` copies records again)"
    begin = checkpoint.next_offset
    gives_up = planned.to is ResetTo.EARLIEST and any(losses(_at_best_upstream(position)))
    if planned.next_offset != begin or gives_up or not is_decided:
        return ""
    return f"none of its records is copied to {destination} yet, and it goes on at offset {begin}"


def already_held(
    snapshot: ClusterSnapshot, resets: Iterable[Reset]
) -> dict[TopicPartition, OffsetRange]:
    """Return what the destinations hold to which offsets may be copied again, if not empty.

    A reset may have moved a checkpoint without copies back: the records after it may be there.
    """
    partitions = {
        reset.destination
        for reset in resets
        if not reset.stays
        and (reset.to is ResetTo.EARLIEST or not (reset.checkpoint and reset.checkpoint.copies))
        and (topic := snapshot.at_destination.topics.get(reset.destination.topic))
        and reset.destination in topic.topic_partitions
    }
    if not partitions:
        return {}
    with snapshot.destination_client() as client:

        def ask() -> dict[TopicPartition, OffsetRange]:
            low = client.list_offsets(partitions, EARLIEST, READ_UNCOMMITTED)
            end = client.list_offsets(partitions, LATEST, READ_UNCOMMITTED)
            return {tp: OffsetRange(tp, low[tp], end[tp]) for tp in partitions if low[tp] < end[tp]}

        return client.retry(ask)


def execute(snapshot: ClusterSnapshot, resets: Sequence[Reset]) -> Iterator[tuple[Reset, bool]]:
    """Move the checkpoints, and yield for each whether it was moved.

    One that has changed since the snapshot is left alone: another run copies it.

    Raises:
        FencedError: other runs take the ids over again and again.
    """
    with snapshot.destination_client() as client:
        for reset in resets:
            if reset.checkpoint is None or reset.stays:
                continue
            moved = _moved(snapshot, reset, reset.checkpoint, client.clock.now_ms())
            # its policy says what was decided: no offset means anything else than before
            why = "" if reset.decides_only else f"`relay reset --to-{reset.to}`: it {reset.what}"
            move = partial(move_checkpoint, client, snapshot, Move(moved, why))
            # a task with several ranges takes an id back once
            is_moved = client.retry(move, also=(FencedError,))
            yield reset, is_moved


def _moved(snapshot: ClusterSnapshot, reset: Reset, before: Checkpoint, now_ms: int) -> Checkpoint:
    before = before.decided_by(reset.policy)
    if reset.decides_only:  # offsets and copies mean what they meant
        return before.decided(now_ms)
    is_forgotten = reset.to is ResetTo.EARLIEST and reset.position.recreated
    known = without_logs(snapshot, before) if is_forgotten else before
    known = replace(known, destination=reset.destination, copies=None)
    if reset.to is ResetTo.CURRENT:
        return known.decided(now_ms, anew=True)
    return known.decided(now_ms, reset.next_offset, anew=True, fingerprint=None)

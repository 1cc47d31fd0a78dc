"""Decides again where a run has copied last with an edit of relay.yaml that is taken back by now.

A topic that waits for its next record would look held back to everybody else, and the run after
this one could not tell it from the topic of an old deployment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from relay_pipelines.errors import FencedError
from relay_pipelines.model import Checkpoint, OffsetRange, policy_id
from relay_pipelines.prepare.checkpoint_moves import move_checkpoint
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def decide_again(snapshot: ClusterSnapshot, mirror: Mirror, run_id: str, clock: Clock) -> bool:
    """Let the configuration of the snapshot decide what comes after the run's own checkpoints.

    Offsets and copies stay what they are. What a guard holds back for another reason stays held.

    Returns:
        Whether there was something to decide.

    Raises:
        FencedError: other runs take the ids over again and again.
        RelayError: the destination does not answer, or refuses.
    """
    own, options = list(_taken_back(snapshot, run_id)), mirror.copy_options
    if not own:
        return False
    with destination_client(snapshot.mirror, snapshot.destination, options, clock) as client:
        for checkpoint in own:
            decided = checkpoint.decided_by(snapshot.policies[checkpoint.source.topic])
            moved = replace(decided, committed_at_ms=clock.now_ms())
            nothing = (
                OffsetRange(checkpoint.source, checkpoint.next_offset, checkpoint.next_offset),
                "",
            )
            move = partial(move_checkpoint, client, snapshot, moved, nothing)
            # a task with several ranges takes an id back once
            client.retry(move, also=(FencedError,))
    return True


def _taken_back(snapshot: ClusterSnapshot, run_id: str) -> Iterator[Checkpoint]:
    for position in snapshot.positions:
        tp = position.topic_partition
        checkpoint = snapshot.checkpoints.get(tp)
        is_elsewhere = position.destination_changed or position.destination_lost
        # another run has copied a part of the topic with the edit: a person decides for all of it
        is_held = position.policy_superseded is not None or position.ledger_end is not None
        if checkpoint is None or checkpoint.run_id != run_id or is_elsewhere or is_held:
            continue
        if policy_id(snapshot.policies[tp.topic]) in checkpoint.superseded:
            yield checkpoint

"""Makes checkpoints again from the ledger, or notes which of its entries are lost.

A mirror never does this by itself: `relay restore` does, when a person has looked. It reads the
destination alone. docs/transactions.md argues why no record is then doubled or left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from relay_pipelines.errors import FencedError
from relay_pipelines.ledger import checkpoint as checkpoints
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.checkpoint import CheckpointSnapshot
from relay_pipelines.ledger.fencing import fence
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.mirror_state import read_checkpoints
from relay_pipelines.ledger.reader import LedgerFollower
from relay_pipelines.ledger.retention import ledger_kept_since_ms
from relay_pipelines.model import (
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.plan.owners import own_id, present_owner, shared_id, topic_scope
from relay_pipelines.prepare import topics
from relay_pipelines.prepare.checkpoint_moves import gap_entry, replace_checkpoint
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.recovery.restore_plan import Act, Planner, Restore
from relay_pipelines.settings import Mirror

_MOST_PARTS = 16  # of a lane; each has up to 250 topics


@dataclass(frozen=True, slots=True)
class Restores:
    """What a restore does with a mirror and its replays.

    Args:
        states: by name, what the checkpoint topic holds.
        planned: all topic-partitions that were copied.
    """

    states: Mapping[str, CheckpointSnapshot]
    planned: Sequence[Restore]

    @property
    def changes(self) -> list[Restore]:
        """What is committed."""
        return [each for each in self.planned if each.after is not None]


def plan_restores(name: str, mirror: Mirror, clock: Clock) -> Restores:
    """Say what a restore does; writes nothing.

    Raises:
        TamperedError: a record of the ledger is no entry.
        RelayError: the destination does not answer, or refuses.
    """
    options = mirror.copy_options
    with destination_client(name, mirror.destination_cluster, options, "restore") as client:
        kept = retry(partial(ledger_kept_since_ms, client, clock), name, options, clock, client)
        records = _records(name, mirror, clock) if kept else []
        names = {name, *(record.entry.mirror for record in records)}
        states = {
            each: read_checkpoints(each, mirror, clock, settled=True, only_readable=True)
            for each in sorted(names)
        }
        grouped: dict[tuple[str, TopicPartition], list[LedgerRecord]] = defaultdict(list)
        for each, state in states.items():
            grouped |= {(each, at): [] for at in state.checkpoints}
        for record in records:
            grouped[record.entry.mirror, record.entry.source.topic_partition].append(record)
        planner = Planner(client, mirror, clock, kept)
        planned = [
            planner.plan(each, at, some, states[each].checkpoints.get(at))
            for (each, at), some in sorted(grouped.items(), key=lambda item: item[0])
        ]
    return Restores(states, planned)


def execute(
    name: str, mirror: Mirror, restores: Restores, clock: Clock
) -> Iterator[tuple[Restore, bool]]:
    """Commit the checkpoints, and yield for each whether it was committed.

    One that has changed since it was planned is left alone: another run copies it.

    Raises:
        FencedError: other runs take the ids over again and again.
        RelayError: the destination does not answer, or refuses.
    """
    options, destination = mirror.copy_options, mirror.destination_cluster
    if not restores.changes:
        return
    factor = mirror.destination.replication_factor
    topics.create_state(name, destination, factor, options, clock)
    with destination_client(name, destination, options, "restore") as client:
        for each in restores.states:
            again = [
                restore.source
                for restore in restores.changes
                if restore.name == each and restore.act is Act.AGAIN
            ]
            _fence_former_owners(client, each, mirror, again, clock)
        for restore in restores.changes:
            commit = partial(_commit, client, restores.states[restore.name], restore, mirror, clock)
            # a task with several ranges takes an id back
            yield restore, retry(commit, name, options, clock, client, also=(FencedError,))


def _fence_former_owners(
    client: ClusterClient,
    name: str,
    mirror: Mirror,
    sources: Iterable[TopicPartition],
    clock: Clock,
) -> None:
    """Fence every id that may have owned them: a task may still hold one, and an open chunk.

    Args:
        name: of the mirror, or of a replay.
    """
    lanes = {"main", *mirror.all_lanes}
    # the parts of a lane of very many topics
    parts = {f"{lane}_{number}" for lane in lanes for number in range(2, _MOST_PARTS + 1)}
    ids: set[str] = set()
    for at in sources:
        scopes = {"", topic_scope(at.topic), *lanes, *parts}
        ids |= {own_id(name, at), *(shared_id(name, scope, at) for scope in scopes)}
    fence(client, ids, mirror.copy_options, clock)


def _records(name: str, mirror: Mirror, clock: Clock) -> list[LedgerRecord]:
    """Return all that the ledger holds of a mirror and its replays."""
    options = mirror.copy_options
    follower = LedgerFollower(
        *(mirror.destination_cluster, name, None, options, clock), with_replays=True
    )
    with closing(follower):
        retry(follower.rewind, name, options, clock, follower)
        return follower.settled_records()


def _commit(
    client: ClusterClient, state: CheckpointSnapshot, restore: Restore, mirror: Mirror, clock: Clock
) -> bool:
    at, before, after = restore.source, restore.before, restore.after
    if after is None:
        return False
    owner = present_owner(restore.name, at, state.owners, is_copied=True)
    home = checkpoints.home(checkpoints.TOPIC, checkpoints.key_of(restore.name, at))
    entry = None
    if restore.act is Act.NOTED:
        nothing = OffsetRange(at, after.next_offset, after.next_offset)
        after, entry = ledger_topic.chained(
            after, gap_entry(after, nothing, ledger_topic.ENTRIES_LOST)
        )
    known = before, state.ends.get(home, 0)
    options = mirror.copy_options
    return replace_checkpoint(client, owner, known, after, entry, options, clock)

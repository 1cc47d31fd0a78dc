"""Claims topic-partitions for the transactional ids under which a run copies them.

The change of an owner is committed under the owner before, which the claim takes over: so at any
time one id alone may copy a topic-partition. docs/transactions.md argues why.

Upstreams that hold other records than were copied: not read until an operator clears them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from relay_pipelines.errors import FencedError, RelayError, TransactionPendingError
from relay_pipelines.ledger.checkpoint import (
    TOPIC,
    DoubtRecord,
    Key,
    OwnerRecord,
    QuarantineRecord,
    StateKind,
    StateRecord,
    homes,
    state_record,
)
from relay_pipelines.ledger.fencing import abort_leftovers, commit_unseen, decide, fence, take_over
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.model import CopyRange, TopicPartition
from relay_pipelines.plan.owners import claimant_id, moved_error, moved_id, own_id, present_owner
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.open_transactions import wait_for_open_transactions
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.retries import retry
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_MOST_WAITS = 3
_AT_ONCE = 100
"""Owners that are held at the same time; who takes one of them in between fences the claim."""


def claim(
    client: ClusterClient,
    snapshot: ClusterSnapshot,
    ranges: Sequence[CopyRange],
    *,
    patient: bool = True,
) -> dict[TopicPartition, RelayError]:
    """Make the owner of every range the transactional id under which it is to be copied.

    Lanes that begin a mirror together claim under one id, and fence each other: each tries again.

    Returns:
        what cannot be claimed, and why: the last transaction of its owner does not end, as a leader
            of somebody's topic-partition in it is away; or it has moved to the destination.

    Raises:
        FencedError: other runs claim them for `give_up_after_ms`.
        RelayError: the destination does not answer, or refuses.
    """
    mirror = snapshot.name
    owners = {each.source.topic_partition: each.owner for each in ranges}
    # what has moved is no run's: only the one who takes the move back claims it
    moved: dict[str, RelayError] = {moved_id(mirror): moved_error(mirror)}
    return claim_for(client, mirror, owners, snapshot.state, moved, patient=patient)


def claim_for(
    client: ClusterClient,
    mirror: str,
    new_owners: Mapping[TopicPartition, str],
    known: CheckpointSnapshot | None = None,
    kept: Mapping[str, RelayError] = MappingProxyType({}),
    look: Callable[[], None] | None = None,
    *,
    patient: bool = True,
) -> dict[TopicPartition, RelayError]:
    """Make other ids the owners of topic-partitions, as `claim`.

    Args:
        new_owners: the transactional id that is to own each.
        known: what was read before; read now if None.
        kept: owners from which nothing is claimed, and why.
        look: raises if nothing may be claimed any more, which ends it for good. It is called when
            the owners are held, so whoever goes on after it fences the claim.
    """
    failed: dict[str, RelayError] = dict(kept)
    foreign: _Foreign = {}

    def attempt() -> None:
        nonlocal known, foreign
        foreign = _foreign(mirror, new_owners, known or read_state(client).of(mirror))
        known = None  # each attempt begins with what is committed by then
        if not foreign:
            return
        owners = sorted(foreign.keys() - failed.keys())
        for first in range(0, len(owners), _AT_ONCE):
            some = {owner: foreign[owner] for owner in owners[first : first + _AT_ONCE]}
            failed.update(_claim(client, mirror, some, look))
        foreign = _foreign(mirror, new_owners, read_state(client).of(mirror))
        if foreign.keys() - failed.keys():
            raise FencedError(
                "other runs claim the same topic-partitions again and again",
                remedy="let one deployment alone copy this mirror",
            )

    # those that fence each other must leave each other ever more room
    most_ms = max(client.options.backoff_max_ms, client.options.give_up_after_ms // _MOST_WAITS)
    options = replace(client.options, backoff_max_ms=most_ms)
    try:
        retry(attempt, mirror, options, client.clock, client, patient=patient, also=(FencedError,))
    except _EndedError as ended:
        raise ended.why from None
    return {tp: failed[owner].of(tp) for owner, claimed in foreign.items() for tp in claimed}


def give_back(
    client: ClusterClient, snapshot: ClusterSnapshot, ranges: Sequence[CopyRange]
) -> None:
    """End what is left of a run: its tasks commit nothing after this, whether or not they live.

    A task that is fenced takes an id that it shares back, so those topic-partitions lose their
    owner; the next run claims them. What tasks left open is aborted: readers would wait for it.

    Args:
        ranges: of the run, with their owners. It does not wait long for a destination that does not
            answer.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    mirror = snapshot.name
    owners = {copy_range.source.topic_partition: copy_range.owner for copy_range in ranges}
    own = {owner for tp, owner in owners.items() if owner == own_id(mirror, tp)}
    fence(client, own, patient=False)
    free = [
        replace(copy_range, owner=claimant_id(mirror))
        for copy_range in ranges
        if copy_range.owner not in own
    ]
    known = replace(snapshot.state, owners=owners)
    claim(client, replace(snapshot, state=known), free, patient=False)


class _EndedError(Exception):
    """A look has ended a claim."""

    def __init__(self, why: FencedError) -> None:
        super().__init__(str(why))
        self.why = why


_Foreign = Mapping[str, Mapping[TopicPartition, str]]
"""What another id owns, by that id, and the id that is to own it."""


def _foreign(
    mirror: str, owners: Mapping[TopicPartition, str], snapshot: CheckpointSnapshot
) -> _Foreign:
    foreign: dict[str, dict[TopicPartition, str]] = defaultdict(dict)
    for tp, wants in owners.items():
        owner = present_owner(mirror, tp, snapshot.owners, is_copied=tp in snapshot.checkpoints)
        if owner != wants:
            foreign[owner][tp] = wants
    return foreign


def _claim(
    client: ClusterClient,
    mirror: str,
    foreign: _Foreign,
    look: Callable[[], None] | None = None,
) -> dict[str, TransactionPendingError]:
    """Commit new owners under the present ones, for what these still own once we hold them all.

    One look serves all of them: it comes after the `InitProducerId` of each (invariant O).

    Returns:
        the owners that cannot be held: their last transaction does not end.
    """
    held: dict[str, TransactionalProducer] = {}
    pending: dict[str, TransactionPendingError] = {}
    for owner in foreign:
        try:
            held[owner] = take_over(client, owner, patient=False)  # `claim_for` is patient
        except TransactionPendingError as error:
            pending[owner] = error
    planned = {new for of in foreign.values() for new in of.values()} - foreign.keys()
    unblock = partial(abort_leftovers, client, planned)
    wait_for_open_transactions(client, homes(TOPIC), unblock)
    if look is not None:
        try:
            look()
        except FencedError as error:  # one of the claim is tried again
            raise _EndedError(error) from error
    seen = read_state(client).of(mirror)
    written: set[TopicPartition] = set()
    for owner, producer in held.items():
        still = _foreign(mirror, foreign[owner], seen).get(owner, {})
        now_ms = client.clock.now_ms()
        if records := [
            state_record(
                Key.of(mirror, source, StateKind.OWNER),
                OwnerRecord(mirror, source, new, now_ms),
                now_ms,
            )
            for source, new in still.items()
        ]:
            written |= commit_unseen(producer, records)
    wait_for_open_transactions(client, written)
    return pending


def note_doubts(
    client: ClusterClient, snapshot: ClusterSnapshot, reached: Mapping[TopicPartition, int]
) -> None:
    """Write that the source holds another log than was copied.

    Args:
        reached: the next offsets to copy, of the generation of the snapshot.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    name = snapshot.name
    now_ms = client.clock.now_ms()
    doubts = [
        DoubtRecord(name, source, offset, snapshot.generation_of(source), now_ms)
        for source, offset in reached.items()
    ]

    def decision() -> list[StateRecord]:
        # one of a checkpoint of before would replace another run's of the last one
        known = read_state(client, settled=True).of(name).checkpoints
        return [
            state_record(Key.of(name, doubt.source, StateKind.DOUBT), doubt, now_ms)
            for doubt in doubts
            if doubt.is_of(known.get(doubt.source))
        ]

    _note(client, decision)


def set_quarantine(client: ClusterClient, reasons: Mapping[str, str]) -> None:
    """Write why upstreams must not be read; the checkpoint topic must exist at the destination.

    Args:
        client: of the destination.
        reasons: by upstream name; an empty one ends the quarantine.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    now_ms = client.clock.now_ms()
    records = [
        state_record(
            Key(client.mirror, StateKind.QUARANTINE, upstream), QuarantineRecord(why), now_ms
        )
        for upstream, why in reasons.items()
    ]
    if records:
        _note(client, lambda: records)


def _note(client: ClusterClient, decision: Callable[[], Collection[StateRecord]]) -> None:
    # no task uses this id: topic names are never empty
    note = partial(decide, client, f"relay.{client.mirror}../notes", decision)
    client.retry(note, also=(FencedError,))

"""Claims topic-partitions for the transactional ids under which a run copies them.

The change of an owner is committed under the owner before, which the claim takes over: so at any
time one id alone may copy a topic-partition. docs/transactions.md argues why.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from relay_pipelines.errors import FencedError
from relay_pipelines.model import CopyOptions, CopyRange, TopicPartition
from relay_pipelines.plan.owners import present_owner
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.records import encode_all
from relay_pipelines.protocol.retries import retry
from relay_pipelines.snapshot.clients import destination_client
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.state import checkpoint as checkpoints
from relay_pipelines.state.checkpoint import CheckpointSnapshot, OwnerRecord
from relay_pipelines.state.fencing import abort_leftovers, commit, take_over

_ATTEMPTS = 10
_WAIT_SECONDS = 0.2  # lanes that start together claim under one id, each in a few milliseconds


def claim(
    snapshot: ClusterSnapshot, ranges: Sequence[CopyRange], options: CopyOptions, clock: Clock
) -> None:
    """Make the owner of every range the transactional id under which it is to be copied.

    Raises:
        FencedError: other runs claim them again and again.
        RelayError: the destination does not answer, or refuses.
    """
    mirror = snapshot.mirror
    known = CheckpointSnapshot(checkpoints=snapshot.checkpoints, owners=snapshot.owners)
    with destination_client(mirror, snapshot.destination, options) as client:
        for attempt in range(1, _ATTEMPTS + 1):
            foreign = _foreign(mirror, ranges, known)
            if not foreign:
                return
            try:
                for owner, some in foreign.items():
                    # each try begins with what is committed by then
                    ask = partial(_claim, client, mirror, owner, some, options, clock)
                    retry(ask, mirror, options, clock, client)
            except FencedError:  # another run claims at the same time: see what it has left
                if attempt == _ATTEMPTS:
                    raise
                clock.sleep(random.uniform(0, _WAIT_SECONDS))  # noqa: S311 - not a secret
            read = partial(checkpoints.read_all, client, mirror, clock)
            known = retry(read, mirror, options, clock, client)
    raise FencedError(
        "other runs claim the same topic-partitions again and again",
        remedy="let one daemon or code location alone copy this mirror",
    )


def _foreign(
    mirror: str, ranges: Sequence[CopyRange], known: CheckpointSnapshot
) -> dict[str, list[CopyRange]]:
    """Return the ranges that another id owns, by that id."""
    foreign: dict[str, list[CopyRange]] = defaultdict(list)
    for copy_range in ranges:
        at = copy_range.source.topic_partition
        owner = present_owner(mirror, at, known.owners, is_copied=at in known.checkpoints)
        if owner != copy_range.owner:
            foreign[owner].append(copy_range)
    return foreign


def _claim(
    client: ClusterClient,
    mirror: str,
    owner: str,
    ranges: Sequence[CopyRange],
    options: CopyOptions,
    clock: Clock,
) -> None:
    """Commit new owners under the present one, for what it still owns once we hold it."""
    producer = take_over(client, owner, options, clock)
    homes = checkpoints.homes(checkpoints.TOPIC)
    planned = {copy_range.owner for copy_range in ranges} - {owner}
    unblock = partial(abort_leftovers, client, planned, options, clock)
    checkpoints.wait_for_open_transactions(client, homes, options, clock, unblock)
    still = _foreign(mirror, ranges, checkpoints.read_all(client, mirror, clock)).get(owner, [])
    records: dict[TopicPartition, list[tuple[bytes, bytes, int]]] = defaultdict(list)
    for copy_range in still:
        source = copy_range.source.topic_partition
        home = checkpoints.home(checkpoints.TOPIC, checkpoints.key_of(mirror, source))
        claimed = OwnerRecord(mirror, source, copy_range.owner, clock.now_ms())
        records[home].append(checkpoints.owner_record(claimed))
    batches = [(home, batch) for home, some in records.items() for batch in encode_all(some)]
    if batches:
        commit(client, producer, batches, options, clock)
    else:
        producer.release()

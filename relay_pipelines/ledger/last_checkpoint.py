"""Step 2 of a task: what the holder of a transactional id reads, so that it misses no commit.

docs/transactions.md argues why a task that has read so goes on from the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from relay_pipelines.errors import CheckpointLostError
from relay_pipelines.ledger import followed
from relay_pipelines.ledger.checkpoint import (
    TOPIC,
    Key,
    OwnerRecord,
    StateKind,
    home,
    key_of,
    of_key,
    record_of,
)
from relay_pipelines.model import Checkpoint, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.open_transactions import wait_until_stable


class Current(NamedTuple):
    """What the topic holds of one source topic-partition: an owner only if it was read just now."""

    checkpoint: Checkpoint | None
    owner: str | None


def read_current(
    client: ClusterClient,
    mirror: str,
    known: Mapping[TopicPartition, tuple[Checkpoint | None, int]],
    seen: Seen | None = None,
    unblock: Callable[[], None] | None = None,
) -> dict[TopicPartition, Current]:
    """Return the checkpoints and owners of some source topic-partitions.

    Only the holder of their transactional id calls this, after InitProducerId: what the holder
    before it committed is in the log by then, but another transaction may hide it. So: take the
    high watermark first, wait until the last stable offset has reached it, then read.

    Args:
        known: by source topic-partition, the checkpoint as read before, and the offset up to which
            its partition was read then.
        seen: what the caller has read so far, which grows.

    Raises:
        DestinationError: the last stable offset is held back for longer than any transaction may
            last.
        CheckpointLostError: the checkpoint topic was deleted and created again.
        TamperedError: a record is none of its key.
    """
    seen = seen or Seen(mirror)
    homes: dict[TopicPartition, list[TopicPartition]] = {}
    for source in known:
        homes.setdefault(home(TOPIC, key_of(mirror, source)), []).append(source)
    ends = client.list_offsets(homes, LATEST, READ_UNCOMMITTED)
    stable = client.list_offsets(homes, LATEST, READ_COMMITTED)
    for tp in homes:
        if stable[tp] < ends[tp]:
            wait_until_stable(client, tp, ends[tp], unblock)
    starts = {tp: min(known[source][1] for source in sources) for tp, sources in homes.items()}
    seen.read(client, starts, ends)
    return {source: seen.current(source, *known[source]) for source in known}


class Seen:
    """What a task has read of the checkpoint topic, so that it reads each record once."""

    def __init__(self, mirror: str) -> None:
        self._mirror = mirror
        self._read: dict[TopicPartition, tuple[int, int]] = {}  # the offsets read, half-open
        self._latest: dict[TopicPartition, dict[bytes, tuple[int, bytes]]] = {}

    def read(
        self,
        client: ClusterClient,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Read partitions from their `starts`, or from where they were read to, to their `ends`.

        One request asks for the first records of all; a partition that has more is read on.

        Raises:
            CheckpointLostError: a partition ends before what was read of it.
        """
        for tp, start in starts.items():
            if ends[tp] < max(start, self._read.get(tp, (0, -1))[1]):
                raise self._lost(tp, start, ends[tp])
        # never read so far, or from a later offset
        unread = [tp for tp, start in starts.items() if not self._continues(tp, start)]
        lows = client.list_offsets(
            [tp for tp in unread if starts[tp] < ends[tp]], EARLIEST, READ_COMMITTED
        )
        for tp in unread:
            self._read[tp] = starts[tp], min(ends[tp], max(starts[tp], lows.get(tp, 0)))
            self._latest[tp] = {}
        new = {tp: self._read[tp][1] for tp in starts if self._read[tp][1] < ends[tp]}
        fetched = followed.first_records(client, new)
        prefix = f"{self._mirror}/".encode()
        for tp, position in new.items():
            rest = OffsetRange(tp, position, ends[tp])
            for record in followed.records(client, rest, fetched.get(tp)):
                if record.key and record.key.startswith(prefix) and record.value is not None:
                    self._latest[tp][record.key] = record.offset, record.value
            self._read[tp] = self._read[tp][0], ends[tp]

    def _continues(self, tp: TopicPartition, start: int) -> bool:
        """Whether nothing is missing between what was read and `start`."""
        first, position = self._read.get(tp, (start, -1))
        return first <= start <= position

    def _lost(self, tp: TopicPartition, start: int, end: int) -> CheckpointLostError:
        read_to = max(start, self._read.get(tp, (0, -1))[1])
        return CheckpointLostError(
            f"the partition was read up to offset {read_to}, and now ends at {end}: its topic was"
            " deleted and created again",
            remedy=f"make the checkpoints again from the ledger: `relay restore --mirror"
            f" {self._mirror} --execute`",
            topic_partition=tp,
            offset=end,
        )

    def current(
        self, source: TopicPartition, checkpoint: Checkpoint | None, position: int
    ) -> Current:
        """Return what is known of a topic-partition; `checkpoint` was read up to `position`."""
        key = Key.of(self._mirror, source)
        latest = self._latest[key.home]
        owner = None
        offset, value = latest.get(key.encode(), (-1, b""))
        if offset >= position:
            checkpoint = of_key(key, value)
        key = Key.of(self._mirror, source, StateKind.OWNER)
        offset, value = latest.get(key.encode(), (-1, b""))
        if offset >= position:
            owner = record_of(OwnerRecord, key, value).owner
        return Current(checkpoint, owner)

"""The destination's side of one range: records, checkpoint and ledger entry in one transaction per chunk. Runs in a task.

docs/transactions.md argues why nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from relay_pipelines.copy.chunk import Chunk
from relay_pipelines.copy.failpoints import Failpoint, failpoint
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.errors import CheckpointLostError, DestinationTopicLostError, RelayError
from relay_pipelines.model import (
    Checkpoint,
    CopyJob,
    CopyRange,
    LedgerEntry,
    NodeIdentity,
    OffsetRange,
    Segment,
    TopicPartition,
)
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.records import encode
from relay_pipelines.state import checkpoint as checkpoints
from relay_pipelines.state import ledger

QUARANTINE = ".quarantine"


def transactional_id(mirror: str, source: TopicPartition) -> str:
    """One per mirror and source topic-partition: whoever holds it last is the only one who can commit."""
    return f"relay.{mirror}.{source.topic}.{source.partition}"


class RangeTransactions:
    """The transactions of one range, one after the other.

    Call order: `start`, then any number of `send` .. `commit`, then `release`. After an error only
    `release`, `start` or `abort_quietly`.

    Args:
        destination: shared by the ranges of one task, as are the throttles.
    """

    def __init__(
        self,
        job: CopyJob,
        copy_range: CopyRange,
        destination: ClusterClient,
        throttles: Sequence[Throttle],
        clock: Clock,
    ) -> None:
        self._job = job
        self._range = copy_range
        self._options = copy_range.record_policy.options or job.options
        self._destination = destination
        self._limits = [throttle for throttle in throttles if throttle.is_limited]
        self._clock = clock
        self._source_partition = copy_range.source.topic_partition
        self._quarantine = TopicPartition(
            copy_range.destination.topic + QUARANTINE, copy_range.destination.partition
        )
        self._producer = TransactionalProducer(
            destination, transactional_id(job.mirror, self._source_partition), self._options, clock
        )
        key = checkpoints.key_of(job.mirror, self._source_partition)
        self._homes = (
            checkpoints.home(checkpoints.TOPIC, key),
            checkpoints.home(ledger.TOPIC, key),
        )
        self.checkpoint = copy_range.checkpoint
        self.committed: list[Chunk] = []
        self.segments: list[Segment] = []
        self.commit_seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._producer.is_open

    def start(self) -> Checkpoint | None:
        """Take the range over from whichever task holds it, then read its checkpoint.

        Raises:
            FencedError: another task took over since the first call.
        """
        self._producer.start()
        failpoint(Failpoint.AFTER_INIT_PRODUCER_ID)
        known = self._range.checkpoint, self._range.checkpoint_position
        # only now: before, a task that we have just fenced could still have committed
        found = checkpoints.read_own(
            self._destination,
            self._job.mirror,
            self._source_partition,
            known,
            self._options,
            self._clock,
        )
        self._require_own_commits(found)
        self._require_copies(found)
        self.checkpoint = found
        return found

    def send(self, batch: Batch) -> None:
        """Send records; their bytes are used at once."""
        self._send(self._range.destination, batch)
        failpoint(Failpoint.MID_CHUNK)

    def quarantine(self, record: Any, error: RelayError) -> None:
        """Put a source record, as it is, into the quarantine topic, with headers that tell its origin and the reason."""
        at = self._source_partition
        told = {
            "mirror": self._job.mirror,
            "topic": at.topic,
            "partition": at.partition,
            "offset": record.offset,
        }
        headers = [
            (f"relay.{name}", str(value).encode())
            for name, value in {**told, "error": error.what}.items()
        ]
        self._send(
            self._quarantine,
            encode(record.key, record.value, record.timestamp, [*record.headers, *headers]),
        )

    def owed_seconds(self) -> float:
        """For how long nothing more may be sent, by our own limits and the destination's quota."""
        if not self._producer.is_throttled and not self._limits:
            return 0.0  # asked after every batch
        return max(
            [
                self._producer.throttled_seconds,
                *(throttle.owed_seconds() for throttle in self._limits),
            ]
        )

    def commit(self, chunk: Chunk, identity: NodeIdentity) -> None:
        """Commit data, checkpoint and ledger entry together: one transaction, so all of them or none.

        Args:
            identity: of the log that the chunk was read from.
        """
        self._producer.drain()
        failpoint(Failpoint.BEFORE_CHECKPOINT)
        began = self._clock.monotonic()
        landed = self._producer.landed(self._range.destination)
        before = self.checkpoint
        if (
            landed
            and before
            and before.destination == self._range.destination
            and landed[0] < before.destination_next_offset
        ):
            raise self._copies_gone(before)  # since this attempt began
        following = self._next_checkpoint(chunk, identity, landed)
        self._producer.add(self._homes)
        self._producer.send(self._homes[0], checkpoints.to_batch(following))
        self._producer.send(self._homes[1], ledger.to_batch(self._entry(chunk, following, landed)))
        self._producer.drain()
        failpoint(Failpoint.BEFORE_END_TXN)
        self._producer.commit()
        failpoint(Failpoint.AFTER_END_TXN)
        self.commit_seconds += self._clock.monotonic() - began
        self.checkpoint = following
        self.committed.append(chunk)
        self._note_segment(chunk, identity.node)

    def release(self) -> None:
        """Give the connections back, closed if they owe answers."""
        self._producer.release()

    def fail(self) -> None:
        """Get ready for another attempt after an error of any side: leaders and connections are looked for again."""
        self._producer.release()
        self._destination.forget()

    def abort_quietly(self) -> None:
        """Abort what is open, as far as the destination answers."""
        try:
            self._producer.abort()
        except RelayError:
            self._producer.release()  # the destination is away: it aborts by itself after the transaction timeout

    def _send(self, to: TopicPartition, batch: Batch) -> None:
        for throttle in self._limits:
            throttle.spend(len(batch.data))
        if not self._producer.has_added(to):
            self._producer.add((to, *self._homes))
        self._producer.send(to, batch)

    def _require_own_commits(self, found: Checkpoint | None) -> None:
        """What this task has committed, it reads again, unless the checkpoint topic was lost meanwhile."""
        if not self.committed or self.checkpoint is None:
            return
        own = self.checkpoint.next_offset
        if found is None or (
            found.next_offset < own and found.reset_at_ms == self.checkpoint.reset_at_ms
        ):
            raise CheckpointLostError(
                f"its checkpoint is gone: this run committed it up to offset {own}",
                remedy=f"restore the topic {checkpoints.TOPIC}; until then, a run would copy the records again",
                topic_partition=self._source_partition,
                offset=own,
            )

    def _require_copies(self, found: Checkpoint | None) -> None:
        """The checkpoint says that copies are in the destination topic: it must still be the same one."""
        to = self._range.destination
        topic = self._destination.metadata([to.topic]).topics[to.topic]
        if found is None or found.destination_next_offset <= 0 or found.destination != to:
            return
        if (
            found.destination_topic_id
            and topic.topic_id
            and topic.topic_id != found.destination_topic_id
        ):
            raise self._copies_gone(found)

    def _copies_gone(self, found: Checkpoint) -> DestinationTopicLostError:
        return DestinationTopicLostError(
            f"topic {self._range.destination.topic!r}, which held the copies, was deleted at the destination and created again",
            remedy="restore it, or mirror the topic under a new name; run again to see what holds now",
            topic_partition=self._source_partition,
            offset=found.next_offset,
        )

    def _note_segment(self, chunk: Chunk, node: str) -> None:
        last = self.segments[-1] if self.segments else None
        if last is not None and last.node == node and last.end == chunk.start:
            self.segments[-1] = replace(last, end=chunk.end)
        else:
            self.segments.append(Segment(node, chunk.start, chunk.end))

    def _next_checkpoint(
        self, chunk: Chunk, identity: NodeIdentity, landed: tuple[int, int] | None
    ) -> Checkpoint:
        to = self._range.destination
        before = self.checkpoint or Checkpoint.initial(
            self._job.mirror, self._source_partition, to, chunk.start
        )
        epoch = chunk.leader_epoch, chunk.leader_epoch_end
        return replace(
            before.advanced(chunk.end, epoch, identity, chunk.fingerprint()),
            destination=to,
            destination_next_offset=landed[1] if landed else before.destination_next_offset,
            destination_topic_id=self._destination.topic(to.topic).topic_id,
            run_id=self._job.run_id,
            committed_at_ms=self._clock.now_ms(),
        )

    def _entry(
        self, chunk: Chunk, following: Checkpoint, landed: tuple[int, int] | None
    ) -> LedgerEntry:
        first, end = landed or (
            following.destination_next_offset,
            following.destination_next_offset,
        )
        return LedgerEntry(
            mirror=self._job.mirror,
            source=OffsetRange(self._source_partition, chunk.start, chunk.end),
            destination=OffsetRange(self._range.destination, first, end),
            records=chunk.records,
            size_bytes=chunk.size_bytes,
            batches=chunk.batches,
            rewritten=chunk.rewritten,
            skipped={str(reason): count for reason, count in chunk.skipped.items()},
            digest=f"{chunk.digest:08x}",
            node=following.node,
            window=self._job.window,
            run_id=following.run_id,
            committed_at_ms=following.committed_at_ms,
        )

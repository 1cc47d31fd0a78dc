"""The transactions of one range: each commits records, checkpoint and ledger entry together.

Runs in a task. docs/transactions.md argues why nothing is lost or doubled.
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
    """Return the id of a source topic-partition: only the last producer to take it can commit."""
    return f"relay.{mirror}.{source.topic}.{source.partition}"


class RangeTransactions:
    """The transactions of one range, one after the other.

    Call order: `start`, then any number of `send` .. `commit`, then `release`. After an error only
    `release`, `start` or `abort_quietly`.

    Args:
        destination: a client that the ranges of one task share; they share the throttles, too.
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
        self._options = job.options_for(copy_range)
        self._destination = destination
        self._throttles = [throttle for throttle in throttles if throttle.is_limited]
        self._clock = clock
        self._source_partition = copy_range.source.topic_partition
        self._quarantine = TopicPartition(
            copy_range.destination.topic + QUARANTINE, copy_range.destination.partition
        )
        self._producer = TransactionalProducer(
            destination, transactional_id(job.mirror, self._source_partition), self._options, clock
        )
        key = checkpoints.key_of(job.mirror, self._source_partition)
        self._checkpoint_partition = checkpoints.home(checkpoints.TOPIC, key)
        self._ledger_partition = checkpoints.home(ledger.TOPIC, key)
        self.checkpoint = copy_range.checkpoint
        self.committed: list[Chunk] = []
        self.segments: list[Segment] = []
        self.commit_seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._producer.is_open

    def start(self) -> Checkpoint | None:
        """Take the range over from any task that holds it, then read its checkpoint.

        Raises:
            FencedError: another task took over since the first call.
        """
        self._producer.start()
        failpoint(Failpoint.AFTER_INIT_PRODUCER_ID)
        known = self._range.checkpoint, self._range.checkpoint_position
        # a task that is now fenced could have committed until here
        found = checkpoints.read_own(
            self._destination,
            self._job.mirror,
            self._source_partition,
            known,
            self._options,
            self._clock,
        )
        self._require_own_commits(found)
        self._require_same_destination_topic(found)
        self.checkpoint = found
        return found

    def send(self, batch: Batch) -> None:
        """Send records; the caller may reuse their bytes at once."""
        self._send(self._range.destination, batch)
        failpoint(Failpoint.MID_CHUNK)

    def quarantine(self, record: Any, error: RelayError) -> None:
        """Put a source record into the quarantine topic; headers say where it was and the error."""
        details = {
            "mirror": self._job.mirror,
            "topic": self._source_partition.topic,
            "partition": self._source_partition.partition,
            "offset": record.offset,
            "error": error.what,
        }
        headers = [(f"relay.{name}", str(value).encode()) for name, value in details.items()]
        self._send(
            self._quarantine,
            encode(record.key, record.value, record.timestamp, [*record.headers, *headers]),
        )

    def throttled_seconds(self) -> float:
        """How long to wait before sending more, by our own limits and the destination's quota."""
        if not self._producer.is_throttled and not self._throttles:
            return 0.0  # the quick answer, because the loop asks after every batch
        own = [throttle.throttled_seconds() for throttle in self._throttles]
        return max([self._producer.throttled_seconds, *own])

    def commit(self, chunk: Chunk, identity: NodeIdentity) -> None:
        """Commit data, checkpoint and ledger entry in one transaction: all of them or none.

        Args:
            identity: the log that the chunk was read from.
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
            raise self._topic_lost(before)  # recreated since this attempt began
        checkpoint = self._next_checkpoint(chunk, identity, landed)
        self._producer.add((self._checkpoint_partition, self._ledger_partition))
        self._producer.send(self._checkpoint_partition, checkpoints.to_batch(checkpoint))
        self._producer.send(
            self._ledger_partition, ledger.to_batch(self._entry(chunk, checkpoint, landed))
        )
        self._producer.drain()
        failpoint(Failpoint.BEFORE_END_TXN)
        self._producer.commit()
        failpoint(Failpoint.AFTER_END_TXN)
        self.commit_seconds += self._clock.monotonic() - began
        self.checkpoint = checkpoint
        self.committed.append(chunk)
        self._add_segment(chunk, identity.node)

    def release(self) -> None:
        """Give the connections back, and close those with outstanding responses."""
        self._producer.release()

    def fail(self) -> None:
        """Prepare another attempt after an error on either side: find leaders and connect again."""
        self._producer.release()
        self._destination.forget()

    def abort_quietly(self) -> None:
        """Abort the open transaction if the destination answers."""
        try:
            self._producer.abort()
        except RelayError:
            self._producer.release()  # the destination aborts it after the transaction timeout

    def _send(self, to: TopicPartition, batch: Batch) -> None:
        for throttle in self._throttles:
            throttle.spend(len(batch.data))
        if not self._producer.has_added(to):
            self._producer.add((to, self._checkpoint_partition, self._ledger_partition))
        self._producer.send(to, batch)

    def _require_own_commits(self, found: Checkpoint | None) -> None:
        """Fail if the checkpoint does not show what this task has committed: its topic was lost."""
        if not self.committed or self.checkpoint is None:
            return
        own = self.checkpoint.next_offset
        if found is None or (
            found.next_offset < own and found.reset_at_ms == self.checkpoint.reset_at_ms
        ):
            raise CheckpointLostError(
                f"the checkpoint is gone, which this run committed up to offset {own}",
                remedy=f"restore the topic {checkpoints.TOPIC}: without it, a run copies the"
                " records again",
                topic_partition=self._source_partition,
                offset=own,
            )

    def _require_same_destination_topic(self, found: Checkpoint | None) -> None:
        """Fail if the topic that holds the copies, by the checkpoint, was created again."""
        to = self._range.destination
        topic = self._destination.metadata([to.topic]).topics[to.topic]
        if found is None or found.destination_next_offset <= 0 or found.destination != to:
            return
        if (
            found.destination_topic_id
            and topic.topic_id
            and topic.topic_id != found.destination_topic_id
        ):
            raise self._topic_lost(found)

    def _topic_lost(self, found: Checkpoint) -> DestinationTopicLostError:
        return DestinationTopicLostError(
            f"topic {self._range.destination.topic!r}, which held the copies, was deleted at the"
            " destination and created again",
            remedy="restore it, or mirror the topic under a new name, then run again",
            topic_partition=self._source_partition,
            offset=found.next_offset,
        )

    def _add_segment(self, chunk: Chunk, node: str) -> None:
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
        self, chunk: Chunk, checkpoint: Checkpoint, landed: tuple[int, int] | None
    ) -> LedgerEntry:
        first, end = landed or (
            checkpoint.destination_next_offset,
            checkpoint.destination_next_offset,
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
            node=checkpoint.node,
            window=self._job.window,
            run_id=checkpoint.run_id,
            committed_at_ms=checkpoint.committed_at_ms,
        )

"""Writes chunks of one range: records, checkpoint and ledger entry in one transaction each. Runs in a task.

docs/transactions.md argues why nothing is lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from relay_pipelines.copy import checkpoint as checkpoints
from relay_pipelines.copy import ledger
from relay_pipelines.copy.assembly import Chunk
from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.faults import Point, reach
from relay_pipelines.copy.producer import TransactionalProducer
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.errors import FilterError, RelayError
from relay_pipelines.model import Checkpoint, CopyJob, CopyRange, Fingerprint, LedgerEntry, OffsetRange, Segment, TopicPartition
from relay_pipelines.wire.batch import Batch
from relay_pipelines.wire.cluster import ClusterClient
from relay_pipelines.wire.records import encode

QUARANTINE = ".quarantine"


class Origin(NamedTuple):
    """Where records were read: the node, and the ids that topic and cluster have there."""

    node: str
    topic_id: str
    cluster_id: str


def transactional_id(mirror: str, source: TopicPartition) -> str:
    """One per mirror and source topic-partition: whoever holds it last is the only one who can commit."""
    return f"relay.{mirror}.{source.topic}.{source.partition}"


class ChunkWriter:
    """The destination's side of one range.

    Call order: `start`, then any number of `begin` .. `send` .. `commit`. After an error only `start` or `leave_nothing_open`.

    Args:
        destination: shared by the ranges of one task, as are the throttles.
    """

    def __init__(
        self, job: CopyJob, copy_range: CopyRange, destination: ClusterClient, throttles: Sequence[Throttle], clock: Clock
    ) -> None:
        self._job = job
        self._range = copy_range
        self._options = copy_range.handling.options or job.options
        self._destination = destination
        self._throttles = throttles
        self._clock = clock
        self._source_partition = copy_range.source.topic_partition
        self._quarantine = TopicPartition(copy_range.destination.topic + QUARANTINE, copy_range.destination.partition)
        self._producer = TransactionalProducer(
            destination, transactional_id(job.mirror, self._source_partition), self._options, clock, self._acknowledged
        )
        key = checkpoints.key_of(job.mirror, self._source_partition)
        self._homes = (checkpoints.home(checkpoints.TOPIC, key), checkpoints.home(ledger.TOPIC, key))
        self._landed: tuple[int, int] | None = None  # destination offsets of the chunk under way
        self.checkpoint = copy_range.checkpoint
        self.committed: list[Chunk] = []
        self.segments: list[Segment] = []
        self.commit_seconds = 0.0

    def start(self) -> None:
        """Take the range over from whoever holds it, then read its checkpoint.

        Raises:
            FencedError: another task took over since the first call.
        """
        self._producer.start()
        reach(Point.AFTER_INIT_PRODUCER_ID)
        known = self._range.checkpoint, self._range.checkpoint_position
        # only now: before, a task that we have just fenced could still have committed
        self.checkpoint = checkpoints.read_own(
            self._destination, self._job.mirror, self._source_partition, known, self._options, self._clock
        )

    def begin(self) -> None:
        """Begin a chunk."""
        self._landed = None

    def send(self, batch: Batch) -> None:
        """Send records; their bytes are used at once."""
        self._send(self._range.destination, batch)
        reach(Point.MID_CHUNK)

    def quarantine(self, record: Any, error: FilterError) -> None:
        """Put a source record, as it is, into the quarantine topic, with headers that say whence it is and why it is there."""
        at = self._source_partition
        told = {"mirror": self._job.mirror, "topic": at.topic, "partition": at.partition, "offset": record.offset}
        headers = [(f"relay.{name}", str(value).encode()) for name, value in {**told, "error": error.what}.items()]
        self._send(self._quarantine, encode(record.key, record.value, record.timestamp, [*record.headers, *headers]))

    def commit(self, chunk: Chunk, origin: Origin, fingerprint: Fingerprint | None) -> None:
        """Commit data, checkpoint and ledger entry together: one transaction, so all of them or none.

        Args:
            fingerprint: of the last source record up to the chunk's end; None if the chunk has none.
        """
        self._producer.drain()
        reach(Point.BEFORE_CHECKPOINT)
        began = self._clock.monotonic()
        following = self._next_checkpoint(chunk, origin, fingerprint)
        self._producer.add(self._homes)
        self._producer.send(self._homes[0], checkpoints.to_batch(following))
        self._producer.send(self._homes[1], ledger.to_batch(self._entry(chunk, following)))
        self._producer.drain()
        reach(Point.BEFORE_END_TXN)
        self._producer.commit()
        reach(Point.AFTER_END_TXN)
        self.commit_seconds += self._clock.monotonic() - began
        self.checkpoint = following
        self.committed.append(chunk)
        self._remember(chunk, origin.node)

    def leave_nothing_open(self) -> None:
        """Abort what is open, as far as the destination answers."""
        try:
            self._producer.abort()
        except RelayError:
            return  # the destination is away: it aborts by itself after the transaction timeout

    def _send(self, to: TopicPartition, batch: Batch) -> None:
        for throttle in self._throttles:
            throttle.spend(len(batch.data))
        self._producer.add((to, *self._homes))
        self._producer.send(to, batch)

    def _acknowledged(self, topic_partition: TopicPartition, base_offset: int, records: int) -> None:
        if topic_partition == self._range.destination:
            first = base_offset if self._landed is None else self._landed[0]
            self._landed = (first, base_offset + records)

    def _remember(self, chunk: Chunk, node: str) -> None:
        last = self.segments[-1] if self.segments else None
        if last is not None and last.node == node and last.end == chunk.start:
            self.segments[-1] = replace(last, end=chunk.end)
        else:
            self.segments.append(Segment(node, chunk.start, chunk.end))

    def _next_checkpoint(self, chunk: Chunk, origin: Origin, fingerprint: Fingerprint | None) -> Checkpoint:
        before, node, epoch = self.checkpoint, origin.node, chunk.leader_epoch
        if epoch < 0 and before is not None and before.node == node and before.topic_ids.get(node) == origin.topic_id:
            epoch = before.leader_epoch  # the chunk has no batch; an epoch of another log would mean nothing
        return Checkpoint(
            mirror=self._job.mirror,
            source=self._source_partition,
            next_offset=chunk.end,
            leader_epoch=epoch,
            node=node,
            topic_ids={**(before.topic_ids if before else {}), node: origin.topic_id},
            cluster_ids={**(before.cluster_ids if before else {}), node: origin.cluster_id},
            destination=self._range.destination,
            destination_next_offset=self._landed[1] if self._landed else before.destination_next_offset if before else -1,
            fingerprint=fingerprint or (before.fingerprint if before else None),
            run_id=self._job.run_id,
            committed_at_ms=self._clock.now_ms(),
            destination_topic_id=self._destination.topic(self._range.destination.topic).topic_id,
            reset_at_ms=before.reset_at_ms if before else 0,
        )

    def _entry(self, chunk: Chunk, following: Checkpoint) -> LedgerEntry:
        first, end = self._landed or (following.destination_next_offset, following.destination_next_offset)
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

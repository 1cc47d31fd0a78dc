"""Copies one range: attempts, chunks, commits. Runs in a task; docs/transactions.md argues why nothing is lost or doubled."""

from __future__ import annotations

from dataclasses import replace

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from relay_pipelines.copy import checkpoint as checkpoints
from relay_pipelines.copy import ledger
from relay_pipelines.copy.assembly import Assembler, Chunk
from relay_pipelines.copy.backoff import backoff
from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.faults import Point, reach
from relay_pipelines.copy.producer import TransactionalProducer
from relay_pipelines.copy.reader import read
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.copy.upstream import Upstream
from relay_pipelines.errors import (
    AbortableError,
    CorruptBatchError,
    DivergedNodeError,
    FencedError,
    RelayError,
    RetriableError,
    SourceError,
)
from relay_pipelines.model import Checkpoint, CopyJob, CopyRange, LedgerEntry, OffsetRange, Segment, TopicPartition
from relay_pipelines.wire.batch import Batch
from relay_pipelines.wire.cluster import ClusterClient


def transactional_id(mirror: str, source: TopicPartition) -> str:
    """One per mirror and source topic-partition: whoever holds it last is the only one who can commit."""
    return f"relay.{mirror}.{source.topic}.{source.partition}"


class RangeCopier:
    """Copies the records of one range, from its checkpoint through the range's end.

    Args:
        upstream, destination, throttle: shared by the ranges of one task.
    """

    def __init__(
        self,
        job: CopyJob,
        copy_range: CopyRange,
        upstream: Upstream,
        destination: ClusterClient,
        throttle: Throttle,
        clock: Clock,
    ) -> None:
        self._job = job
        self.copy_range = self._range = copy_range
        self._upstream = upstream
        self._destination = destination
        self._throttle = throttle
        self._clock = clock
        self._source_partition = copy_range.source.topic_partition
        self._producer = TransactionalProducer(
            destination, transactional_id(job.mirror, self._source_partition), job.options, clock, self._acknowledged
        )
        self._assembler = Assembler(copy_range, job.options, self._send)
        key = checkpoints.key_of(job.mirror, self._source_partition)
        self._homes = (checkpoints.home(checkpoints.TOPIC, key), checkpoints.home(ledger.TOPIC, key))
        self._landed: tuple[int, int] | None = None  # destination offsets of the chunk under way
        self._fruitless = 0
        self.checkpoint = copy_range.checkpoint
        self.committed: list[Chunk] = []
        self.segments: list[Segment] = []
        self.commit_seconds = 0.0

    @property
    def node(self) -> str:
        """Name of the source node that is read."""
        return self._upstream.name

    def copy(self) -> None:
        """Copy the range; retry what may pass, from the checkpoint, until nothing has moved for `max_attempts` attempts.

        Raises:
            FencedError: another task took over; the range is in its hands.
            RelayError: anything else that stopped it. No transaction is left open, as far as the destination answers.
        """
        options = self._job.options
        doubling = backoff(options)

        def wait(state: RetryCallState) -> float:
            state.attempt_number = max(1, self._fruitless)
            return doubling(state)

        try:
            for attempt in Retrying(
                retry=retry_if_exception_type((RetriableError, AbortableError)),
                stop=lambda _: self._fruitless >= options.max_attempts,
                wait=wait,
                sleep=self._clock.sleep,
                reraise=True,
            ):
                with attempt:
                    self._attempt()
        except FencedError:
            raise
        except RelayError:
            self._leave_nothing_open()
            raise

    def _attempt(self) -> None:
        self._fruitless += 1
        try:
            self._producer.start()
            reach(Point.AFTER_INIT_PRODUCER_ID)
            # only now: before, a task that we have just fenced could still have committed
            self.checkpoint = checkpoints.read_own(
                self._destination, self._job.mirror, self._source_partition, self._known(), self._job.options, self._clock
            )
            self._upstream.make_sure(self.checkpoint, self._clock)
            try:
                self._copy_from(self._range.source.start if self.checkpoint is None else self.checkpoint.next_offset)
            except CorruptBatchError as error:
                error.topic_partition = error.topic_partition or self._source_partition
                raise
        except RelayError as error:
            # answers to pipelined requests may still be on their way: these connections are of no use to anyone
            self._destination.close()
            if not isinstance(error, SourceError | DivergedNodeError):
                self._upstream.client.close()
                raise
            self._upstream.leave()
            if isinstance(error, SourceError):
                raise
            # another node may serve
            raise SourceError(
                error.what, remedy=error.remedy, topic_partition=error.topic_partition, offset=error.offset
            ) from error

    def _known(self) -> tuple[Checkpoint | None, int]:
        return self._range.checkpoint, self._range.checkpoint_position

    def _copy_from(self, start: int) -> None:
        options = self._job.options
        wanted = OffsetRange(self._source_partition, start, self._range.source.end)
        assembler = self._assembler
        self._begin(start)
        if self.checkpoint is None and len(wanted) == 0:
            self._commit()  # a mirror that starts at the end: remember where that was
        deadline = self._clock.monotonic() + options.chunk_ms / 1000
        for pieces in read(self._upstream.client, wanted, options.fetch_max_bytes, self._clock, options.coalesce_below_bytes):
            for piece in pieces:
                assembler.add(piece)
                if assembler.chunk.size_bytes >= options.chunk_bytes:
                    self._commit()
                    self._begin(piece.end)
                    deadline = self._clock.monotonic() + options.chunk_ms / 1000
            if self._clock.monotonic() >= deadline and assembler.chunk.end > assembler.chunk.start:
                self._commit()
                self._begin(assembler.chunk.end)
                deadline = self._clock.monotonic() + options.chunk_ms / 1000
            assembler.keep()
        if assembler.chunk.end > assembler.chunk.start:
            self._commit()

    def _begin(self, start: int) -> None:
        self._assembler.begin(start)
        self._landed = None

    def _send(self, batch: Batch) -> None:
        self._throttle.spend(len(batch.data))
        self._producer.add((self._range.destination, *self._homes))
        self._producer.send(self._range.destination, batch)
        reach(Point.MID_CHUNK)

    def _acknowledged(self, topic_partition: TopicPartition, base_offset: int, records: int) -> None:
        if topic_partition == self._range.destination:
            first = base_offset if self._landed is None else self._landed[0]
            self._landed = (first, base_offset + records)

    def _commit(self) -> None:
        """Commit data, checkpoint and ledger entry together: one transaction, so all of them or none."""
        self._assembler.flush()
        self._producer.drain()
        reach(Point.BEFORE_CHECKPOINT)
        began = self._clock.monotonic()
        chunk = self._assembler.chunk
        following = self._next_checkpoint(chunk)
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
        self._remember(chunk)
        self._fruitless = 0

    def _remember(self, chunk: Chunk) -> None:
        last = self.segments[-1] if self.segments else None
        if last is not None and last.node == self.node and last.end == chunk.start:
            self.segments[-1] = replace(last, end=chunk.end)
        else:
            self.segments.append(Segment(self.node, chunk.start, chunk.end))

    def _next_checkpoint(self, chunk: Chunk) -> Checkpoint:
        before = self.checkpoint
        source, node = self._upstream.client, self._upstream.name
        topic_id, epoch = source.topic(self._source_partition.topic).topic_id, chunk.leader_epoch
        if epoch < 0 and before is not None and before.node == node and before.topic_ids.get(node) == topic_id:
            epoch = before.leader_epoch  # the chunk has no batch; an epoch of another log would mean nothing
        return Checkpoint(
            mirror=self._job.mirror,
            source=self._source_partition,
            next_offset=chunk.end,
            leader_epoch=epoch,
            node=node,
            topic_ids={**(before.topic_ids if before else {}), node: topic_id},
            cluster_ids={**(before.cluster_ids if before else {}), node: source.cluster_id},
            destination=self._range.destination,
            destination_next_offset=self._landed[1] if self._landed else before.destination_next_offset if before else -1,
            fingerprint=self._assembler.fingerprint() or (before.fingerprint if before else None),
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

    def _leave_nothing_open(self) -> None:
        try:
            self._producer.abort()
        except RelayError:
            return  # the destination is away: it aborts by itself after the transaction timeout

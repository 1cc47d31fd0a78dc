"""Transactions: each commits records, checkpoints and ledger entries of its ranges together.

Runs in a task. docs/transactions.md argues why no record is lost or duplicated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from relay_pipelines.copy.chunk import Chunk
from relay_pipelines.copy.failpoints import Failpoint, failpoint
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.errors import (
    CheckpointLostError,
    DestinationTopicLostError,
    FencedError,
    RelayError,
)
from relay_pipelines.ledger import checkpoint as checkpoints
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.last_checkpoint import Current, Seen, read_current
from relay_pipelines.ledger.offset_runs import encoded
from relay_pipelines.model import (
    Checkpoint,
    CopyJob,
    CopyOptions,
    CopyRange,
    DestinationPosition,
    Intervals,
    LedgerEntry,
    OffsetRange,
    Segment,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.plan import policies
from relay_pipelines.plan.blockers import copy_again, destination_changed, restore_command
from relay_pipelines.plan.owners import own_id, owner_of
from relay_pipelines.plan.topic_selection import QUARANTINE
from relay_pipelines.protocol.admin import is_compacted
from relay_pipelines.protocol.batch import Batch
from relay_pipelines.protocol.client import ClusterClient, Refused
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.records import encode, encode_all
from relay_pipelines.protocol.retries import LEAST_SECONDS

_LEADERS_FRESH_SECONDS = 1.0


class Landed(NamedTuple):
    """Where the records of a chunk are at the destination, and under which producer id."""

    producer_id: int
    runs: Intervals


class RangeProgress:
    """How far one range is copied, and what the next commit of it writes.

    Args:
        destination: a client that the ranges of one task share.
    """

    def __init__(self, job: CopyJob, copy_range: CopyRange, destination: ClusterClient) -> None:
        self._job = job
        self._destination = destination
        self.range = copy_range
        self.source = copy_range.source.topic_partition
        key = checkpoints.key_of(job.mirror, self.source)
        self.checkpoint_partition = checkpoints.home(checkpoints.TOPIC, key)
        self.ledger_partition = checkpoints.home(ledger_topic.TOPIC, key)
        self.quarantine = TopicPartition(
            copy_range.destination.topic + QUARANTINE, copy_range.destination.partition
        )
        self.checkpoint = copy_range.checkpoint
        self.committed: list[Chunk] = []
        self.segments: list[Segment] = []
        self.commit_seconds = 0.0
        self._policy = copy_range.record_policy.digests

    @property
    def owner(self) -> str:
        """The transactional id under which the range is copied."""
        return owner_of(self._job.mirror, self.range)

    @property
    def shares_owner(self) -> bool:
        """Whether other topic-partitions are, or may be, copied under the same id."""
        return self.owner != own_id(self._job.mirror, self.source)

    def start_from(self, current: Current) -> None:
        """Start another attempt from what the checkpoint topic holds now.

        Raises:
            FencedError: another run has made another transactional id the owner, has begun
                another generation, or copied with another policy since the range was planned.
            CheckpointLostError: the checkpoint is older than the one that was planned from, or than
                what this task has committed.
            DestinationChangedError: the checkpoint is bound to another destination.
            PolicySupersededError: another policy decides by now what this one decided before.
            DestinationTopicLostError: the topic that holds the copies was created again.
        """
        if current.owner not in {None, self.owner}:
            raise FencedError(
                "another run copies it now, under another transactional id",
                remedy="let it finish; let one deployment alone copy this mirror",
                topic_partition=self.source,
            )
        self._require_last(current.checkpoint)
        self._require_same_generation(current.checkpoint)
        self._require_policy(current.checkpoint)
        self._require_same_destination_topic(current.checkpoint)
        self.checkpoint = current.checkpoint

    def next_commit(
        self, chunk: Chunk, identity: UpstreamIdentity, landed: Landed, now_ms: int
    ) -> tuple[Checkpoint, tuple[bytes, bytes, int]]:
        """Return the checkpoint to be committed with a chunk, and the record of the ledger entry.

        Args:
            identity: the log that the chunk was read from.

        Raises:
            DestinationTopicLostError: the records landed below those copied before.
        """
        before = self.checkpoint
        end = before.end_in(self.range.destination) if before else None
        if before and landed.runs and end is not None and landed.runs[0][0] < end:
            raise self._topic_lost(before)  # recreated since this attempt began
        checkpoint = self._next_checkpoint(chunk, identity, landed, now_ms)
        return ledger_topic.chained(checkpoint, self._entry(chunk, checkpoint, landed))

    def requires_keys(self) -> bool:
        """Whether the destination topic is compacted now; False if it does not say."""
        try:
            return is_compacted(self._destination, self.range.destination.topic)
        except RelayError:
            return False

    def quarantine_batch(self, record: Any, error: RelayError) -> Batch:
        """Return a source record for the quarantine topic; headers say where it was, and why."""
        details = {
            "mirror": self._job.mirror,
            "topic": self.source.topic,
            "partition": self.source.partition,
            "offset": record.offset,
            "error": error.what,
        }
        headers = [(f"relay.{name}", str(value).encode()) for name, value in details.items()]
        return encode(record.key, record.value, record.timestamp, [*record.headers, *headers])

    def committed_chunk(self, chunk: Chunk, checkpoint: Checkpoint, seconds: float) -> None:
        """Note that a chunk is committed."""
        self.commit_seconds += seconds
        chunk.forget_runs()
        self.checkpoint = checkpoint
        self.committed.append(chunk)
        last = self.segments[-1] if self.segments else None
        if last is not None and last.upstream == checkpoint.upstream and last.end == chunk.start:
            self.segments[-1] = replace(last, end=chunk.end)
        else:
            self.segments.append(Segment(checkpoint.upstream, chunk.start, chunk.end))

    def _require_last(self, current: Checkpoint | None) -> None:
        """Fail if a later checkpoint was known: heads only grow, so somebody put this one back."""
        known = self.checkpoint
        if known is None:
            return
        if current is None or current.ledger_head.number < known.ledger_head.number:
            raise CheckpointLostError(
                f"the checkpoint is gone, which said offset {known.next_offset}",
                remedy=f"make it again from the ledger: {restore_command(self._job.mirror)}",
                topic_partition=self.source,
                offset=known.next_offset,
            )

    def _require_same_generation(self, current: Checkpoint | None) -> None:
        """Fail if a loss was accepted, or the topic reset, since the range was planned."""
        planned = 0 if self.range.checkpoint is None else self.range.checkpoint.generation
        if current is not None and current.generation != planned:
            raise FencedError(
                "a loss was accepted, or the topic reset, since this run planned it",
                remedy="run again: it plans from where the copy goes on now",
                topic_partition=self.source,
            )

    def _require_policy(self, current: Checkpoint | None) -> None:
        """Fail if another policy decides now than when the driver decided for this one."""
        planned = self.range.checkpoint
        expected = [self._policy, *([] if planned is None else [planned.policy])]
        if current is not None and current.policy not in expected:
            raise policies.refusal(current, self._policy) or FencedError(
                "another configuration has taken it over since this run planned it",
                remedy="run again, or stop one of the two deployments",
                topic_partition=self.source,
            )

    def _require_same_destination_topic(self, checkpoint: Checkpoint | None) -> None:
        """Fail if the checkpoint is bound to another one, or the copies' was created again."""
        to = self.range.destination
        if checkpoint is None:
            return
        if error := destination_changed(checkpoint, to):
            raise error
        if checkpoint.copies is None:
            return
        topic_id = self._destination.topic(to.topic, to).topic_id
        if checkpoint.copies.topic_id and topic_id and topic_id != checkpoint.copies.topic_id:
            raise self._topic_lost(checkpoint)

    def _topic_lost(self, checkpoint: Checkpoint) -> DestinationTopicLostError:
        return DestinationTopicLostError(
            f"topic {self.range.destination.topic!r}, which held the copies, was deleted at the"
            " destination and created again",
            remedy=copy_again(self._job.mirror, self.source.topic),
            topic_partition=self.source,
            offset=checkpoint.next_offset,
        )

    def _next_checkpoint(
        self, chunk: Chunk, identity: UpstreamIdentity, landed: Landed, now_ms: int
    ) -> Checkpoint:
        to = self.range.destination
        before = self.checkpoint or replace(
            Checkpoint.initial(self._job.mirror, self.source, to, chunk.start),
            policy=self._policy,
        )
        epoch = chunk.leader_epoch, chunk.leader_epoch_end
        return replace(
            before.after(self.range.passed).advanced(
                chunk.end,
                epoch,
                identity,
                chunk.fingerprint(),
                is_dense=chunk.is_dense,
                same_logs=self.range.same_logs,
            ),
            destination=to,
            copies=DestinationPosition(
                to, landed.runs[-1][1], self._destination.topic(to.topic, to).topic_id
            )
            if landed.runs
            else before.copies,
            run_id=self._job.run_id,
            committed_at_ms=now_ms,
        ).decided_by(self._policy)

    def _entry(self, chunk: Chunk, checkpoint: Checkpoint, landed: Landed) -> LedgerEntry:
        known = checkpoint.end_in(self.range.destination)
        at_end = -1 if known is None else known
        runs = landed.runs
        first, end = (runs[0][0], runs[-1][1]) if runs else (at_end, at_end)
        return LedgerEntry(
            mirror=self._job.mirror,
            source=OffsetRange(self.source, chunk.start, chunk.end),
            destination=OffsetRange(self.range.destination, first, end),
            records=chunk.records,
            size_bytes=chunk.size_bytes,
            batches=chunk.batches,
            reencoded=chunk.reencoded,
            skipped={str(reason): count for reason, count in chunk.skipped.items()},
            codecs=dict(chunk.codecs),
            first_timestamp_ms=chunk.first_timestamp_ms,
            max_timestamp_ms=chunk.max_timestamp_ms,
            digest=f"{chunk.digest:08x}",
            producer_id=landed.producer_id if runs else -1,
            upstream=checkpoint.upstream,
            window=self._job.window,
            run_id=checkpoint.run_id,
            committed_at_ms=checkpoint.committed_at_ms,
            source_runs=chunk.source_runs,
            destination_runs=encoded(runs) if len(runs) > 1 else "",
        )


class Commit(NamedTuple):
    """A chunk of one range, and what is committed with it.

    Args:
        entry: key, value and timestamp of the ledger entry's record.
    """

    progress: RangeProgress
    chunk: Chunk
    checkpoint: Checkpoint
    entry: tuple[bytes, bytes, int]


class Transactions:
    """The transactions under one transactional id, one after the other.

    Each commits the records, checkpoints and ledger entries of one range, or of several, together.
    The loop decides what is copied; this makes it true. Exactly once rests on three promises, for
    which docs/transactions.md argues:

    1. `begin` ends every earlier holder of the ranges: after it has returned, no other process can
       commit them, and the checkpoints that it returns stay the last ones.
    2. `commit` makes all that was appended since the last one visible in one step with checkpoints
       and ledger entries. If it fails, it is unknown whether it happened: the next `begin` does.
    3. What was appended and not committed is never visible.

    Call order: `begin`; then, as often as there is something to commit, any number of `append`,
    `drain`, a `next_commit` for each range, `commit`; in the end `release`. After an error only
    `abort`, `fail`, `forget`, `begin` or `release`.

    Args:
        progress: of one of the ranges, which share their owner.
        unblock: as of `wait_until_stable`; called with the transactional id.
    """

    def __init__(
        self,
        job: CopyJob,
        progress: RangeProgress,
        options: CopyOptions,
        destination: ClusterClient,
        seen: Seen,
        unblock: Callable[[str], None],
    ) -> None:
        self._unblock = unblock
        self._job = job
        self._seen = seen
        self._options = options
        self._destination = destination
        self._clock = destination.clock
        self._owner = progress.owner
        self._witness = progress.checkpoint_partition
        self._expected: tuple[TopicPartition, ...] = ()
        self._producer = self._new_producer()

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._producer.is_open

    def begin(self, ranges: Sequence[RangeProgress]) -> dict[TopicPartition, Current]:
        """Take the ranges over from any task that holds them, then read their checkpoints.

        Raises:
            FencedError: another task took over since the first call.
        """
        self._producer.start()
        failpoint(Failpoint.AFTER_INIT_PRODUCER_ID)
        # a task that is now fenced could have committed until here
        known = {
            progress.source: (progress.range.checkpoint, progress.range.checkpoint_position)
            for progress in ranges
        }
        self._destination.metadata(
            sorted({progress.range.destination.topic for progress in ranges})
        )
        return read_current(
            self._destination,
            self._job.mirror,
            known,
            self._seen,
            partial(self._unblock, self._owner),
        )

    def silent(self, destinations: Iterable[TopicPartition]) -> Refused:
        """Return those of which the leader does not answer, and why; for use before `begin`."""
        _, refused = self._destination.topics_at_leaders(destinations)
        return {tp: error for tp, error in refused.items() if error.topic_partition is None}

    def expect(self, destinations: Iterable[TopicPartition]) -> None:
        """Add these topic-partitions to the transaction with the next one that is sent to."""
        self._expected = tuple(destinations)
        if self._expected:
            with suppress(RelayError):  # then by what was known of their leaders
                topics = {tp.topic for tp in self._expected}
                self._destination.refresh(topics, _LEADERS_FRESH_SECONDS)

    def append(self, to: TopicPartition, batch: Batch, throttles: Iterable[Throttle]) -> None:
        """Send records; the caller may reuse their bytes at once."""
        for throttle in throttles:
            throttle.spend(len(batch.data))
        if not self._producer.has_added(to):
            self._add(to)
        self._producer.send(to, batch)
        failpoint(Failpoint.MID_CHUNK)

    def _add(self, to: TopicPartition) -> None:
        """Make a topic-partition part of the transaction, and those that are expected.

        None without a leader: until it has one, its marker would hold up the transactional id.
        """
        self._destination.leader(to)
        expected, self._expected = self._expected, ()
        self._producer.add({to, *filter(self._destination.has_leader, expected)})

    def throttled_seconds(self, throttles: Sequence[Throttle]) -> float:
        """How long to wait before sending more, by our own limits and the destination's quota."""
        if not self._producer.is_throttled and not throttles:
            return 0.0  # the quick answer, because the loop asks after every batch
        own = [throttle.throttled_seconds() for throttle in throttles]
        return max([self._producer.throttled_seconds, *own])

    def drain(self) -> None:
        """Wait until the destination has acknowledged all that was sent."""
        self._producer.drain()

    def next_commit(
        self, progress: RangeProgress, chunk: Chunk, identity: UpstreamIdentity
    ) -> Commit:
        """Return what `commit` takes, after `drain`; a failure is that of the range alone.

        Args:
            identity: the log that the chunk was read from.
        """
        to = progress.range.destination
        landed = Landed(self._producer.producer_id, self._producer.landed(to))
        return Commit(
            progress, chunk, *progress.next_commit(chunk, identity, landed, self._clock.now_ms())
        )

    def commit(self, commits: Sequence[Commit]) -> None:
        """Commit data, checkpoints and ledger entries in one transaction: all of them or none."""
        failpoint(Failpoint.BEFORE_CHECKPOINT)
        began = self._clock.monotonic()
        state: dict[TopicPartition, list[tuple[bytes, bytes, int]]] = defaultdict(list)
        for progress, _, checkpoint, entry in commits:
            state[progress.checkpoint_partition].append(checkpoints.to_record(checkpoint))
            state[progress.ledger_partition].append(entry)
        self._producer.add(state)
        for partition, records in state.items():
            for batch in encode_all(records):
                self._producer.send(partition, batch)
        self._producer.drain()
        failpoint(Failpoint.BEFORE_END_TXN)
        self._producer.commit()
        failpoint(Failpoint.AFTER_END_TXN)
        seconds = (self._clock.monotonic() - began) / len(commits)
        for progress, chunk, checkpoint, _ in commits:
            progress.committed_chunk(chunk, checkpoint, seconds)

    def forget(self) -> None:
        """Let go of the transactional id after another task has taken it; `begin` takes it back."""
        self._producer.release()
        self._producer = self._new_producer()

    def _new_producer(self) -> TransactionalProducer:
        return TransactionalProducer(self._destination, self._owner, self._options, self._witness)

    def release(self) -> None:
        """Give the connections back, and close those with outstanding responses."""
        self._producer.release()

    def fail(self) -> None:
        """Prepare another attempt after an error on either side: find leaders and connect again."""
        self._producer.release()
        self._destination.forget()

    def abort(self) -> None:
        """Abort the open transaction if the destination answers soon."""
        try:
            with self._destination.waiting_at_most(LEAST_SECONDS):
                self._producer.abort()
        except RelayError:
            self._producer.release()  # the destination aborts it after the transaction timeout

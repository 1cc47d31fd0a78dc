"""The copy loop, the only one: attempts, checkpoints, positions, chunks, deadline, commit.

It pulls from `BatchSource`s (verbatim, merged, filtered, or made of rows) and runs in a task. One
transaction carries the chunks of several small ranges, or one chunk of a large one.
docs/transactions.md argues why no record is lost or duplicated.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from copy import copy

from relay_pipelines.copy.chunk import Chunk, Portion
from relay_pipelines.copy.failover import FailoverSource
from relay_pipelines.copy.sources import BatchSource
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.copy.transaction import RangeProgress, Transactions
from relay_pipelines.errors import (
    AbortableError,
    DestinationError,
    FencedError,
    InvalidRecordError,
    RelayError,
    RetriableError,
    SourceError,
    StalePlanError,
)
from relay_pipelines.ledger.last_checkpoint import Current
from relay_pipelines.model import CopyOptions, TopicPartition, UpstreamIdentity
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry_until_no_progress
from relay_pipelines.user_code import describe

_LONGEST_WAIT_SECONDS = 1.0
"""How long an open transaction may wait, because it holds up the destination's readers.

Before a longer wait, the loop commits.
"""
_TOGETHER = 256  # ranges whose first records one Fetch brings, and one AddPartitionsToTxn adds


class RangeCopy:
    """The copy of one range: its source, its progress, and how it ends.

    Args:
        make_source: called once, when the range's turn comes.
        throttles: what limits the bytes written of this range.
    """

    def __init__(
        self,
        progress: RangeProgress,
        options: CopyOptions,
        make_source: Callable[[], BatchSource],
        throttles: Sequence[Throttle],
    ) -> None:
        self.progress = progress
        self.options = options
        self.throttles = [throttle for throttle in throttles if throttle.is_limited]
        self._make_source = make_source
        self.made_source: BatchSource | None = None
        self.chunk = Chunk(-1)
        self.is_finished = False
        """Whether the chunk is complete, so that it can be committed."""
        self.has_sent = False
        """Whether the open transaction holds records of it."""
        self.is_read = False
        """Whether this attempt has read the range to its end."""
        self.is_done = False
        self.has_failed = False
        self.error: RelayError | None = None
        """The error of this attempt, or the final one."""
        self.last_error: RelayError | None = None
        self.failing_since = -1.0  # time of the first failure after the last commit
        self.failures = 0
        self.tries = 0  # turns since the last commit
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    @property
    def source(self) -> BatchSource:
        """Where its batches come from."""
        if self.made_source is None:
            self.made_source = self._make_source()
        return self.made_source

    @property
    def is_waiting(self) -> bool:
        """Whether it is neither copied nor failed."""
        return not self.is_done and not self.has_failed

    def begin_attempt(self) -> None:
        """Start again from the checkpoint."""
        self.error, self.chunk = None, Chunk(-1)
        self.has_sent = self.is_read = self.is_finished = False

    def committed(self) -> None:
        """Go on after a commit."""
        self.source.forget_below(self.chunk.end)
        self.failing_since, self.failures, self.tries = -1.0, 0, 0
        self.has_sent = self.is_finished = False
        self.is_done = self.is_read

    def note_fenced(self, error: RelayError, now: float) -> None:
        """Remember that another task has taken the transactional id, which is final if it is own.

        One that several topic-partitions share may have been taken for another one.
        """
        self._begin_failing(now)
        self.error = self.last_error = error
        if not (self.progress.shares_owner and self._can_reopen):
            self.fail_for_good(error)

    def _begin_failing(self, since: float) -> None:
        self.failures += 1
        if self.failing_since < 0:
            self.failing_since = since
        self.is_finished = False

    def note_silent(self, error: RelayError, since: float) -> None:
        """Remember that its upstream's leader does not answer, whether or not its turn comes."""
        self._begin_failing(since)
        self.last_error = error
        self.tries += 1

    def note_failure(self, error: RelayError, since: float) -> None:
        """Remember a failure, which is final if another attempt cannot succeed.

        Args:
            since: when it began, in seconds of `clock.monotonic()`.
        """
        self._begin_failing(since)
        if self.made_source is not None and not self._breaks_other_rule(error):
            error = self.made_source.fail(error)
        self.error = self.last_error = error
        if not (error.retryable and self._can_reopen):
            self.fail_for_good(error)

    def _breaks_other_rule(self, error: RelayError) -> bool:
        """Whether the destination refused a batch, and for another reason than a missing key."""
        is_refused = isinstance(error, InvalidRecordError) and error.offset is None
        return is_refused and not self.progress.requires_keys()

    @property
    def _can_reopen(self) -> bool:
        """Whether its source, if it has one, allows another attempt."""
        return self.made_source is None or self.made_source.can_reopen

    def fail_for_good(self, error: RelayError) -> None:
        """End with an error."""
        if not error.retryable and error.topic_partition is None:
            error.topic_partition = self.progress.source
        self.error, self.has_failed = error, True


class _TransactionBrokenError(Exception):
    """The open transaction cannot be committed; its ranges start again from their checkpoints."""

    def __init__(self, fenced: FencedError | None = None) -> None:
        super().__init__()
        self.fenced = fenced  # another task holds the transactional id


class Copier:
    """Copies ranges that share a transactional id, each from its checkpoint to its end.

    A range that fails does not stop the others: they are copied without it.

    Args:
        options: the mirror's; a range alone has those of its topic. If `give_up_after_ms` is 0, no
            range has another attempt.
        upstreams: the source, to be asked about many ranges at once.
    """

    def __init__(
        self,
        ranges: Sequence[RangeCopy],
        options: CopyOptions,
        transactions: Transactions,
        upstreams: FailoverSource,
        clock: Clock,
    ) -> None:
        self._upstreams = upstreams
        self._ranges = ranges
        self._options = options
        self._transactions = transactions
        self._clock = clock
        self._by_destination = {
            to: range_copy
            for range_copy in ranges
            for to in (range_copy.progress.range.destination, range_copy.progress.quarantine)
        }
        self._finished_bytes = 0
        self._deadline = 0.0
        self._waiting_since = 0.0
        self._committed_at = clock.monotonic()

    def copy(self) -> None:
        """Copy the ranges; retry each until `give_up_after_ms` pass without a commit of it.

        One that got no turn in that time goes on while others are copied.

        Each range holds its own error. If one fails, the open transaction is aborted if the
        destination answers.
        """
        try:
            while self._waiting():
                attempts = retry_until_no_progress(
                    self._options, self._clock, self._failing_since, also=(FencedError,)
                )
                try:
                    for attempt in attempts:
                        with attempt:
                            self._attempt()
                except RelayError as error:
                    self._give_up(error)
        finally:
            if self._transactions.is_open:
                self._transactions.abort()  # readers must not wait for the timeout
            self._transactions.release()

    def _waiting(self) -> list[RangeCopy]:
        """Return the ranges that are neither copied nor failed; those that fail most come last.

        If all failed together, those that got no turn come before the one that made them fail.
        """
        return sorted(
            (range_copy for range_copy in self._ranges if range_copy.is_waiting),
            key=lambda range_copy: (range_copy.failures, range_copy.tries),
        )

    def _failing_since(self) -> float:
        """Return when the oldest failure began after which its range has had no commit."""
        since = [range_copy.failing_since for range_copy in self._ranges if range_copy.is_waiting]
        return min((each for each in since if each >= 0), default=-1.0)

    def _attempt(self) -> None:
        """Copy all that can be copied; raise an error that is left and may pass."""
        waiting = self._waiting()
        # one that has failed may break the transaction again: it then holds no other; nor does one
        # that gets no other attempt
        is_careful = not self._options.give_up_after_ms or any(each.failures for each in waiting)
        for range_copy in waiting:
            range_copy.begin_attempt()
        self._upstreams.begin_attempt()
        self._transactions.expect([])
        self._finished_bytes = 0
        self._take_turns(waiting, is_careful=is_careful)
        left = [range_copy for range_copy in waiting if range_copy.is_waiting]
        errors = [range_copy.error for range_copy in left if range_copy.error is not None]
        # else the others need not wait; none has an error if one that is not left broke it
        if errors and all(range_copy.failures for range_copy in left):
            raise errors[0]

    def _reachable(self, waiting: list[RangeCopy]) -> list[RangeCopy]:
        """Leave out those whose leaders at the destination do not answer: they have had a turn.

        Those that do not answer at the source come last. A leader that hangs is waited for once,
        not by one range after the other.
        """
        refused = self._transactions.silent(each.progress.range.destination for each in waiting)
        for range_copy in waiting:
            if error := refused.get(range_copy.progress.range.destination):
                range_copy.tries += 1
                range_copy.note_failure(copy(error), self._began(error))
        reachable = [range_copy for range_copy in waiting if range_copy.error is None]
        if self._upstreams.are_several:
            return reachable  # another one may serve what this one does not
        silent = self._upstreams.silent(each.progress.source for each in reachable)
        for range_copy in reachable:
            if error := silent.get(range_copy.progress.source):
                range_copy.note_silent(error, self._began(error))
        return sorted(reachable, key=lambda each: each.progress.source in silent)

    def _take_turns(self, waiting: list[RangeCopy], *, is_careful: bool) -> None:
        """Copy what can be reached, and note who failed."""
        began = self._clock.monotonic()
        try:
            if is_careful and len(waiting) > 1:
                waiting = self._reachable(waiting)
            if waiting:
                self._copy_one_by_one(waiting, is_careful=is_careful)
        except _TransactionBrokenError as broken:
            if broken.fenced is None:
                self._transactions.fail()
            else:
                self._fenced(waiting, broken.fenced)
        except RelayError as error:  # of `begin`, or of `_reachable`; they may have waited for long
            for range_copy in waiting:
                range_copy.tries += 1  # it was the turn of all
            if isinstance(error, FencedError):
                self._fenced(waiting, error)
            else:
                self._all_failed(waiting, error, began)
                self._transactions.fail()

    def _copy_one_by_one(self, waiting: list[RangeCopy], *, is_careful: bool) -> None:
        current = self._transactions.begin([range_copy.progress for range_copy in waiting])
        self._begin_transaction()
        for index in range(len(waiting)):
            range_copy = self._copy_next(waiting, index, current, is_careful=is_careful)
            error = range_copy.error
            if error is not None or is_careful or self._clock.monotonic() >= self._deadline:
                self._commit()
            if error is not None and error.retryable and not error.topic_partition:
                self._all_failed(waiting[index + 1 :], error)  # the cluster is away
                break
        self._commit()

    @contextmanager
    def _isolated(self, range_copy: RangeCopy) -> Iterator[None]:
        """Keep a failure that is the range's own from the others."""
        wall, cpu = self._clock.monotonic(), time.process_time()
        try:
            yield
        except _TransactionBrokenError:
            raise
        except RelayError as error:
            range_copy.note_failure(error, self._began(error))
        except Exception as error:  # noqa: BLE001 - a bug must not stop the other ranges
            traceback.print_exc()  # for the executor's log
            failed = RelayError(
                f"the copy failed: {describe(error)}",
                remedy="see the trace in the log of the Spark executor",
            )
            range_copy.note_failure(failed, self._clock.monotonic())
        finally:
            range_copy.seconds += self._clock.monotonic() - wall
            range_copy.cpu_seconds += time.process_time() - cpu
        if range_copy.error is not None and range_copy.has_sent:
            raise _TransactionBrokenError

    @contextmanager
    def _in_transaction(self) -> Iterator[None]:
        """Tell whose failure one of the transaction is: that of one range, or of all in it."""
        try:
            yield
        except FencedError as error:
            raise _TransactionBrokenError(error) from error
        except RelayError as error:
            refused = error.topic_partition and self._by_destination.get(error.topic_partition)
            if refused and refused.is_waiting and not isinstance(error, AbortableError):
                refused.note_failure(error, self._began(error))
            else:
                self._all_failed(self._waiting(), error)
            raise _TransactionBrokenError from error
        except Exception as error:
            # whose answer it was, nobody knows: what was sent may be missing
            traceback.print_exc()
            failed = DestinationError(f"the transaction failed: {describe(error)}")
            self._all_failed(self._waiting(), failed)
            raise _TransactionBrokenError from error

    def _all_failed(
        self, ranges: Iterable[RangeCopy], error: RelayError, since: float | None = None
    ) -> None:
        """Note a failure that several ranges share.

        By default as of now: nobody knows whose answer was waited for, unless one is left.
        """
        if since is None:
            is_alone = len(self._waiting()) == 1
            since = self._began(error) if is_alone else self._clock.monotonic()
        for range_copy in ranges:
            if range_copy.is_waiting:
                range_copy.note_failure(self._shared(error, range_copy), since)

    def _began(self, error: RelayError) -> float:
        """Return when a failure began that is known now: the wait for an answer belongs to it.

        Not the wait for an upstream, if another one may serve: it is read first.
        """
        waited = error.waited_seconds if isinstance(error, RetriableError) else 0.0
        if isinstance(error, SourceError) and self._upstreams.are_several:
            waited = 0.0
        return max(0.0, self._clock.monotonic() - waited)  # the machine may have just started

    def _shared(self, error: RelayError, range_copy: RangeCopy) -> RelayError:
        """Return an error of several ranges as that of one; it must not name another."""
        is_of_another = error.topic_partition in self._by_destination
        if len(self._ranges) == 1 or (error.retryable and not is_of_another):
            return error
        own = copy(error)
        own.__cause__ = error
        own.topic_partition, own.offset = range_copy.progress.source, None
        return own

    def _fenced(self, ranges: Sequence[RangeCopy], error: FencedError) -> None:
        """Let go of the transactional id, which another task has taken.

        If several topic-partitions share the id, it may have wanted another one, to copy it under
        another id. So they are tried again: those that no other process owns now are ours to copy.
        """
        self._transactions.forget()
        for range_copy in ranges:
            if range_copy.is_waiting:
                range_copy.note_fenced(self._shared(error, range_copy), self._clock.monotonic())

    def _give_up(self, error: RelayError) -> None:
        """Fail the ranges that have failed for too long.

        One that others made fail, and that had no turn since, may be fit; unless nothing at all was
        committed for as long as the ranges' own options say.
        """
        oldest, now = self._failing_since(), self._clock.monotonic()
        patience = self._options.give_up_after_ms / 1000
        longest = max(range_copy.options.give_up_after_ms for range_copy in self._ranges) / 1000
        is_stuck = now - self._committed_at >= longest
        for range_copy in self._waiting():
            since = range_copy.failing_since
            is_overdue = since >= 0 and (since == oldest or now - since >= patience >= 0)
            if is_overdue and (is_stuck or range_copy.tries):
                range_copy.fail_for_good(range_copy.last_error or error)

    def _copy_next(
        self,
        waiting: list[RangeCopy],
        index: int,
        current: Mapping[TopicPartition, Current],
        *,
        is_careful: bool,
    ) -> RangeCopy:
        """Copy the range at `index` from its checkpoint; return it, or the one it lets go first."""
        while True:
            range_copy = waiting[index]
            with self._isolated(range_copy):
                self._look(waiting, index, current, 1 if is_careful else _TOGETHER)
                if waiting[index] is range_copy:
                    range_copy.tries += 1
                    range_copy.progress.start_from(current[range_copy.progress.source])
                    self._copy_range(range_copy)
            if waiting[index] is range_copy:
                return range_copy

    def _look(
        self,
        waiting: list[RangeCopy],
        index: int,
        current: Mapping[TopicPartition, Current],
        together: int,
    ) -> None:
        """Look at the ranges from `index` on, unless the next one was seen before.

        What has something to copy comes first, and what is refused after all others: it may wait
        for a broker that hangs. What is finished waits for no answer, and is verified on the
        upstream that it was read from.
        """
        if waiting[index].source.is_seen:
            return
        self._commit()
        known = {tp: each.checkpoint for tp, each in current.items() if each.checkpoint}
        for _ in range(index, len(waiting), together):
            coming = waiting[index : index + together]
            if len(coming) == 1:
                return  # it looks for itself, on the upstream that is fit for it
            self._upstreams.switch()
            try:
                seen, refused = self._upstreams.look(
                    [each.progress.range for each in coming], known
                )
            except Exception:  # noqa: BLE001 - a bug must not stop the ranges: each looks for itself
                traceback.print_exc()  # for the executor's log
                return
            coming.sort(key=lambda each: each.progress.source not in seen)
            coming += waiting[index + together :]
            waiting[index:] = sorted(coming, key=lambda each: each.progress.source in refused)
            if len(refused) < together:
                break
        self._transactions.expect(
            [each.progress.range.destination for each in coming if each.progress.source in seen]
        )
        self._begin_transaction()

    def _copy_range(self, range_copy: RangeCopy) -> None:
        start = range_copy.source.open(range_copy.progress.checkpoint)
        range_copy.chunk = Chunk(start)
        self._waiting_since = self._clock.monotonic()
        stale: StalePlanError | None = None
        with closing(range_copy.source.portions(start)) as portions:
            try:
                for portion in portions:
                    self._send(range_copy, portion)
                    self._commit_if_due(range_copy)
            except StalePlanError as error:
                stale = error  # what came before stays: the next plan begins after it
        range_copy.is_read = stale is None
        if len(range_copy.chunk):
            self._finish_chunk(range_copy)
        elif stale is None:
            range_copy.is_done = True
        if stale is not None:
            self._commit()
            raise stale

    def _verified(self, finished: Sequence[RangeCopy]) -> list[UpstreamIdentity]:
        """Verify that what was read came from one log each; return which ones."""
        if len(finished) > 1:
            self._upstreams.look_again([range_copy.progress.range for range_copy in finished])
        logs = []
        for range_copy in finished:
            with self._isolated(range_copy):
                logs.append(range_copy.source.verify_same_log())
            if range_copy.error is not None:
                raise _TransactionBrokenError
        return logs

    def _begin_transaction(self) -> None:
        now = self._clock.monotonic()
        self._deadline = (
            now + min(range_copy.options.chunk_ms for range_copy in self._ranges) / 1000
        )
        self._waiting_since = now
        self._finished_bytes = 0

    def _send(self, range_copy: RangeCopy, portion: Portion) -> None:
        to = range_copy.progress.range.destination
        with self._in_transaction():
            for record, error in portion.quarantined:
                range_copy.has_sent = True
                batch = range_copy.progress.quarantine_batch(record, error)
                self._transactions.append(
                    range_copy.progress.quarantine, batch, range_copy.throttles
                )
            for batch in portion.batches:
                range_copy.has_sent = True
                self._transactions.append(to, batch, range_copy.throttles)
        range_copy.chunk.add(portion)
        if portion.end >= 0:
            self._waiting_since = self._clock.monotonic()

    def _commit_if_due(self, range_copy: RangeCopy) -> None:
        """Commit a chunk that is large or old enough, and before any long wait."""
        now = self._clock.monotonic()
        throttled = self._transactions.throttled_seconds(range_copy.throttles)
        is_due = (
            range_copy.chunk.is_full
            or range_copy.chunk.size_bytes + self._finished_bytes >= range_copy.options.chunk_bytes
            or now + throttled >= self._deadline
            or (
                self._transactions.is_open
                and max(throttled, now - self._waiting_since) >= _LONGEST_WAIT_SECONDS
            )
        )
        if is_due and len(range_copy.chunk):
            self._finish_chunk(range_copy)
            self._commit()
            range_copy.chunk = Chunk(range_copy.chunk.end)
        elif is_due:
            self._commit()  # what is finished of other ranges does not wait for this one
        if throttled:
            self._clock.sleep(throttled)

    def _finish_chunk(self, range_copy: RangeCopy) -> None:
        """Send what was held back; make sure that all of the chunk is from one log."""
        self._send(range_copy, range_copy.source.flush())
        range_copy.chunk.finish()
        range_copy.is_finished = True
        self._finished_bytes += range_copy.chunk.size_bytes

    def _commit(self) -> None:
        """Commit the chunks that are finished."""
        finished = [
            range_copy
            for range_copy in self._ranges
            if range_copy.is_waiting and range_copy.is_finished
        ]
        if not finished:
            return
        # a broker that hangs must not hide for longer what the others have finished
        several = len(finished) > 1
        hurry = self._upstreams.client.waiting_at_most(_LONGEST_WAIT_SECONDS)
        with hurry if several else nullcontext():
            logs = self._verified(finished)
        with self._in_transaction():
            self._transactions.drain()
        commits = []
        for range_copy, log in zip(finished, logs, strict=True):
            with self._isolated(range_copy):
                commits.append(
                    self._transactions.next_commit(range_copy.progress, range_copy.chunk, log)
                )
            if range_copy.error is not None:
                raise _TransactionBrokenError
        with self._in_transaction():
            self._transactions.commit(commits)
        self._committed_at = self._clock.monotonic()
        for range_copy in finished:
            range_copy.committed()
        # a look serves up to the end of the transaction
        self._upstreams.forget_answers()
        self._transactions.expect([])
        self._begin_transaction()

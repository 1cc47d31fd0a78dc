"""The copy loop, the only one: attempts, checkpoint, position, chunks, deadline, commit. Runs in a task.

Batches are pulled from a `BatchSource` (verbatim, merged, filtered, or made of rows).
docs/transactions.md argues why nothing is lost or doubled.
"""

from __future__ import annotations

from contextlib import closing

from tenacity import retry_if_exception

from relay_pipelines.copy.chunk import Chunk, Portion
from relay_pipelines.copy.sources import BatchSource
from relay_pipelines.copy.transaction import RangeTransactions
from relay_pipelines.errors import FencedError, RelayError
from relay_pipelines.model import CopyOptions, CopyRange
from relay_pipelines.protocol.backoff import is_retryable, retry_until_no_progress
from relay_pipelines.protocol.clock import Clock

_LONGEST_WAIT_SECONDS = 1.0
"""With a transaction open; what takes longer is waited for after a commit. Readers of the destination wait for the open ones."""


class RangeCopier:
    """Copies one range, from its checkpoint through the range's end."""

    def __init__(
        self,
        copy_range: CopyRange,
        options: CopyOptions,
        source: BatchSource,
        transactions: RangeTransactions,
        clock: Clock,
    ) -> None:
        self._range = copy_range
        self._options = options
        self._source = source
        self._transactions = transactions
        self._clock = clock
        self._failing_since = -1.0  # since no commit came between
        self._chunk = Chunk(-1)
        self._deadline = 0.0
        self._waiting_since = 0.0

    def copy(self) -> None:
        """Copy the range; retry what may pass, from the checkpoint, until nothing but failures came for `give_up_after_ms`.

        Raises:
            FencedError: another task took over; the range is in its hands.
            RelayError: anything else that stopped it. No transaction is left open, as far as the
                destination answers.
        """
        attempts = retry_until_no_progress(self._options, self._clock, lambda: self._failing_since)
        may_pass = retry_if_exception(lambda error: is_retryable(error) and self._source.can_reopen)
        try:
            for attempt in attempts.copy(retry=may_pass):
                with attempt:
                    self._attempt()
        except FencedError:
            self._transactions.release()
            raise
        except (
            Exception
        ):  # whatever it is, readers of the destination need not wait for the transaction's timeout
            self._transactions.abort_quietly()
            raise
        self._transactions.release()

    def _attempt(self) -> None:
        try:
            checkpoint = self._transactions.start()
            start = self._source.open(checkpoint)
            self._copy_from(start)
        except RelayError as error:
            if self._failing_since < 0:
                self._failing_since = self._clock.monotonic()
            self._transactions.fail()
            raise self._source.fail(error) from error

    def _copy_from(self, start: int) -> None:
        self._begin(start)
        with closing(self._source.portions(start)) as portions:
            for portion in portions:
                self._take(portion)
                self._keep_time(must_commit=portion.ends_chunk)
        if len(self._chunk):
            self._commit()

    def _begin(self, start: int) -> None:
        self._chunk = Chunk(start)
        now = self._clock.monotonic()
        self._deadline = now + self._options.chunk_ms / 1000
        self._waiting_since = now

    def _take(self, portion: Portion) -> None:
        for record, error in portion.quarantined:
            self._transactions.quarantine(record, error)
        for batch in portion.batches:
            self._transactions.send(batch)
        self._chunk.add(portion)
        if portion.end >= 0:
            self._waiting_since = self._clock.monotonic()

    def _keep_time(self, *, must_commit: bool) -> None:
        """Commit what is large or old enough, and before any long wait: a transaction is never held open while waiting."""
        now = self._clock.monotonic()
        owed = self._transactions.owed_seconds()
        if len(self._chunk) and (
            must_commit
            or self._chunk.size_bytes >= self._options.chunk_bytes
            or now + owed >= self._deadline
            or (
                self._transactions.is_open
                and max(owed, now - self._waiting_since) >= _LONGEST_WAIT_SECONDS
            )
        ):
            self._commit()
            self._begin(self._chunk.end)
        if owed:
            self._clock.sleep(owed)

    def _commit(self) -> None:
        self._take(self._source.flush())
        self._transactions.commit(self._chunk, self._source.confirm())
        self._source.committed(self._chunk.end)
        self._failing_since = -1.0

"""The copy loop, the only one: attempts, checkpoint, position, chunks, deadline, commit.

It pulls from a `BatchSource` (verbatim, merged, filtered, or made of rows) and runs in a task.
docs/transactions.md argues why nothing is lost or doubled.
"""

from __future__ import annotations

from contextlib import closing

from tenacity import retry_if_exception

from relay_pipelines.copy.chunk import Chunk, Portion
from relay_pipelines.copy.sources import BatchSource
from relay_pipelines.copy.transaction import RangeTransactions
from relay_pipelines.errors import FencedError, RelayError
from relay_pipelines.model import CopyOptions
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import is_retryable, retry_until_no_progress

_LONGEST_WAIT_SECONDS = 1.0
"""How long an open transaction may wait, because it holds up the destination's readers.

Before a longer wait, the loop commits.
"""


class RangeCopier:
    """Copies one range, from its checkpoint to the range's end."""

    def __init__(
        self,
        options: CopyOptions,
        source: BatchSource,
        transactions: RangeTransactions,
        clock: Clock,
    ) -> None:
        self._options = options
        self._source = source
        self._transactions = transactions
        self._clock = clock
        self._failing_since = -1.0  # time of the first failure after the last commit
        self._chunk = Chunk(-1)
        self._deadline = 0.0
        self._waiting_since = 0.0

    def copy(self) -> None:
        """Copy the range; retry from the checkpoint until `give_up_after_ms` pass without a commit.

        Raises:
            FencedError: another task took the range over.
            RelayError: any other error that stopped the copy. The open transaction is aborted if
                the destination answers.
        """
        attempts = retry_until_no_progress(self._options, self._clock, lambda: self._failing_since)
        can_retry = retry_if_exception(
            lambda error: is_retryable(error) and self._source.can_reopen
        )
        try:
            for attempt in attempts.copy(retry=can_retry):
                with attempt:
                    self._attempt()
        except FencedError:
            self._transactions.release()
            raise
        except Exception:  # a bug, too: readers must not wait for the transaction's timeout
            self._transactions.abort_quietly()
            raise
        self._transactions.release()

    def _attempt(self) -> None:
        try:
            checkpoint = self._transactions.start()
            start = self._source.open(checkpoint)
            self._begin_chunk(start)
            with closing(self._source.portions(start)) as portions:
                for portion in portions:
                    self._send(portion)
                    self._commit_if_due(chunk_ends=portion.ends_chunk)
            if len(self._chunk):
                self._commit()
        except RelayError as error:
            if self._failing_since < 0:
                self._failing_since = self._clock.monotonic()
            self._transactions.fail()
            raise self._source.fail(error) from error

    def _begin_chunk(self, start: int) -> None:
        self._chunk = Chunk(start)
        now = self._clock.monotonic()
        self._deadline = now + self._options.chunk_ms / 1000
        self._waiting_since = now

    def _send(self, portion: Portion) -> None:
        for record, error in portion.quarantined:
            self._transactions.quarantine(record, error)
        for batch in portion.batches:
            self._transactions.send(batch)
        self._chunk.add(portion)
        if portion.end >= 0:
            self._waiting_since = self._clock.monotonic()

    def _commit_if_due(self, *, chunk_ends: bool) -> None:
        """Commit a chunk that is large or old enough, and before any long wait."""
        now = self._clock.monotonic()
        throttled = self._transactions.throttled_seconds()
        if len(self._chunk) and (
            chunk_ends
            or self._chunk.size_bytes >= self._options.chunk_bytes
            or now + throttled >= self._deadline
            or (
                self._transactions.is_open
                and max(throttled, now - self._waiting_since) >= _LONGEST_WAIT_SECONDS
            )
        ):
            self._commit()
            self._begin_chunk(self._chunk.end)
        if throttled:
            self._clock.sleep(throttled)

    def _commit(self) -> None:
        self._send(self._source.flush())
        self._transactions.commit(self._chunk, self._source.verify_same_log())
        self._source.forget_below(self._chunk.end)
        self._failing_since = -1.0

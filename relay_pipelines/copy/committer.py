"""What the copy loop needs of a destination: the counterpart of `BatchSource`. Runs in a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from relay_pipelines.copy.chunk import Chunk
from relay_pipelines.copy.throttle import Throttle
from relay_pipelines.copy.transaction import Commit, RangeProgress
from relay_pipelines.model import TopicPartition, UpstreamIdentity
from relay_pipelines.protocol.batch import Batch


class Committer(Protocol):
    """Takes batches, and makes them visible together with how far they go, or not at all.

    The loop decides what is copied; a committer makes it true. Exactly once rests on three promises
    of an implementation:

    1. `begin` ends every earlier holder of the ranges: after it has returned, no other process can
       commit them, and the checkpoints that it returns stay the last ones.
    2. `commit` makes all that was appended since the last one visible in one step with checkpoints
       and ledger entries. If it fails, it is unknown whether it happened: the next `begin` does.
    3. What was appended and not committed is never visible.

    Call order: `begin`; then, as often as there is something to commit, any number of `append`,
    `drain`, a `next_commit` for each range, `commit`; in the end `release`. After an error only
    `abort`, `fail`, `forget`, `begin` or `release`.

    `copy.transaction.Transactions` is the one there is: Kafka's transactions, with checkpoints and
    ledger as topics beside the records. docs/transactions.md argues for it, step by step.
    """

    @property
    def is_open(self) -> bool:
        """Whether something was appended since the last commit."""

    def begin(self, ranges: Sequence[RangeProgress]) -> Mapping[TopicPartition, Any]:
        """Take the ranges over from any task that holds them, then read their checkpoints.

        Raises:
            FencedError: another task took over since the first call.
        """

    def expect(self, destinations: Iterable[TopicPartition]) -> None:
        """Say to which topic-partitions batches will go soon, so that they are prepared at once."""

    def append(self, to: TopicPartition, batch: Batch, throttles: Iterable[Throttle]) -> None:
        """Write a batch; the caller may reuse its bytes at once."""

    def throttled_seconds(self, throttles: Sequence[Throttle]) -> float:
        """How long to wait before the next `append`."""

    def drain(self) -> None:
        """Wait until the destination has acknowledged all that was appended."""

    def next_commit(
        self, progress: RangeProgress, chunk: Chunk, identity: UpstreamIdentity
    ) -> Commit:
        """Return checkpoint and ledger entry of a chunk; a failure is that of its range alone.

        Args:
            identity: the log that the chunk was read from.
        """

    def commit(self, commits: Sequence[Commit]) -> None:
        """Commit records, checkpoints and ledger entries: all of them or none."""

    def abort(self) -> None:
        """Give up what is open, if the destination answers; otherwise it does so by itself."""

    def forget(self) -> None:
        """Let go of the ranges after another task has taken them; `begin` takes them back."""

    def fail(self) -> None:
        """Prepare another attempt after an error on either side."""

    def release(self) -> None:
        """Give back what belongs to the task, such as connections."""

"""Where the copy loop pulls its batches from: the contract, and the source that reads a node. Runs in a task."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Protocol

from relay_pipelines.copy.batching import Batching
from relay_pipelines.copy.chunk import Portion
from relay_pipelines.copy.failover import FailoverSource
from relay_pipelines.copy.filtering import RecordFilter
from relay_pipelines.errors import CorruptBatchError, DestinationError, RelayError
from relay_pipelines.model import Checkpoint, CopyOptions, CopyRange, NodeIdentity, OffsetRange
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import FetchedSpan


class BatchSource(Protocol):
    """What the copy loop needs of a source of batches.

    Call order per attempt: `open`, `portions`; `flush`, `confirm` and `committed` at each commit;
        `fail` after an error.
    """

    @property
    def node(self) -> str:
        """The node that was read last; empty if none was."""

    @property
    def diverged(self) -> dict[str, str]:
        """The nodes that were found not to hold what was copied, and why."""

    @property
    def can_reopen(self) -> bool:
        """Whether `open` may be called again: whether another attempt is possible."""

    def open(self, checkpoint: Checkpoint | None) -> int:
        """Make sure that the source stands where the copy stands; return the first source offset to copy."""

    def portions(self, start: int) -> Generator[Portion, None, None]:
        """Yield what becomes of the offsets from `start` on; an empty portion about every quarter of a second while waiting."""

    def flush(self) -> Portion:
        """Return what was held back to be merged with later records."""

    def confirm(self) -> NodeIdentity:
        """Make sure that all that was handed out since `open` came from one log; return which."""

    def committed(self, next_offset: int) -> None:
        """Forget what is needed only for the offsets below."""

    def fail(self, error: RelayError) -> RelayError:
        """Get ready for another attempt after an error of any side; return what this attempt ends with."""


class FetchedBatches:
    """The batches of one range as a node holds them: verbatim, merged or filtered."""

    def __init__(
        self,
        copy_range: CopyRange,
        options: CopyOptions,
        source: FailoverSource,
        record_filter: RecordFilter | None,
        clock: Clock,
    ) -> None:
        self._range = copy_range
        self._options = options
        self._source = source
        self._filter = record_filter
        self._clock = clock
        self._batching = Batching(copy_range, options, record_filter)
        self._identity = NodeIdentity("", "", "")
        self._reading = False
        self._can_reopen = True
        source.begin()

    @property
    def node(self) -> str:
        """The node that was read last."""
        return self._source.node

    @property
    def diverged(self) -> dict[str, str]:
        """The nodes that were found not to hold what was copied, and why."""
        return self._source.diverged

    @property
    def can_reopen(self) -> bool:
        """Whether another attempt is possible: from the checkpoint, unless the filter knows nothing of what follows it."""
        return self._can_reopen

    def open(self, checkpoint: Checkpoint | None) -> int:
        """Verify the position on the node; return the first offset to copy."""
        self._reading = True
        self._identity = self._source.verify(self._range, checkpoint, self._clock)
        start = self._range.source.start if checkpoint is None else checkpoint.next_offset
        self._reading = False
        if self._filter is not None and start < self._range.source.end:
            self._can_reopen = self._filter.can_decide_from(start)
            if not self._can_reopen:
                raise DestinationError(
                    f"the checkpoint has moved back to {start} since Spark was asked which records to copy",
                    remedy="run again to go on from there",
                    topic_partition=self._range.source.topic_partition,
                )
        return start

    def portions(self, start: int) -> Generator[Portion, None, None]:
        """Yield what becomes of the offsets from `start` on."""
        self._batching = Batching(self._range, self._options, self._filter)
        wanted = OffsetRange(self._range.source.topic_partition, start, self._range.source.end)
        options = self._options
        with closing(
            self._source.read(
                wanted, options.fetch_max_bytes, self._clock, options.coalesce_below_bytes
            )
        ) as fetches:
            for spans in self._pulled(fetches):
                for span in spans:
                    while self._filter is not None and not self._filter.covers(span.end):
                        yield Portion()
                    yield self._batched(span)
                yield Portion()  # the next fetch reuses the buffer

    def flush(self) -> Portion:
        """Return what was held back to be merged."""
        return self._batching.flush()

    def confirm(self) -> NodeIdentity:
        """Make sure that the topic is still the one that was verified."""
        self._reading = True
        self._source.confirm(self._range, self._identity)
        self._reading = False
        return self._identity

    def committed(self, next_offset: int) -> None:
        """Forget the filter's decisions below."""
        if self._filter is not None:
            self._filter.committed(next_offset)

    def fail(self, error: RelayError) -> RelayError:
        """Go to another node if the source failed; the destination's failures are not the node's."""
        was_reading, self._reading = self._reading, False
        return self._source.fail_over(error) if was_reading else error

    def _pulled(self, fetches: Iterator[list[FetchedSpan]]) -> Iterator[list[FetchedSpan]]:
        while True:
            self._reading = True
            spans = next(fetches, None)
            self._reading = False
            if spans is None:
                return
            yield spans

    def _batched(self, span: FetchedSpan) -> Portion:
        try:
            return self._batching.add(span)
        except CorruptBatchError as error:
            error.topic_partition = error.topic_partition or self._range.source.topic_partition
            self._reading = True  # the node's bytes are bad
            raise

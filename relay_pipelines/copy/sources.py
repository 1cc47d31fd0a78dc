"""Where the copy loop pulls its batches from: the contract, and the source that reads an upstream.

Runs in a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

from relay_pipelines.copy.batching import Batching, small_batches
from relay_pipelines.copy.chunk import Portion
from relay_pipelines.copy.failover import FailoverSource, UpstreamFailures
from relay_pipelines.copy.filtering import RecordFilter
from relay_pipelines.errors import (
    CorruptBatchError,
    DestinationError,
    InvalidRecordError,
    RelayError,
    StalePlanError,
)
from relay_pipelines.model import Checkpoint, CopyOptions, CopyRange, OffsetRange, UpstreamIdentity
from relay_pipelines.protocol.reader import FetchedSpan


class BatchSource(ABC):
    """What the copy loop needs of a source of batches.

    Call order per attempt: `open`, `portions`; `flush`, `verify_same_log` and `forget_below` at
    each commit; `fail` after an error.
    """

    @property
    @abstractmethod
    def upstream(self) -> str:
        """The upstream that was read last; empty if none was."""

    @property
    @abstractmethod
    def diverged(self) -> dict[str, str]:
        """The upstreams that do not hold what was copied, and why."""

    @property
    def throttled_seconds(self) -> float:
        """For how long quotas made others wait that read for it; the task knows its own waits."""
        return 0.0

    @property
    def failed_for_range_only(self) -> bool:
        """Whether the source failed for this range, but may serve others."""
        return False

    @property
    @abstractmethod
    def can_reopen(self) -> bool:
        """Whether another attempt is possible."""

    @property
    def is_seen(self) -> bool:
        """Whether `open` asks no upstream, and leaves the one that the ranges of the task read.

        What other ranges have read cannot be verified on another one, and waits for no answer.
        """
        return True

    @abstractmethod
    def open(self, checkpoint: Checkpoint | None) -> int:
        """Verify that the source matches the checkpoint; return the first source offset to copy."""

    @abstractmethod
    def portions(self, start: int) -> Generator[Portion, None, None]:
        """Yield the batches of the offsets from `start` on.

        While it waits, it yields an empty portion about every quarter of a second.

        Raises:
            StalePlanError: another plan is needed for what comes now; what came before it stays.
        """

    @abstractmethod
    def flush(self) -> Portion:
        """Return the records that were held back to be merged with later ones."""

    @abstractmethod
    def verify_same_log(self) -> UpstreamIdentity:
        """Verify that everything yielded since `open` came from one log; return which one."""

    @abstractmethod
    def forget_below(self, next_offset: int) -> None:
        """Drop what is needed only for the offsets below."""

    def fail(self, error: RelayError) -> RelayError:
        """Prepare another attempt after an error on either side; return the attempt's error."""
        return error


class FetchedBatches(BatchSource):
    """The batches of one range as an upstream holds them: verbatim, merged or filtered."""

    def __init__(
        self,
        copy_range: CopyRange,
        options: CopyOptions,
        upstreams: FailoverSource,
        record_filter: RecordFilter | None,
    ) -> None:
        self._range = copy_range
        self._options = options
        self._upstreams = upstreams
        self._filter = record_filter
        self._decodes = False
        self._batching = Batching(copy_range, options, record_filter)
        self._identity = UpstreamIdentity("", "", "")
        self._reading = False
        self._can_reopen = True
        self._failures = UpstreamFailures()
        self._upstream = upstreams.upstream

    @property
    def upstream(self) -> str:
        """The upstream that the range was read from last, and where its next plan begins.

        If only Spark's reader has left that one, it is where the reader has gone.
        """
        log = self._filter.log if self._filter else None
        has_failed = self._failures.unfit or self._failures.counts
        return self._upstream if log is None or has_failed else log.upstream

    @property
    def diverged(self) -> dict[str, str]:
        """The upstreams that do not hold what was copied, and why."""
        return self._upstreams.diverged | (self._filter.diverged if self._filter else {})

    @property
    def failed_for_range_only(self) -> bool:
        """Whether an upstream failed for this range, but may serve others."""
        return bool(self._failures.unfit)

    @property
    def can_reopen(self) -> bool:
        """Whether another attempt is possible: not if only another plan can copy the range."""
        return self._can_reopen

    @property
    def is_seen(self) -> bool:
        """Whether the upstream that is fit for the range was asked about it, and shows it."""
        return self._upstreams.has_seen(self._range, self._failures)

    def open(self, checkpoint: Checkpoint | None) -> int:
        """Verify the position on a fit upstream; return the first offset to copy."""
        self._upstreams.switch(self._failures)
        self._upstream = self._upstreams.upstream
        self._reading = True
        self._identity = self._upstreams.verify_position(self._range, checkpoint)
        start = self._range.next_offset(checkpoint)
        self._reading = False
        # which log its decisions are of is asked once the first Fetch has compared this one
        decides = self._filter if start < self._range.source.end else None
        if decides is not None and not decides.can_decide_from(start):
            raise self._stale(
                f"the checkpoint moved back to {start} after Spark began to select the records"
            )
        return start

    def portions(self, start: int) -> Generator[Portion, None, None]:
        """Fetch spans from the upstream, and yield their batches."""
        self._batching = Batching(self._range, self._options, self._filter, decodes=self._decodes)
        offset_range = OffsetRange(
            self._range.source.topic_partition, start, self._range.source.end
        )
        max_bytes, small = self._options.fetch_max_bytes, small_batches(self._range, self._options)
        with closing(self._upstreams.read(offset_range, max_bytes, small)) as fetches:
            for spans in self._fetched(fetches):
                for span in spans:
                    if self._filter is not None:
                        while not self._filter.covers(span.end):
                            yield Portion()
                        self._require_own_decisions(self._filter)
                    yield self._batched(span)
                yield Portion()  # the next fetch reuses the buffer

    def flush(self) -> Portion:
        """Return the records that were held back to be merged."""
        return self._batching.flush()

    def verify_same_log(self) -> UpstreamIdentity:
        """Verify that the topic is still the one that `open` verified."""
        self._upstreams.require_upstream(
            self._range, self._identity
        )  # if not, this upstream did not fail
        self._reading = True
        self._upstreams.verify_same_log(self._range, self._identity)
        self._reading = False
        return self._identity

    def forget_below(self, next_offset: int) -> None:
        """Drop the filter's decisions below, and the last record of the chunk that is committed."""
        self._batching.forget_last()
        if self._filter is not None:
            self._filter.forget_below(next_offset)

    def fail(self, error: RelayError) -> RelayError:
        """Fail over to another upstream if the source failed, but not if the destination did.

        If the destination refused a batch for one of its records, the next attempt looks for it:
        only then is a batch decoded that goes as it is.
        """
        was_reading, self._reading = self._reading, False
        self._can_reopen = not isinstance(error, StalePlanError)
        if isinstance(error, InvalidRecordError) and not self._decodes:
            self._decodes = True
            self._range = replace(self._range, requires_keys=True)
            return DestinationError(str(error))
        return self._upstreams.fail_over(error, self._failures) if was_reading else error

    def _require_own_decisions(self, record_filter: RecordFilter) -> None:
        """Refuse decisions on the records of another log, whose offsets may be other records.

        Raises:
            StalePlanError: they are.
        """
        log = record_filter.log
        if log is not None and log != self._identity:
            raise self._stale(
                f"Spark selected records of upstream {log.upstream}, and upstream"
                f" {self._identity.upstream} is read now"
            )

    def _stale(self, what: str) -> StalePlanError:
        return StalePlanError(
            what,
            remedy="run again to continue from the checkpoint",
            topic_partition=self._range.source.topic_partition,
        )

    def _fetched(self, fetches: Iterator[list[FetchedSpan]]) -> Iterator[list[FetchedSpan]]:
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
            self._reading = True  # the upstream served a corrupt batch
            raise

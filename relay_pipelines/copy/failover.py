"""The source as a task sees it: identical upstreams, each of which is read until it fails.

Runs in a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import Self

from relay_pipelines.copy.position import (
    Comparison,
    Proof,
    Seen,
    look,
    require_topic,
    verify_position,
)
from relay_pipelines.errors import (
    CorruptBatchError,
    DataLossError,
    DivergedUpstreamError,
    PermissionDeniedError,
    RelayError,
    SourceError,
    TopicDeletedError,
    UnsupportedError,
    WrongClusterError,
)
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    CopyJob,
    CopyRange,
    OffsetRange,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.protocol.batch import SmallBatch
from relay_pipelines.protocol.client import ClusterClient, Refused, source_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.fetch import FetchResponse
from relay_pipelines.protocol.metadata import TopicMetadata
from relay_pipelines.protocol.reader import FetchedSpan, fetch_first, read

_UNFIT = (PermissionDeniedError, UnsupportedError, WrongClusterError)
"""If they name no topic-partition: the upstream as a whole cannot be read."""
_UNFIT_FOR_RANGE = (CorruptBatchError, DataLossError, PermissionDeniedError, TopicDeletedError)


class UpstreamFailures:
    """How the upstreams have failed one range; the ranges after it may find them fit."""

    def __init__(self) -> None:
        self.unfit: dict[str, RelayError] = {}
        """The upstreams that cannot serve the range, and why."""
        self.counts: Counter[str] = Counter()
        """How often each upstream failed for a while as the range was read from it."""


class FailoverSource:
    """The upstreams of a job, which the ranges of one task share.

    Call order per attempt: `switch`, `verify_position`, any `read`, `verify_same_log`; after an
    error at the source `fail_over`. Who verifies many lets `look` and `look_again` ask before;
    otherwise each is a look at one.
    """

    def __init__(self, job: CopyJob, clock: Clock) -> None:
        self._upstreams = [
            job.upstream,
            *job.other_upstreams,
        ]  # an upstream that fails goes to the end
        self._clock = clock
        # if there is another upstream, a dead one costs a shorter wait
        self._options = (
            replace(job.options, request_timeout_ms=job.upstream_timeout_ms)
            if job.other_upstreams
            else job.options
        )
        self._mirror = job.mirror
        self._unfit: dict[str, RelayError] = {}
        self._seen: dict[TopicPartition, Seen] = {}
        self._refused: Refused = {}
        self._far: set[TopicPartition] = set()  # each looks for itself
        self._seen_again: dict[TopicPartition, TopicMetadata | RelayError] = {}
        self._first: dict[TopicPartition, tuple[int, FetchResponse]] = {}
        self._proofs: dict[TopicPartition, Proof] = {}
        self._throttled_seconds = 0.0  # by upstreams that were read before
        self.client = self._connect(job.upstream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.__exit__(kind, error, trace)

    @property
    def upstream(self) -> str:
        """The name of the upstream that is read."""
        return self.client.cluster.name

    @property
    def are_several(self) -> bool:
        """Whether there is another upstream than the one that is read."""
        return len(self._upstreams) > 1

    @property
    def throttled_seconds(self) -> float:
        """For how long quotas of the upstreams have made the task wait so far."""
        return self._throttled_seconds + self.client.throttled_seconds

    @property
    def diverged(self) -> dict[str, str]:
        """The upstreams that do not hold what was copied, and why."""
        return {
            name: str(error)
            for name, error in self._unfit.items()
            if isinstance(error, DivergedUpstreamError)
        }

    def has_seen(self, copy_range: CopyRange, failures: UpstreamFailures) -> bool:
        """Whether `look` has seen a range, on the upstream that is fit for it."""
        is_seen = copy_range.source.topic_partition in self._seen
        return is_seen and self._fittest(failures).name == self.upstream

    def switch(self, failures: UpstreamFailures | None = None) -> None:
        """Read the upstream that is fit for a range, whichever the range before it was read from.

        What was read from another upstream can no longer be verified.

        Args:
            failures: of the range; None for ranges that no upstream has failed.
        """
        upstream = self._fittest(failures or UpstreamFailures())
        if upstream.name != self.upstream:
            self.client.close()
            self.begin_attempt()
            self._throttled_seconds += self.client.throttled_seconds
            self.client = self._connect(upstream)

    def _fittest(self, failures: UpstreamFailures) -> Cluster:
        """Return the first fit upstream of those that failed the range least.

        If there is none, it is the one that is read: it tells why.
        """
        unfit = failures.unfit | self._unfit
        fit = [upstream for upstream in self._upstreams if upstream.name not in unfit]
        return min(
            fit, key=lambda upstream: failures.counts[upstream.name], default=self.client.cluster
        )

    def answers(self) -> bool:
        """Whether any broker of a fit upstream answers; that one is read then."""
        for _ in self._upstreams:
            self.switch()
            if self.client.answers():
                return True
            self._read_others_first()
        return False

    def _read_others_first(self) -> None:
        self._upstreams.sort(key=lambda upstream: upstream.name == self.upstream)

    def begin_attempt(self) -> None:
        """Drop all answers: what was refused may be seen now."""
        self._refused, self._far = {}, set()
        self.forget_answers()

    def look(
        self, ranges: Sequence[CopyRange], checkpoints: Mapping[TopicPartition, Checkpoint]
    ) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Ask about ranges with few requests, for `verify_position` and the first `read` of each.

        Each answer serves once. A refusal is raised by `verify_position`, and is not asked about
        again in this attempt: a broker that hangs is waited for once. Nor is, among several, one
        whose last record copied is far back: it looks for itself in its turn.

        Args:
            ranges: in the order of their turns; if the first is not asked about, it has its turn.
            checkpoints: what `verify_position` will be given.

        Returns:
            those that were seen and have something to copy, and those that are refused.
        """
        by_source = {each.source.topic_partition: each for each in ranges}
        known = self._refused.keys() | (self._far if len(ranges) > 1 else set())
        if ranges[0].source.topic_partition in known:
            return set(), set()
        asked = [tp for tp in by_source if tp not in known]
        seen, refused = look(self.client, asked, checkpoints, among_several=self.are_several)
        self._first = {}  # no records from before this look
        starts = {tp: by_source[tp].next_offset(checkpoints.get(tp)) for tp in seen}
        starts = {tp: start for tp, start in starts.items() if start < by_source[tp].source.end}
        if len(ranges) > 1:  # one alone reads more at once
            compared = {
                tp: Comparison(checkpoints[tp], each.position.low_watermark)
                for tp, each in seen.items()
                if each.position
            }
            for tp, comparison in compared.items():
                if not comparison.is_near:  # in its turn, it fetches once more: nobody waits then
                    self._far.add(tp)
                    del seen[tp]
                    starts.pop(tp, None)
                elif tp in starts:
                    starts[tp] = comparison.first_fetch
            answers, others = fetch_first(self.client, starts)
            self._first = {tp: (starts[tp], answer) for tp, answer in answers.items()}
            refused |= others
        self._refused |= refused
        self._seen = {tp: each for tp, each in seen.items() if tp not in refused}
        return starts.keys() & self._seen.keys(), self._refused.keys() & by_source.keys()

    def silent(self, topic_partitions: Iterable[TopicPartition]) -> Refused:
        """Return those of which the leader does not answer: they are refused in this attempt."""
        _, refused = self.client.topics_at_leaders(topic_partitions)
        silent = {tp: error for tp, error in refused.items() if error.topic_partition is None}
        self._refused |= silent
        return silent

    def look_again(self, ranges: Iterable[CopyRange]) -> None:
        """Ask for the topic ids of ranges with few requests, for `verify_same_log` of each."""
        topics, refused = self.client.topics_at_leaders(
            copy_range.source.topic_partition for copy_range in ranges
        )
        self._seen_again = {**topics, **refused}

    def forget_answers(self) -> None:
        """Drop what was seen, and no range has used."""
        self._seen, self._first, self._seen_again = {}, {}, {}

    def read(
        self, offset_range: OffsetRange, max_bytes: int, small: SmallBatch | None
    ) -> Generator[list[FetchedSpan], None, None]:
        """Read from the upstream, as `reader.read`; begin with what `look` has fetched.

        What `verify_position` left to prove comes first, as of `Proof.of`.
        """
        tp, start = offset_range.topic_partition, offset_range.start
        proof = self._proofs.pop(tp, None)
        fetched = replace(offset_range, start=start if proof is None else proof.start)
        at, first = self._first.pop(tp, (-1, None))
        if at != fetched.start:
            first = None
        fetches = read(self.client, fetched, max_bytes, small, first, small_from=start)
        return fetches if proof is None else proof.of(self.client, fetches)

    def verify_position(
        self, copy_range: CopyRange, checkpoint: Checkpoint | None
    ) -> UpstreamIdentity:
        """Verify that the upstream holds the log that was copied, as `position.verify_position`.

        The next `read` proves what is left to prove.
        """
        tp = copy_range.source.topic_partition
        self._proofs.pop(tp, None)
        if tp not in self._seen:
            self.look([copy_range], {} if checkpoint is None else {tp: checkpoint})
        if refusal := self._refused.pop(tp, None):
            if refusal.topic_partition is not None:
                require_topic(self.client, copy_range)
            raise copy(refusal)  # others may share it
        identity, proof = verify_position(
            self.client, copy_range, checkpoint, self._seen.pop(tp), among_several=self.are_several
        )
        if proof is not None:
            self._proofs[tp] = proof
        return identity

    def verify_same_log(self, copy_range: CopyRange, identity: UpstreamIdentity) -> None:
        """Verify that everything read since `verify_position` came from the same log.

        Kafka never uses a topic id again, so that comparing it afterwards is enough.

        Raises:
            SourceError: the topic was created again, or another upstream is read by now; the next
                attempt verifies the position and says what that means.
        """
        topic_partition = copy_range.source.topic_partition
        self.require_upstream(copy_range, identity)
        if not identity.topic_id:
            return
        if topic_partition not in self._seen_again:
            self.look_again([copy_range])
        topic = self._seen_again.pop(topic_partition)
        if isinstance(topic, RelayError):
            raise copy(topic)  # others may share it
        if topic.topic_id != identity.topic_id:
            raise SourceError(
                f"the topic was created again on upstream {self.upstream} while it was being read",
                topic_partition=topic_partition,
            )

    def require_upstream(self, copy_range: CopyRange, identity: UpstreamIdentity) -> None:
        """Verify that the same upstream is still read: another range may have failed over.

        Raises:
            SourceError: it is not.
        """
        if identity.upstream != self.upstream:
            raise SourceError(
                f"upstream {self.upstream} is read instead of {identity.upstream}",
                topic_partition=copy_range.source.topic_partition,
            )

    def fail_over(self, error: RelayError, failures: UpstreamFailures) -> RelayError:
        """Note an error of the upstream that is read: the next attempt reads the fittest one.

        If the upstream failed as a whole, switch at once: nothing that was read from it can be
        verified. If it failed one range, its neighbours are still read from it.

        Args:
            failures: of the range; the error is added.

        Returns:
            the error of the attempt: a `SourceError` if another attempt may succeed, else the
                reason why none can.
        """
        refused = isinstance(error, _UNFIT) and error.topic_partition is None
        if refused or isinstance(error, DivergedUpstreamError):
            self._unfit.setdefault(self.upstream, error)
        elif isinstance(error, _UNFIT_FOR_RANGE):
            failures.unfit.setdefault(self.upstream, error)
        elif not isinstance(error, SourceError):
            return error
        else:
            failures.counts[self.upstream] += 1
        self.client.close()
        self.forget_answers()
        if error.topic_partition is None:
            self._read_others_first()
            self.switch(failures)
        unfit = failures.unfit | self._unfit
        if all(upstream.name in unfit for upstream in self._upstreams):
            return next(iter(unfit.values()))
        if isinstance(error, SourceError):
            return error
        retryable = SourceError(
            error.what,
            remedy=error.remedy,
            topic_partition=error.topic_partition,
            offset=error.offset,
        )
        retryable.__cause__ = error
        return retryable

    def _connect(self, upstream: Cluster) -> ClusterClient:
        return source_client(self._mirror, upstream, self._options, self._clock)

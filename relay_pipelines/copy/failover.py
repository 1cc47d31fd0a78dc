"""The source as a task sees it: identical nodes, one of which is read until it fails.

Runs in a task.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from relay_pipelines.copy.position import verify_position
from relay_pipelines.errors import (
    CorruptBatchError,
    DataLossError,
    DivergedNodeError,
    PermissionDeniedError,
    RelayError,
    SourceError,
    TopicDeletedError,
)
from relay_pipelines.model import Checkpoint, CopyJob, CopyRange, NodeIdentity
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock

_UNFIT_FOR_RANGE = (CorruptBatchError, DataLossError, PermissionDeniedError, TopicDeletedError)


class FailoverSource:
    """The nodes of a job, which the ranges of one task share.

    A range begins with the node that served the range before it. Call order: `begin_range`; then
    per attempt `verify_position`, any reads from `client`, `verify_same_log`; after an error at the
    source `fail_over`.
    """

    def __init__(self, job: CopyJob, client_id: str) -> None:
        self._nodes = [job.node, *job.other_nodes]
        self._client_id = client_id
        # if there is another node, a dead one costs a shorter wait
        self._timeout_ms = (
            job.node_timeout_ms if job.other_nodes else job.options.request_timeout_ms
        )
        self._unfit: dict[str, RelayError] = {}
        self._unfit_for_range: dict[str, RelayError] = {}
        self._current = 0
        self.client = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    @property
    def node(self) -> str:
        """The name of the node that is read."""
        return self.client.cluster.name

    @property
    def diverged(self) -> dict[str, str]:
        """The nodes that do not hold what was copied, and why."""
        return {
            name: str(error)
            for name, error in self._unfit.items()
            if isinstance(error, DivergedNodeError)
        }

    @property
    def failed_for_range_only(self) -> bool:
        """Whether a node failed only for this range, so that it may serve the next one."""
        return bool(self._unfit_for_range)

    def begin_range(self) -> None:
        """Start with another range: a node that failed only for the last one may serve it."""
        self._unfit_for_range.clear()

    def verify_position(
        self, copy_range: CopyRange, checkpoint: Checkpoint | None, clock: Clock
    ) -> NodeIdentity:
        """Verify that the node holds the log that was copied, as `position.verify_position`."""
        return verify_position(
            self.client, copy_range, checkpoint, clock, among_several=len(self._nodes) > 1
        )

    def verify_same_log(self, copy_range: CopyRange, identity: NodeIdentity) -> None:
        """Verify that everything read since `verify_position` came from the same log.

        Kafka never uses a topic id again, so that comparing it afterwards is enough.

        Raises:
            SourceError: the topic was created again; the next attempt verifies the position and
                says what that means.
        """
        topic_partition = copy_range.source.topic_partition
        if (
            identity.topic_id
            and self.client.topic_at_leader(topic_partition).topic_id != identity.topic_id
        ):
            raise SourceError(
                f"the topic was created again on node {self.node} while it was being read",
                topic_partition=topic_partition,
            )

    def fail_over(self, error: RelayError) -> RelayError:
        """Connect to the next fit node after an error at the source; retry a node without others.

        Returns:
            the error of the attempt: a `SourceError` if another attempt may succeed, else the
                reason why none can.
        """
        refused = isinstance(error, PermissionDeniedError) and error.topic_partition is None
        if refused or isinstance(error, DivergedNodeError):
            self._unfit.setdefault(self.node, error)
        elif isinstance(error, _UNFIT_FOR_RANGE):
            self._unfit_for_range.setdefault(self.node, error)
        elif not isinstance(error, SourceError):
            return error
        self.client.close()
        unfit = self._unfit_for_range | self._unfit
        for step in range(1, len(self._nodes) + 1):
            candidate = (self._current + step) % len(self._nodes)
            if self._nodes[candidate].name not in unfit:
                self._current = candidate
                self.client = self._connect()
                break
        else:
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

    def _connect(self) -> ClusterClient:
        return ClusterClient(
            self._nodes[self._current], SourceError, self._client_id, self._timeout_ms
        )

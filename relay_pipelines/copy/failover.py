"""The source as a task sees it: identical nodes, one of which is read until it fails. Runs in a task."""

from __future__ import annotations

from collections.abc import Generator
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
from relay_pipelines.model import Checkpoint, CopyJob, CopyRange, NodeIdentity, OffsetRange
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.reader import FetchedSpan, read

_UNFIT_FOR_RANGE = (CorruptBatchError, DataLossError, PermissionDeniedError, TopicDeletedError)


class FailoverSource:
    """The nodes of a job, shared by the ranges of one task: the next range begins with the node that served the last one.

    Call order: `begin` per range; then per attempt `verify`, `read`, `confirm`; after an error at
        the source `fail_over`.
    """

    def __init__(self, job: CopyJob, client_id: str) -> None:
        self._nodes = [job.node, *job.other_nodes]
        self._client_id = client_id
        # with another node to go to, nobody waits for a dead one as long as for the only one
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
        """The nodes that were found not to hold what was copied, and why."""
        return {
            name: str(error)
            for name, error in self._unfit.items()
            if isinstance(error, DivergedNodeError)
        }

    @property
    def serves_some(self) -> bool:
        """Whether a node could not serve this range alone: the next one may be better off."""
        return bool(self._unfit_for_range)

    def begin(self) -> None:
        """Start with another range: a node that could not serve the last one may serve this one."""
        self._unfit_for_range.clear()

    def verify(
        self, copy_range: CopyRange, checkpoint: Checkpoint | None, clock: Clock
    ) -> NodeIdentity:
        """Make sure that the node holds what was copied, as `verify_position` does."""
        return verify_position(
            self.client, copy_range, checkpoint, clock, among_several=len(self._nodes) > 1
        )

    def read(
        self, wanted: OffsetRange, max_bytes: int, clock: Clock, run_below_bytes: int
    ) -> Generator[list[FetchedSpan], None, None]:
        """Read from the node, as `reader.read` does."""
        return read(self.client, wanted, max_bytes, clock, run_below_bytes)

    def confirm(self, copy_range: CopyRange, identity: NodeIdentity) -> None:
        """Make sure that all that was read since `verify` came from the same log: a topic's id is never used again.

        Raises:
            SourceError: the topic was created again meanwhile; the next attempt verifies the
                position and says what that means.
        """
        at = copy_range.source.topic_partition
        if identity.topic_id and self.client.topic_at_leader(at).topic_id != identity.topic_id:
            raise SourceError(
                f"the topic was created again on node {self.node} while it was being read",
                topic_partition=at,
            )

    def fail_over(self, error: RelayError) -> RelayError:
        """Go to the next node after an error at the source; the only one is asked again.

        Returns:
            what the attempt ends with: a `SourceError` if another attempt may succeed, else the
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
        again = SourceError(
            error.what,
            remedy=error.remedy,
            topic_partition=error.topic_partition,
            offset=error.offset,
        )
        again.__cause__ = error
        return again

    def _connect(self) -> ClusterClient:
        return ClusterClient(
            self._nodes[self._current], SourceError, self._client_id, self._timeout_ms
        )

"""The source as a task sees it: identical nodes, one of which is read until it fails. Runs in a task.

A node is read from a checkpoint on only if it has what was copied: it must reach the checkpoint, and hold the last record
copied with the same fingerprint.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.reader import read
from relay_pipelines.errors import DivergedNodeError, SourceError
from relay_pipelines.model import Checkpoint, CopyJob, OffsetRange, TopicPartition
from relay_pipelines.wire.cluster import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.wire.records import decode, digest_of

_FETCH_BYTES = 1 << 20


class Upstream:
    """The nodes of a job, shared by the ranges of one task: the next range begins with the node that served the last one."""

    def __init__(self, job: CopyJob, client_id: str) -> None:
        self._nodes = [job.node, *job.other_nodes]
        self._client_id = client_id
        # with another node to go to, nobody waits for a dead one as long as for the only one
        self._timeout_ms = job.node_timeout_ms if job.other_nodes else job.options.request_timeout_ms
        self._diverged: dict[str, DivergedNodeError] = {}
        self._at = 0
        self.client = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.client.close()

    @property
    def name(self) -> str:
        """Of the node that is read."""
        return self.client.cluster.name

    def leave(self) -> None:
        """Go to the next node, around; the only one is asked again.

        Raises:
            DivergedNodeError: all nodes have diverged from what was copied.
        """
        self.client.close()
        for step in range(1, len(self._nodes) + 1):
            at = (self._at + step) % len(self._nodes)
            if self._nodes[at].name not in self._diverged:
                self._at = at
                self.client = self._connect()
                return
        raise next(iter(self._diverged.values()))

    def make_sure(self, checkpoint: Checkpoint | None, clock: Clock) -> None:
        """Make sure that the node has what was copied, if that was copied from another one.

        Raises:
            SourceError: it ends before the checkpoint.
            DivergedNodeError: it holds another record where the last one copied was; this task does not return to it.
        """
        if checkpoint is None or checkpoint.node == self.name:
            return
        at = checkpoint.source
        end = self.client.list_offsets([at], LATEST, READ_COMMITTED)[at]
        if end < checkpoint.next_offset:
            raise SourceError(
                f"node {self.name} ends at {end}, before what was copied from {checkpoint.node}",
                remedy="wait until it has caught up, or see whether it lost its data",
                topic_partition=at,
                offset=checkpoint.next_offset,
            )
        found = self._digest(at, checkpoint, clock)
        if checkpoint.fingerprint is not None and found not in {None, checkpoint.fingerprint.digest}:
            error = DivergedNodeError(
                f"node {self.name} holds another record than {checkpoint.node}, from which it was copied",
                remedy="find out which node is right, and rebuild the other one",
                topic_partition=at,
                offset=checkpoint.fingerprint.offset,
            )
            self._diverged[self.name] = error
            raise error

    def _digest(self, at: TopicPartition, checkpoint: Checkpoint, clock: Clock) -> str | None:
        """The digest of the node's record at the fingerprint's offset; None if it cannot be compared.

        Retention or the cleaner may have taken it; a time that each broker sets for itself is no sign of another record.
        """
        if checkpoint.fingerprint is None:
            return None
        offset = checkpoint.fingerprint.offset
        if self.client.list_offsets([at], EARLIEST, READ_COMMITTED)[at] > offset:
            return None
        for pieces in read(self.client, OffsetRange(at, offset, offset + 1), _FETCH_BYTES, clock):
            for piece in pieces:
                if piece.run is None or piece.run.first.is_log_append_time:
                    continue
                for record in decode(piece.run.data):
                    if record.offset == offset:
                        return digest_of(record.timestamp, record.key, record.value, record.headers)
        return None

    def _connect(self) -> ClusterClient:
        return ClusterClient(self._nodes[self._at], SourceError, self._client_id, self._timeout_ms)

"""The source as a task sees it: identical nodes, one of which is read until it fails. Runs in a task.

A node is read from a checkpoint on only if it has what was copied: it must reach the checkpoint, and hold the last record
copied with the same fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from relay_pipelines.copy.clock import Clock
from relay_pipelines.copy.reader import Piece, read
from relay_pipelines.copy.writer import Origin
from relay_pipelines.errors import DivergedNodeError, PermissionDeniedError, RelayError, SourceError
from relay_pipelines.model import Checkpoint, CopyJob, OffsetRange
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
        self._unfit: dict[str, RelayError] = {}
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

    @property
    def diverged(self) -> dict[str, str]:
        """The nodes that were found not to hold what was copied, and why."""
        return {name: str(error) for name, error in self._unfit.items() if isinstance(error, DivergedNodeError)}

    def is_of_the_node(self, error: RelayError) -> bool:
        """Whether another node may serve."""
        return isinstance(error, SourceError) or error in self._unfit.values()

    def origin(self, topic: str) -> Origin:
        """Where the records of a topic are read just now."""
        with self._asked():
            return Origin(self.name, self.client.topic(topic).topic_id, self.client.cluster_id)

    def read(self, wanted: OffsetRange, max_bytes: int, clock: Clock, run_below_bytes: int) -> Iterator[list[Piece]]:
        """Read from the node, as `reader.read` does."""
        with self._asked():
            yield from read(self.client, wanted, max_bytes, clock, run_below_bytes)

    def leave(self) -> None:
        """Go to the next node, around; the only one is asked again.

        Raises:
            DivergedNodeError: no node is left, and the first that was given up has diverged from what was copied.
            PermissionDeniedError: no node is left, and the first that was given up refused us.
        """
        self.client.close()
        for step in range(1, len(self._nodes) + 1):
            at = (self._at + step) % len(self._nodes)
            if self._nodes[at].name not in self._unfit:
                self._at = at
                self.client = self._connect()
                return
        raise next(iter(self._unfit.values()))

    def make_sure(self, checkpoint: Checkpoint | None, clock: Clock) -> None:
        """Make sure that the node has what was copied, if that was copied from another one, or from another topic of that name.

        Raises:
            SourceError: it ends before the checkpoint.
            DivergedNodeError: it holds another record where the last one copied was; this task does not return to it.
            PermissionDeniedError: it refuses us; this task does not return to it.
        """
        with self._asked():
            self._make_sure(checkpoint, clock)

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Asking a node again that refuses us, or that has diverged, is of no use."""
        try:
            yield
        except (DivergedNodeError, PermissionDeniedError) as error:
            self._unfit[self.name] = error
            raise

    def _make_sure(self, checkpoint: Checkpoint | None, clock: Clock) -> None:
        if checkpoint is None or (checkpoint.node == self.name and not self._rebuilt(checkpoint)):
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
        if not holds(self.client, checkpoint, clock):
            raise diverged(self.name, checkpoint)

    def _rebuilt(self, checkpoint: Checkpoint) -> bool:
        """Whether the node, one of several, has the topic anew; a single one is for the guards of the plan."""
        ids = checkpoint.topic_ids.get(self.name), self.client.topic(checkpoint.source.topic).topic_id
        return len(self._nodes) > 1 and all(ids) and ids[0] != ids[1]

    def _connect(self) -> ClusterClient:
        return ClusterClient(self._nodes[self._at], SourceError, self._client_id, self._timeout_ms)


def holds(client: ClusterClient, checkpoint: Checkpoint, clock: Clock) -> bool:
    """Whether a node holds the last record copied, as far as that can be compared.

    Retention or the cleaner may have taken it; a time that each broker sets for itself is no sign of another record.
    """
    if checkpoint.fingerprint is None:
        return True
    at, offset = checkpoint.source, checkpoint.fingerprint.offset
    if client.list_offsets([at], EARLIEST, READ_COMMITTED)[at] > offset:
        return True
    for pieces in read(client, OffsetRange(at, offset, offset + 1), _FETCH_BYTES, clock):
        for piece in pieces:
            if piece.run is None or piece.run.first.is_log_append_time:
                continue
            for record in decode(piece.run.data):
                if record.offset == offset:
                    found = digest_of(record.timestamp, record.key, record.value, record.headers)
                    return found == checkpoint.fingerprint.digest
    return True


def diverged(node: str, checkpoint: Checkpoint) -> DivergedNodeError:
    """Return the error for a node that does not hold the last record copied."""
    return DivergedNodeError(
        f"node {node} holds another record than {checkpoint.node}, from which it was copied",
        remedy=f"find out which node is right, rebuild the other one, then `relay nodes --clear {node}`",
        topic_partition=checkpoint.source,
        offset=None if checkpoint.fingerprint is None else checkpoint.fingerprint.offset,
    )

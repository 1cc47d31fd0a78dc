"""The window that a lane has open: what its rounds have copied, and Dagster does not show yet.

It is stored before each round copies, so that a run that is killed leaves it to the next one:
docs/transactions.md argues why windows stay a partition of the offsets then. Dagster keeps one
value of a name here, so that storing it often lets no table grow.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg

from relay_pipelines.errors import UnsupportedError
from relay_pipelines.formats import OPEN_WINDOW
from relay_pipelines.json_codec import NOT_READABLE
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.run.result import RunResult
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(slots=True)
class OpenWindow:
    """A window that later rounds may extend.

    Args:
        frozen: what the rounds copy, or have copied, all together.
        destination: where they copy it to.
        destination_id: of that cluster, whose addresses may change.
        ledger_ends: where the ledger ended when the window before began to copy, if that is known.
        copied: what the rounds of this run have copied; None if there were none.
    """

    frozen: FrozenWindow
    destination: Cluster
    destination_id: str
    ledger_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    copied: RunResult | None = None


@dataclass(frozen=True, slots=True)
class _Stored:
    """An open window as it is stored.

    Args:
        destination: the id of the cluster.
        plan: of the window, as the event log has it.
    """

    key: str
    destination: str
    plan: str


class OpenWindowStore:
    """Where a run stores the open window of a lane, and finds what a killed one has left.

    A run that was given up, and wakes up, finds that another one has stored something since, and
    stores nothing.
    """

    def __init__(self, instance: dg.DagsterInstance, lane: Lane) -> None:
        self._cursors = instance.daemon_cursor_storage
        self._name = f"relay/{lane.path}/{lane.name}/open window"
        self._last = ""

    def load(self, snapshot: ClusterSnapshot, log: logging.Logger) -> OpenWindow | None:
        """Return what an earlier run has copied, and not reported; None if there is nothing.

        What it has not copied is new. A window of another destination cannot be counted here, and
        is left out.
        """
        self._last = self._read()
        stored = self._parse(snapshot, log) if self._last else None
        if stored is None and self._last:
            self.clear()
        return stored

    def _parse(self, snapshot: ClusterSnapshot, log: logging.Logger) -> OpenWindow | None:
        try:
            stored = OPEN_WINDOW.read(_Stored, self._last)
            frozen = FrozenWindow.from_json(stored.key, stored.plan)
        except UnsupportedError as error:
            log.warning("the window that was open is not reported: %s", error)
            return None
        except NOT_READABLE:
            log.warning("the window that was open is not reported: %.80s is none", self._last)
            return None
        destination_id = snapshot.at_destination.cluster_id
        if stored.destination != destination_id:
            log.warning(
                "window %s, which was open, is not reported: it was copied to another cluster, %s",
                *(frozen.key, stored.destination),
            )
            return None
        copied = frozen.copied(_next_offsets(frozen, snapshot))
        return OpenWindow(copied, snapshot.destination, destination_id) if copied else None

    def write(self, window: OpenWindow) -> bool:
        """Store what is open; return whether no other run has stored anything since the last."""
        stored = _Stored(window.frozen.key, window.destination_id, window.frozen.to_json())
        return self._replace(OPEN_WINDOW.text(stored))

    def clear(self) -> None:
        """Store that nothing is open: all of it is reported."""
        self._replace("")

    def is_empty(self) -> bool:
        """Whether nothing is open."""
        return not self._read()

    def is_own(self) -> bool:
        """Whether no other run has stored anything since this one."""
        return self._read() == self._last

    def _replace(self, text: str) -> bool:
        if not self.is_own():
            return False
        self._cursors.set_cursor_values({self._name: text})
        self._last = text
        return True

    def _read(self) -> str:
        return self._cursors.get_cursor_values({self._name}).get(self._name, "")


def _next_offsets(frozen: FrozenWindow, snapshot: ClusterSnapshot) -> dict[TopicPartition, int]:
    """Return how far the topic-partitions of a window are copied; without those of another log.

    What the lane does not copy now, because it has no leader or another lane has it, is copied as
    far as its checkpoint says.
    """
    begins = {position.topic_partition: position.begin for position in snapshot.positions}
    checkpoints = snapshot.checkpoints
    return {
        tp: begins[tp]
        if tp in begins
        else checkpoints[tp].next_offset
        if tp in checkpoints
        else planned.start
        for planned in frozen.ranges
        if snapshot.generation_of(tp := planned.topic_partition) == frozen.generation_of(tp)
    }

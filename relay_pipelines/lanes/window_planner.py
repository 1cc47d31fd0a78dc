"""Cutting windows: what the planner, and the jobs that do its work at once, have in common."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.lanes.window_log import History
from relay_pipelines.model import OffsetRange
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.window_sizing import WindowLimits, backlog, cut
from relay_pipelines.run.run_plan import bytes_per_offset
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

UNLIMITED = WindowLimits(2**63, 2**63)


class WindowPlanner:
    """Cuts windows of a lane, numbered on from those before.

    Args:
        history: of the lane.
        now_ms: when; nothing that is cut was committed before.
    """

    def __init__(
        self,
        lane: Lane,
        snapshot: ClusterSnapshot,
        history: History,
        limits: WindowLimits,
        now_ms: int,
    ) -> None:
        self._lane = lane
        self._survey = snapshot
        self._history = history
        self._limits = limits
        self._now_ms = now_ms
        self._sizes = bytes_per_offset(snapshot)
        self._number = history.last_number

    def new(self) -> Iterator[FrozenWindow]:
        """Cut what no window covers yet, until nothing is left."""
        planned = self._history.ends(
            {at: one.reset_at_ms for at, one in self._survey.checkpoints.items()}
        )
        yield from self._cut(backlog(self._survey.positions, planned))

    def between(self, ranges: Sequence[OffsetRange]) -> Iterator[FrozenWindow]:
        """Cut given offset ranges, whatever was copied or planned before."""
        for window in self._cut(ranges):
            yield replace(window, by_date=True)

    def _cut(self, ranges: Sequence[OffsetRange]) -> Iterator[FrozenWindow]:
        waiting = list(ranges)
        while any(map(len, waiting)):
            snapshot = cut(waiting, self._sizes, self._limits)
            yield self._window(snapshot)
            waiting = [
                replace(one, start=done.end) for one, done in zip(waiting, snapshot, strict=True)
            ]

    def _window(self, ranges: Sequence[OffsetRange]) -> FrozenWindow:
        self._number += 1
        return FrozenWindow(
            key=naming.window(self._lane.mirror, self._lane.name, self._number),
            ranges=tuple(ranges),
            node=self._survey.node.name,
            planned_at_ms=self._now_ms,
            size_bytes=int(
                sum(self._sizes.get(one.topic_partition, 0.0) * len(one) for one in ranges)
            ),
        )

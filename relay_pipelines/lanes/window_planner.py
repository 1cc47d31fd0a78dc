"""Cuts new offsets into windows, for the planner sensor and for the jobs."""

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
    """Cuts windows of a lane and continues their numbering.

    Args:
        history: the windows cut so far.
        now_ms: the time of the plan; no record of these windows is committed before.
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
        self._snapshot = snapshot
        self._history = history
        self._limits = limits
        self._now_ms = now_ms
        self._sizes = bytes_per_offset(snapshot)
        self._number = history.last_number

    def new(self) -> Iterator[FrozenWindow]:
        """Cut all offsets that no window covers yet."""
        planned = self._history.ends(
            {
                partition: checkpoint.reset_at_ms
                for partition, checkpoint in self._snapshot.checkpoints.items()
            }
        )
        yield from self._cut(backlog(self._snapshot.positions, planned))

    def between(self, ranges: Sequence[OffsetRange]) -> Iterator[FrozenWindow]:
        """Cut these offset ranges, even if they were copied or planned before."""
        for window in self._cut(ranges):
            yield replace(window, by_date=True)

    def _cut(self, ranges: Sequence[OffsetRange]) -> Iterator[FrozenWindow]:
        waiting = list(ranges)
        while any(map(len, waiting)):
            ranges_of_window = cut(waiting, self._sizes, self._limits)
            yield self._window(ranges_of_window)
            waiting = [
                replace(rest, start=done.end)
                for rest, done in zip(waiting, ranges_of_window, strict=True)
            ]

    def _window(self, ranges: Sequence[OffsetRange]) -> FrozenWindow:
        self._number += 1
        return FrozenWindow(
            key=naming.window_key(self._lane.mirror, self._lane.name, self._number),
            ranges=tuple(ranges),
            node=self._snapshot.node.name,
            planned_at_ms=self._now_ms,
            size_bytes=int(
                sum(
                    self._sizes.get(planned.topic_partition, 0.0) * len(planned)
                    for planned in ranges
                )
            ),
        )

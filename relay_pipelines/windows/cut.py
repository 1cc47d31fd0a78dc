"""Cuts the offsets that are not copied yet into windows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from relay_pipelines.model import OffsetRange
from relay_pipelines.orchestration import naming
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.positions import plan_windows
from relay_pipelines.plan.window_sizing import WindowLimits, cut
from relay_pipelines.run.run_plan import bytes_per_offset
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

UNLIMITED = WindowLimits(2**63, 2**63)


def new_windows(
    snapshot: ClusterSnapshot, limits: WindowLimits, now_ms: int
) -> Iterator[FrozenWindow]:
    """Cut what no checkpoint covers, also what an earlier window has left out.

    Args:
        limits: a window is not larger than this; the rest comes with the next one.
        now_ms: the time of the plan; no record of these windows is committed before.
    """
    accepted = (
        position
        for position in snapshot.positions
        if position.topic_partition.topic not in snapshot.refused
    )
    windows = plan_windows(accepted).windows
    ranges = [offset_range for window in windows for offset_range in window.ranges]
    return cut_windows(snapshot, ranges, limits, now_ms)


def cut_windows(
    snapshot: ClusterSnapshot, ranges: Sequence[OffsetRange], limits: WindowLimits, now_ms: int
) -> Iterator[FrozenWindow]:
    """Cut these offset ranges, even if they were copied before; windows hold no empty ranges."""
    sizes = bytes_per_offset(snapshot)
    waiting = [offset_range for offset_range in ranges if len(offset_range)]
    number = 0
    while waiting:
        found = cut(waiting, sizes, limits)
        yield FrozenWindow(
            key=naming.window_key(now_ms, number),
            ranges=tuple(found),
            node=snapshot.node.name,
            planned_at_ms=now_ms,
            size_bytes=int(
                sum(sizes.get(planned.topic_partition, 0.0) * len(planned) for planned in found)
            ),
            generations={
                planned.topic_partition: generation
                for planned in found
                if (generation := snapshot.generation_of(planned.topic_partition))
            },
        )
        number += 1
        rest = [
            replace(before, start=done.end) for before, done in zip(waiting, found, strict=True)
        ]
        waiting = [offset_range for offset_range in rest if len(offset_range)]

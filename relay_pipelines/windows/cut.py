"""Cuts the offsets that are not copied yet into windows.

Topics that failed rest: windows leave them out for a while, so that the others go on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from relay_pipelines.model import OffsetRange
from relay_pipelines.plan.frozen_window import FrozenWindow, WindowLimits, cut
from relay_pipelines.run.run_plan import bytes_per_offset
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.windows.window_run import WindowReport

UNLIMITED = WindowLimits(2**63, 2**63)


def new_windows(
    snapshot: ClusterSnapshot, limits: WindowLimits, now_ms: int
) -> Iterator[FrozenWindow]:
    """Cut what no checkpoint covers, also what an earlier window has left out.

    Args:
        limits: a window is not larger than this; the rest comes with the next one.
        now_ms: the time of the plan; no record of these windows is committed before.
    """
    return cut_windows(snapshot, snapshot.news, limits, now_ms)


def cut_windows(
    snapshot: ClusterSnapshot, ranges: Sequence[OffsetRange], limits: WindowLimits, now_ms: int
) -> Iterator[FrozenWindow]:
    """Cut these offset ranges, even if they were copied before; windows hold no empty ranges.

    They have no keys yet: see `window_log.with_own_key`.
    """
    sizes = bytes_per_offset(snapshot)
    waiting = [offset_range for offset_range in ranges if len(offset_range)]
    while waiting:
        offset_ranges = cut(waiting, sizes, limits)
        yield FrozenWindow(
            key="",
            ranges=tuple(offset_ranges),
            upstream=snapshot.upstream.name,
            planned_at_ms=now_ms,
            size_bytes=int(
                sum(
                    sizes.get(planned.topic_partition, 0.0) * len(planned)
                    for planned in offset_ranges
                )
            ),
            generations={
                planned.topic_partition: generation
                for planned in offset_ranges
                if (generation := snapshot.generation_of(planned.topic_partition))
            },
        )
        rest = [
            replace(before, start=done.end)
            for before, done in zip(waiting, offset_ranges, strict=True)
        ]
        waiting = [offset_range for offset_range in rest if len(offset_range)]


_LONGEST_REST_SECONDS = 300.0
_RESTS = 8  # 2^8 seconds are almost the longest rest


@dataclass(slots=True)
class FailedTopics:
    """Topics that failed: each failure in a row doubles the time for which windows omit them.

    Times are in seconds, of one clock.

    Args:
        failed: topic -> how often in a row it failed.
        until: topic -> when its rest ends.
    """

    failed: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def left_out(self, now: float) -> set[str]:
        """The topics that rest now."""
        return {topic for topic, until in self.until.items() if until > now}

    def note(self, report: WindowReport, now: float) -> None:
        """Let the topics rest that failed in a window, and forget those that recovered."""
        for topic in report.topics:
            if topic.is_failed:
                failed = self.failed[topic.topic] = self.failed.get(topic.topic, 0) + 1
                rest = min(2.0 ** min(failed, _RESTS + 1), _LONGEST_REST_SECONDS)
                self.until[topic.topic] = now + rest
            else:
                self.failed.pop(topic.topic, None)
                self.until.pop(topic.topic, None)

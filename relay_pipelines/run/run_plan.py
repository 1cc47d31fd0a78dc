"""What a run will copy, from a snapshot of both clusters.

Other deployments that copy the same mirror: whoever finds one at work waits until it has ended.

Correctness does not depend on this, because tasks fence each other. It keeps two deployments from
wasting each other's work, and from reporting an error every few seconds.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from relay_pipelines.errors import RelayError
from relay_pipelines.finding import Finding
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import (
    Checkpoint,
    CopyRange,
    Intervals,
    NodeIdentity,
    OffsetRange,
    RecordPolicy,
    TopicPartition,
    Window,
)
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.positions import plan_windows
from relay_pipelines.plan.task_packing import copy_seconds
from relay_pipelines.prepare.checkpoint_moves import BY_DRIVER
from relay_pipelines.prepare.topics import limits
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run will copy.

    Args:
        windows: one per topic with something new.
        data_losses: one per topic-partition that is held back, or that only another node has, and
            one per topic that is hidden, or refused.
        sizes_bytes: estimated bytes of a range by its source topic-partition, where known.
        kept: as in `CopyRange`, by source topic-partition.
        frozen: the window that is copied; without a key if everything is, up to the end.
        superseded: its ranges of which nothing is copied any more, because a loss was accepted
            after they were planned.
    """

    snapshot: ClusterSnapshot
    windows: Sequence[Window]
    data_losses: Sequence[RelayError]
    sizes_bytes: Mapping[TopicPartition, int]
    kept: Mapping[TopicPartition, Intervals] = field(default_factory=dict)
    frozen: FrozenWindow = field(default_factory=lambda: FrozenWindow("", ()))
    superseded: frozenset[OffsetRange] = frozenset()

    @property
    def ranges(self) -> list[CopyRange]:
        """All ranges, with what a task must know about them."""
        return [
            self._copy_range(offset_range)
            for window in self.windows
            for offset_range in window.ranges
        ]

    @property
    def takeovers(self) -> list[Finding]:
        """The topics of which this run decides the records in another way than the last."""
        ranges = (offset_range for window in self.windows for offset_range in window.ranges)
        return self.snapshot.takeovers(offset_range.topic_partition for offset_range in ranges)

    def offsets(self, window: Window) -> int:
        """The number of offsets: of records, unless some were compacted away or aborted."""
        return sum(map(len, window.ranges))

    def size_bytes(self, window: Window) -> int | None:
        """The window's estimated size; None if the source does not report all sizes."""
        sizes = [
            self.sizes_bytes.get(offset_range.topic_partition) for offset_range in window.ranges
        ]
        return None if None in sizes else sum(filter(None, sizes))

    def seconds(self, window: Window) -> float:
        """Estimate how long one task copies the window."""
        return sum(
            copy_seconds(offset_range, self.sizes_bytes.get(offset_range.topic_partition))
            for offset_range in window.ranges
        )

    def _copy_range(self, source: OffsetRange) -> CopyRange:
        snapshot, topic_partition = self.snapshot, source.topic_partition
        topic_limits = limits(snapshot, topic_partition.topic)
        home = checkpoint.home(
            checkpoint.TOPIC, checkpoint.key_of(snapshot.mirror, topic_partition)
        )
        return CopyRange(
            source=source,
            destination=snapshot.destination_of(topic_partition),
            max_message_bytes=topic_limits.max_message_bytes,
            timestamp_type=topic_limits.timestamp_type,
            checkpoint=snapshot.checkpoints.get(topic_partition),
            checkpoint_position=snapshot.checkpoint_ends.get(home, 0),
            record_policy=snapshot.record_policy.get(topic_partition.topic, RecordPolicy()),
            planned_log=NodeIdentity(
                snapshot.node.name, snapshot.source_topics[topic_partition.topic].topic_id, ""
            ),
            same_logs=snapshot.same_logs.get(topic_partition, ()),
            kept=self.kept.get(topic_partition, ()),
            requires_keys=topic_limits.requires_keys,
            passed=snapshot.passed.get(topic_partition.topic, ()),
        )


def plan(snapshot: ClusterSnapshot) -> RunPlan:
    """Plan everything up to the end of the source when the snapshot was taken."""
    windows = plan_windows(snapshot.positions).windows
    readable = [window for window in windows if window.topic not in snapshot.refused]
    return _plan(snapshot, readable, snapshot.guarded)


def plan_frozen(snapshot: ClusterSnapshot, frozen: FrozenWindow) -> RunPlan:
    """Plan what a frozen window has left: from the next offset to copy to the window's end.

    Topics that are not in the snapshot are left out.
    """
    positions = {position.topic_partition: position for position in snapshot.positions}
    others = positions.keys() - {each.topic_partition for each in frozen.ranges}
    held = {tp: error for tp, error in snapshot.guarded.items() if tp not in others}
    superseded = frozenset(each for each in frozen.ranges if _is_superseded(snapshot, frozen, each))
    windows = []
    for window in frozen.windows(snapshot.destinations):
        ranges = [
            replace(offset_range, start=position.begin)
            for offset_range in window.ranges
            if (position := positions.get(offset_range.topic_partition))
            and offset_range.end > position.begin
            and offset_range.topic_partition not in held
            and offset_range not in superseded
        ]
        if ranges:
            windows.append(Window(window.topic, tuple(ranges)))
    return replace(_plan(snapshot, windows, held), frozen=frozen, superseded=superseded)


def _plan(
    snapshot: ClusterSnapshot, windows: Sequence[Window], held: Mapping[TopicPartition, RelayError]
) -> RunPlan:
    return RunPlan(
        snapshot, windows, tuple(dict.fromkeys(held.values())), _sizes(snapshot, windows)
    )


def _is_superseded(snapshot: ClusterSnapshot, frozen: FrozenWindow, planned: OffsetRange) -> bool:
    """Whether a loss was accepted since the window was cut: its offsets may be other records."""
    tp = planned.topic_partition
    return tp in snapshot.checkpoints and snapshot.generation_of(tp) != frozen.generation_of(tp)


def bytes_per_offset(snapshot: ClusterSnapshot) -> dict[TopicPartition, float]:
    """The average size of a source offset on disk, where the source reports it."""
    return {
        position.topic_partition: snapshot.sizes_bytes[position.topic_partition]
        / max(1, position.end_offset - position.low_watermark)
        for position in snapshot.positions
        if position.topic_partition in snapshot.sizes_bytes
    }


def _sizes(snapshot: ClusterSnapshot, windows: Sequence[Window]) -> dict[TopicPartition, int]:
    average = bytes_per_offset(snapshot)
    ranges = [
        offset_range
        for window in windows
        for offset_range in window.ranges
        if offset_range.topic_partition in average
    ]
    return {
        offset_range.topic_partition: int(average[offset_range.topic_partition] * len(offset_range))
        for offset_range in ranges
    }


QUIET_SECONDS = 30.0
"""For how long another deployment must not have moved, at least."""
_INTERVALS = 3.0
_LONGEST_LOOK_SECONDS = 30.0


@dataclass(slots=True)
class OtherWriters:
    """Decides before each copy whether it has to wait, from the checkpoints of others.

    Args:
        is_own: whether this deployment knows a run.
        interval_seconds: how often this deployment copies.
        waits: whether another deployment copies.
    """

    is_own: Callable[[str], bool]
    interval_seconds: float
    clock: Clock
    waits: bool = field(default=False, init=False)
    _seen: Mapping[TopicPartition, Checkpoint] | None = field(default=None, init=False)
    _quiet_seconds: float = field(default=0.0, init=False)
    _looked: float = field(default=0.0, init=False)
    # of two that wait, one goes first
    _share: float = field(default_factory=random.random, init=False)

    def look(self, snapshot: ClusterSnapshot, *, has_news: bool) -> str:
        """Decide whether to wait; return a line when that changes, and nothing otherwise.

        Args:
            has_news: whether records wait: only then it means something that nothing moves.
        """
        foreign = self._foreign(snapshot)
        before, self._seen = self._seen, foreign
        now = self.clock.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK_SECONDS), now
        newest = max(
            foreign.values(),
            key=lambda source_checkpoint: source_checkpoint.committed_at_ms,
            default=None,
        )
        if before is None:  # it may have ended just before this run began
            age = self.clock.now_ms() - newest.committed_at_ms if newest else 0
            self._quiet_seconds = max(0.0, age / 1000)
            return self._begin(newest)
        if any(before.get(tp) != checkpoint for tp, checkpoint in foreign.items()):
            self._quiet_seconds = 0.0
            return "" if self.waits else self._begin(newest)
        self._quiet_seconds += passed * has_news
        if not self.waits or self._quiet_seconds <= self._patience_seconds:
            return ""
        self.waits = False
        who = f"run {newest.run_id}" if newest else "the other deployment"
        return f"{who} has copied nothing for {self._quiet_seconds:.0f} s: taking over"

    def _foreign(self, snapshot: ClusterSnapshot) -> dict[TopicPartition, Checkpoint]:
        return {
            tp: checkpoint
            for tp, checkpoint in snapshot.checkpoints.items()
            if tp.topic in snapshot.targets
            and checkpoint.run_id != BY_DRIVER
            and not self.is_own(checkpoint.run_id)
        }

    @property
    def _patience_seconds(self) -> float:
        return max(QUIET_SECONDS, _INTERVALS * self.interval_seconds) * (1 + self._share / 2)

    def _begin(self, newest: Checkpoint | None) -> str:
        """Wait, unless nobody else has committed for long."""
        if newest is None or self._quiet_seconds > self._patience_seconds:
            return ""
        self.waits = True
        last = dt.datetime.fromtimestamp(newest.committed_at_ms / 1000, dt.UTC)
        return (
            f"run {newest.run_id} of another deployment copies this mirror, last at"
            f" {last:%Y-%m-%dT%H:%M:%SZ}; this one waits until it has ended"
        )

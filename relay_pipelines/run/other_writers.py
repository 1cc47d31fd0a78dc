"""Other deployments that copy the same mirror: whoever finds one at work waits until it has ended.

Correctness does not depend on this, because tasks fence each other. It keeps two deployments from
wasting each other's work, and from reporting an error every few seconds.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relay_pipelines.model import Checkpoint, TopicPartition
from relay_pipelines.prepare.checkpoint_moves import BY_DRIVER
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

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
        newest = max(foreign.values(), key=lambda each: each.committed_at_ms, default=None)
        if before is None:  # it may have ended just before this run began
            age = self.clock.now_ms() - newest.committed_at_ms if newest else 0
            self._quiet_seconds = max(0.0, age / 1000)
            return self._begin(newest)
        if any(before.get(at) != checkpoint for at, checkpoint in foreign.items()):
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
            at: checkpoint
            for at, checkpoint in snapshot.checkpoints.items()
            if at.topic in snapshot.targets
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

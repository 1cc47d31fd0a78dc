"""Other deployments that copy the same mirror: who finds one at work waits until it has ended.

Correctness does not depend on this, because tasks fence each other. It keeps two deployments from
wasting each other's work, and from reporting an error every few seconds.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from relay_pipelines.errors import FencedError, RelayError
from relay_pipelines.ledger.checkpoint import (
    Key,
    RunEndsRecord,
    StateKind,
    StateRecord,
    state_record,
)
from relay_pipelines.ledger.fencing import decide
from relay_pipelines.ledger.state_table import read_state
from relay_pipelines.model import BY_DRIVER, Checkpoint, TopicPartition
from relay_pipelines.plan.owners import run_ends_id
from relay_pipelines.plan.run_ends import RunEnd, is_over, with_end
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import impatient
from relay_pipelines.sides import Sides
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
        say: gets a line when this deployment begins to wait, or takes over.
        deployment: of this one, as of `RunEnd`.
        waits: whether another deployment copies.
    """

    is_own: Callable[[str], bool]
    interval_seconds: float
    clock: Clock
    say: Callable[[str], None]
    deployment: str = ""
    waits: bool = field(default=False, init=False)
    _seen: Mapping[TopicPartition, Checkpoint] | None = field(default=None, init=False)
    _quiet_seconds: float = field(default=0.0, init=False)
    _looked: float = field(default=0.0, init=False)
    # of two that wait, one goes first
    _share: float = field(default_factory=random.random, init=False)

    def prepared(self, take: Callable[[], ClusterSnapshot]) -> tuple[ClusterSnapshot, bool]:
        """Take a snapshot and prepare it for a copy, unless another deployment copies.

        Returns:
            the snapshot, and whether to wait: then nothing was written.

        Raises:
            RelayError: as of `prepare_snapshot`.
        """
        if not self.waits:
            return prepare_snapshot(take, self.look), self.waits
        snapshot = take()
        self.look(snapshot)
        return snapshot, True  # be it for the last time: it was not prepared

    def look(self, snapshot: ClusterSnapshot) -> bool:
        """Decide whether to wait, and say when that changes."""
        if line := self._decide(snapshot):
            self.say(line)
        return self.waits

    def _decide(self, snapshot: ClusterSnapshot) -> str:
        foreign = self._foreign(snapshot)
        before, self._seen = self._seen, foreign
        now = self.clock.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK_SECONDS), now
        newest = max(foreign.values(), key=lambda each: each.committed_at_ms, default=None)
        if before is None:  # it may have ended just before this run began
            return self._begin(newest)
        if any(before.get(tp) != checkpoint for tp, checkpoint in foreign.items()):
            self._quiet_seconds = 0.0
            return "" if self.waits else self._wait_for(newest)
        # it means something only while records wait that nothing moves
        self._quiet_seconds += passed * bool(snapshot.news)
        if not self.waits:
            return ""
        if any(self._is_over(snapshot, each) for each in before.values()):
            self.waits = False
            return self._begin(newest) or "the other deployment has ended: taking over"
        if self._quiet_seconds <= self._patience_seconds:
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
            and not self._is_over(snapshot, checkpoint)
        }

    def _is_over(self, snapshot: ClusterSnapshot, last: Checkpoint) -> bool:
        ends = snapshot.state.run_ends
        return is_over(ends, last.run_id, last.committed_at_ms, self.deployment)

    @property
    def _patience_seconds(self) -> float:
        return max(QUIET_SECONDS, _INTERVALS * self.interval_seconds) * (1 + self._share / 2)

    def _begin(self, newest: Checkpoint | None) -> str:
        """Wait, unless no other process has committed for long."""
        age_ms = self.clock.now_ms() - newest.committed_at_ms if newest else 0
        self._quiet_seconds = max(0.0, age_ms / 1000)
        return "" if self._quiet_seconds > self._patience_seconds else self._wait_for(newest)

    def _wait_for(self, newest: Checkpoint | None) -> str:
        if newest is None:
            return ""
        self.waits = True
        last = dt.datetime.fromtimestamp(newest.committed_at_ms / 1000, dt.UTC)
        return (
            f"run {newest.run_id}, which this deployment does not know, copies this mirror, last at"
            f" {last:%Y-%m-%dT%H:%M:%SZ}; this one waits until it has ended"
        )


_MARK_TIMEOUT_MS = 5_000  # a process that is killed here holds no checkpoint up for longer


def mark_end(sides: Sides, run_id: str, *, deployment: str = "", goes_on: bool = False) -> None:
    """Write that a run copies nothing more, so that no process waits for it.

    Called last, when none of its tasks is at work. If the destination does not answer, others wait
    as for a run that was killed.

    Args:
        deployment, goes_on: as of `RunEnd`; the run itself if it is the only one.
    """
    options = impatient(sides.options)
    timeout_ms = min(_MARK_TIMEOUT_MS, options.transaction_timeout_ms)
    options = replace(options, transaction_timeout_ms=timeout_ms)
    with (
        suppress(RelayError),
        sides.destination(options=options) as client,
    ):
        write = partial(_mark, client, sides.name, run_id, deployment or run_id, goes_on=goes_on)
        client.retry(write, patient=False, also=(FencedError,))


def _mark(
    client: ClusterClient, mirror: str, run_id: str, deployment: str, *, goes_on: bool
) -> None:
    def decision() -> list[StateRecord]:
        snapshot = read_state(client).of(mirror, only_readable=True)
        # by the clocks of those that have committed, too
        now_ms = client.clock.now_ms()
        commits = (
            checkpoint
            for checkpoint in snapshot.checkpoints.values()
            if checkpoint.run_id == run_id
        )
        at_ms = max([now_ms, *(commit.committed_at_ms for commit in commits)])
        ends = with_end(snapshot.run_ends, run_id, RunEnd(deployment, at_ms, goes_on))
        return [state_record(Key(mirror, StateKind.ENDED), RunEndsRecord(mirror, ends), now_ms)]

    decide(client, run_ends_id(mirror), decision, patient=False, awaited=False)
